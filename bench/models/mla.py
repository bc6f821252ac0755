"""Qwen2.5-0.5B in MLA form: a real model whose cache is a latent and a rope key. It is not DeepSeek.

No pretrained MLA model is to be had here, but a GQA model with few KV heads becomes one by algebra:

1. the lowest frequencies of the rotary table are set to zero (`position_free`): they turn by less than
   a radian within thousands of tokens. This is the only step that changes the model, and `--prove` says
   by how much;
2. of each key head the dims that no longer turn, with all values, are stacked into the latent; the dims
   that turn are stacked into one rope key that all heads share, their frequencies tiled;
3. a query head reads its own group's part of both and has zeros elsewhere.

With G KV heads of D dims and N position-free dims each, the latent is G(N + D) wide and the rope key
G(D - N), together as wide as the keys and values were: nothing is approximated in steps 2 and 3.
DeepSeek's attention scales by its own query width, so the queries carry the ratio of the two scales.

    python -m bench.models.mla                   # prints the model directory
    python -m bench.models.mla --prove           # losses before and after, to bench/results
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

from bench.models import proof, qwen_coder

NAME = "qwen2.5-coder-0.5b-instruct-mla"
SLOW_PAIRS = 12
RESULT = Path("bench/results/mla_conversion.json")


@dataclass(frozen=True)
class Split:
    """Which dims of a GQA head go where.

    heads: query heads. groups: G, KV heads. dim: D of a head. slow: pairs made position-free.
    """

    heads: int
    groups: int
    dim: int
    slow: int

    @property
    def turning(self) -> Tensor:
        """int64 [D/2 - slow], the first dim of each pair that still turns (its second is D/2 further)."""
        return torch.arange(self.dim // 2 - self.slow)

    @property
    def still(self) -> Tensor:
        """int64 [N], the dims of a head that no longer turn."""
        slow = torch.arange(self.dim // 2 - self.slow, self.dim // 2)
        return torch.cat([slow, slow + self.dim // 2])

    @property
    def rope_width(self) -> int:
        return self.groups * (self.dim - 2 * self.slow)

    @property
    def latent_width(self) -> int:
        return self.groups * (2 * self.slow + self.dim)

    def rope_columns(self, group: int) -> Tensor:
        """int64 [D - N]: where the rope key holds `group`'s turning dims, first halves before second ones."""
        first = group * len(self.turning) + torch.arange(len(self.turning))
        return torch.cat([first, first + self.rope_width // 2])


class TiledRotaryEmbedding(DeepseekV3RotaryEmbedding):
    """The turning frequencies of one GQA head, once for each group."""

    @staticmethod
    def compute_default_rope_parameters(config: Any, **_: Any) -> tuple[Tensor, float]:
        """(inv_freq fp32 [rope width / 2], 1.0)."""
        dim, groups = config.tiled_rope["head_dim"], config.tiled_rope["groups"]
        pairs = torch.arange(config.qk_rope_head_dim // 2 // groups, dtype=torch.float)
        return (1.0 / config.rope_parameters["rope_theta"] ** (2 * pairs / dim)).repeat(groups), 1.0


class GQAInLatentForm(DeepseekV3ForCausalLM):
    """DeepSeek-V3 with dense layers, a bias on the queries and a latent that is not normalised."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            attention = layer.self_attn
            attention.q_proj = nn.Linear(attention.q_proj.in_features, attention.q_proj.out_features)
            attention.kv_a_layernorm = nn.Identity()
        self.model.rotary_emb = TiledRotaryEmbedding(config)
        self.post_init()


@contextmanager
def position_free(model: Qwen2ForCausalLM, slow: int = SLOW_PAIRS) -> Iterator[Qwen2ForCausalLM]:
    """`model` with its `slow` lowest frequencies at zero, until the block ends."""
    table = model.model.rotary_emb.inv_freq
    before = table.clone()
    table[-slow:] = 0.0
    try:
        yield model
    finally:
        table.copy_(before)


def split_of(config: Any, slow: int = SLOW_PAIRS) -> Split:
    """The split for a qwen2 config."""
    dim = config.hidden_size // config.num_attention_heads
    return Split(config.num_attention_heads, config.num_key_value_heads, dim, slow)


def latent_config(config: Any, split: Split) -> DeepseekV3Config:
    """The DeepSeek-V3 config of the converted model."""
    same = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act "
        "max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id tie_word_embeddings"
    )
    return DeepseekV3Config(
        **{name: getattr(config, name) for name in same.split()},
        num_key_value_heads=split.heads,
        q_lora_rank=None,
        kv_lora_rank=split.latent_width,
        qk_nope_head_dim=2 * split.slow,
        qk_rope_head_dim=split.rope_width,
        v_head_dim=split.dim,
        first_k_dense_replace=config.num_hidden_layers,
        n_routed_experts=1,
        num_mtp_layers=0,
        rope_interleave=False,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]},
        attention_bias=True,
        tiled_rope={"head_dim": split.dim, "groups": split.groups},
    )


def convert(model: Qwen2ForCausalLM, slow: int = SLOW_PAIRS) -> GQAInLatentForm:
    """The MLA form of `model` in its dtype; in exact arithmetic equal to `position_free(model, slow)`."""
    split = split_of(model.config, slow)
    target = GQAInLatentForm(latent_config(model.config, split)).to(model.dtype).eval()
    weights = {name: value for name, value in model.state_dict().items() if ".self_attn." not in name}
    for index, layer in enumerate(model.model.layers):
        for name, value in _attention(layer.self_attn, split):
            weights[f"model.layers.{index}.self_attn.{name}"] = value
    target.load_state_dict(weights)
    return target


def _attention(attention: Any, split: Split) -> Iterator[tuple[str, Tensor]]:
    """The weights of one DeepseekV3Attention, by name, from one Qwen2Attention."""
    for kind in ("weight", "bias"):
        q, k, v = (getattr(getattr(attention, f"{name}_proj"), kind).detach() for name in "qkv")
        yield f"q_proj.{kind}", _queries(q, split)
        yield f"kv_a_proj_with_mqa.{kind}", _latent_and_rope(k, v, split)
    yield "kv_b_proj.weight", _selection(split).to(attention.q_proj.weight)
    yield "o_proj.weight", attention.o_proj.weight.detach()
    yield "o_proj.bias", torch.zeros_like(attention.o_proj.weight[:, 0])


def _queries(rows: Tensor, split: Split) -> Tensor:
    """Rows [heads * D, ...] of q_proj → [heads * (N + rope width), ...], zero outside the head's group."""
    rows = rows.unflatten(0, (split.heads, split.dim))
    width = 2 * split.slow + split.rope_width
    out = rows.new_zeros(split.heads, width, *rows.shape[2:])
    turning = torch.cat([split.turning, split.turning + split.dim // 2])
    for head in range(split.heads):
        group = head * split.groups // split.heads
        out[head, : 2 * split.slow] = rows[head, split.still]
        out[head, 2 * split.slow + split.rope_columns(group)] = rows[head, turning]
    return out.flatten(0, 1) * (width / split.dim) ** 0.5


def _latent_and_rope(k: Tensor, v: Tensor, split: Split) -> Tensor:
    """Rows [G * D, ...] of k_proj and v_proj → [latent + rope width, ...]: still dims, values, rope key."""
    keys = k.unflatten(0, (split.groups, split.dim))
    rope = k.new_empty(split.rope_width, *k.shape[1:])
    turning = torch.cat([split.turning, split.turning + split.dim // 2])
    for group in range(split.groups):
        rope[split.rope_columns(group)] = keys[group, turning]
    return torch.cat([keys[:, split.still].flatten(0, 1), v, rope])


def _selection(split: Split) -> Tensor:
    """kv_b_proj [heads * (N + D), latent]: each head picks its group's key dims and values."""
    still = 2 * split.slow
    out = torch.zeros(split.heads, still + split.dim, split.latent_width)
    for head in range(split.heads):
        group = head * split.groups // split.heads
        out[head, :still, group * still : (group + 1) * still] = torch.eye(still)
        values = split.groups * still + group * split.dim
        out[head, still:, values : values + split.dim] = torch.eye(split.dim)
    return out.flatten(0, 1)


def ensure() -> Path:
    """The directory of the converted model (2.5 GB, fp32), made on the first call."""
    return qwen_coder.converted(NAME, convert)


def load(dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, Any]:
    """(model in eval mode, tokenizer). Its cache is that of deepseek_v3: latent [1, 1, T, 176] in the keys
    slot, rope key [1, 1, T, 80] in the values slot."""
    directory = ensure()
    model = GQAInLatentForm.from_pretrained(directory, dtype=dtype).eval()
    return model, AutoTokenizer.from_pretrained(directory)


def prove() -> Iterator[proof.Row]:
    """Losses of the original, the position-free and the MLA model over the same texts (minutes)."""
    latent, tokenizer = load()
    original = Qwen2ForCausalLM.from_pretrained(qwen_coder.ensure(), dtype=torch.float32).eval()
    for text in proof.texts(tokenizer):
        before = proof.logits(original, text)
        with position_free(original):
            free = proof.logits(original, text)
        yield proof.row("position-free pairs", text, before, free)
        yield proof.row("MLA form of it", text, free, proof.logits(latent, text))


if __name__ == "__main__":
    proof.main(__doc__.splitlines()[0], ensure, prove, RESULT)
