"""Tiny random models, one config per family that loads, and their arithmetic in fp64.

Heads are odd in number and layers differ from heads, so that a swapped axis cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB = 97
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "stablelm": {"hidden_size": 144, "qk_layernorm": True},
    "phi": {"hidden_size": 144},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "gpt_neox": {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": None},
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
    },
}
"""Rope scalings with a fixed table, for the `rope_parameters` of a tiny llama."""


def tiny_config(model_type: str = "llama", **overrides: Any) -> Any:
    """A transformers config of a few thousand parameters."""
    fields = {**_BASE, **_TOKENS, **_OWN.get(model_type, {}), **overrides}
    return CONFIG_MAPPING[model_type](**{key: value for key, value in fields.items() if _known(key, value)})


def _known(key: str, value: Any) -> bool:
    return value is not None or key == "sliding_window"


def tiny_model(
    model_type: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0, **overrides: Any
) -> Any:
    """A random causal LM in eval mode; the same arguments give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(model_type, **overrides))
    return model.to(dtype).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word: "w3 w4" is [3, 4]."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, VOCAB)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@contextmanager
def full_precision(model: Any) -> Iterator[None]:
    """Let `model` take its rotary angles and its RMS norms in fp64.

    transformers takes both in fp32 whatever the model's dtype. The angles alone are worth 1e-4 at position
    20000, and a norm that rounds to fp32 either hides a difference of 1e-15 or makes 1e-7 of it, so that
    no fp64 bound could hold without this.
    """
    rotary = model.base_model.rotary_emb

    def rotate(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * rotary.inv_freq.double()  # [B, T, R/2]
        both = torch.cat((angles, angles), dim=-1)
        scaling = rotary.attention_scaling
        return (both.cos() * scaling).to(x.dtype), (both.sin() * scaling).to(x.dtype)

    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    rotary.forward = rotate
    for norm in norms:
        norm.forward = partial(_rms_norm, norm)
    try:
        yield
    finally:
        for module in (rotary, *norms):
            del module.forward


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    wide = x.double()
    return (
        norm.weight.double() * wide * (wide.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    ).to(x.dtype)
