"""GQA → MHA: each KV head once for every query head that reads it. Exact, and the cache is as wide as in MHA.

python -m bench.models.mha                   # prints the directory of Qwen2.5-0.5B in MHA form
python -m bench.models.mha --prove           # losses before and after, to bench/results
"""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from bench.models import proof, qwen_coder

NAME = "qwen2.5-coder-0.5b-instruct-mha"
RESULT = Path("bench/results/mha_conversion.json")


def convert(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """The MHA form of `model` in its dtype, in eval mode."""
    config = model.config
    groups, heads = config.num_key_value_heads, config.num_attention_heads
    weights = {
        name: _repeat(value, groups, heads // groups) if ".k_proj." in name or ".v_proj." in name else value
        for name, value in model.state_dict().items()
    }
    expanded = Qwen2Config(**{**config.to_dict(), "num_key_value_heads": heads})
    target = Qwen2ForCausalLM(expanded).to(model.dtype).eval()
    target.load_state_dict(weights)
    return target


def _repeat(rows: Tensor, groups: int, times: int) -> Tensor:
    """[groups * D, ...] → [groups * times * D, ...]; query heads of one group are neighbours."""
    return rows.unflatten(0, (groups, -1)).repeat_interleave(times, 0).flatten(0, 1)


def ensure() -> Path:
    """The directory of the converted model (2.6 GB, fp32), made on the first call."""
    return qwen_coder.converted(NAME, convert)


def prove() -> Iterator[proof.Row]:
    """Losses of both forms over the same texts (minutes)."""
    grouped = Qwen2ForCausalLM.from_pretrained(qwen_coder.ensure()).eval()
    full = Qwen2ForCausalLM.from_pretrained(ensure()).eval()
    tokenizer = AutoTokenizer.from_pretrained(ensure())
    for text in proof.texts(tokenizer):
        yield proof.row("MHA form", text, proof.logits(grouped, text), proof.logits(full, text))


if __name__ == "__main__":
    proof.main(__doc__.splitlines()[0], ensure, prove, RESULT)
