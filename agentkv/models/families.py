"""The one table of model families, and how a config becomes a Layout.

Every Hugging Face config name that agentkv reads is read here. A family that is not "exact" in the
table cannot be loaded: `layout_of` raises UnsupportedModel, which names the layer type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentkv.errors import UnsupportedModel
from agentkv.layout import Layout, SlotSpec
from agentkv.rope import LayerRopes, RopeSpec, Style

__all__ = ["FAMILIES", "Family", "Layout", "SlotSpec", "config_frequencies", "family_of", "layout_of"]

Status = Literal["exact", "later", "refused"]
FIXED_ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Family:
    """One transformers `model_type`.

    style: which dims of a cached key turn together; None where nothing turns.
    status: "exact" loads; "later" is movable in principle and not proven here; "refused" cannot be.
    reason: what stands in the way, naming the layer type; empty when exact.
    """

    model_type: str
    attention: Literal["MHA", "GQA", "MLA", "recurrent"]
    style: Style | None
    status: Status
    reason: str = ""


# model types | attention | style | status | reason
_ROWS: tuple[tuple[str, Any, Style | None, Status, str], ...] = (
    ("llama mistral qwen2 qwen3 stablelm phi olmo2 granite", "GQA", "half", "exact", ""),
    ("gpt_neox", "MHA", "half", "exact", ""),
    ("persimmon", "MHA", "half", "later", "full attention, partial rotary: not run yet"),
    ("internlm3 minimax_m2 glm4_moe", "GQA", "half", "later", "full attention: not run yet"),
    ("phi3", "GQA", "half", "later", "longrope switches its frequency table beyond a length"),
    ("glm4", "GQA", "interleaved", "later", "full attention, interleaved partial rotary: not run yet"),
    ("cohere2", "GQA", "interleaved", "later", "sliding layers, and full-attention layers without positions"),
    ("smollm3 exaone4", "GQA", "half", "later", "some layers have no positions"),
    ("gemma2 gemma3 gemma3_text", "GQA", "half", "later", "sliding_attention layers with their own rope"),
    ("gpt_oss", "GQA", "half", "later", "sliding_attention layers and attention sinks"),
    ("deepseek_v2", "MLA", "interleaved", "later", "latent attention: the values slot holds the rope key"),
    (
        "deepseek_v3 glm4_moe_lite minicpm3 kimi_k25",
        "MLA",
        "half",
        "later",
        "latent attention: the values slot holds the rope key",
    ),
    ("qwen2_vl qwen2_5_vl", "GQA", "half", "later", "images with three-axis positions (chunked M-RoPE)"),
    ("qwen3_vl", "GQA", "half", "later", "images with three-axis positions and deepstack features"),
    ("glm4v glm46v", "GQA", "interleaved", "later", "images with three-axis positions (chunked M-RoPE)"),
    ("glm4v_moe", "GQA", "half", "later", "images with three-axis positions (chunked M-RoPE)"),
    ("smolvlm idefics3 llava deepseek_vl", "GQA", "half", "later", "image chunks on a llama backbone"),
    ("llava_onevision internvl", "GQA", "half", "later", "image chunks on a qwen2 backbone"),
    ("mistral3", "GQA", "half", "later", "image chunks on a mistral backbone"),
    ("llama4", "GQA", "interleaved", "later", "the query scale depends on the position"),
    ("ministral3", "GQA", "half", "later", "the query scale depends on the position"),
    ("mistral4", "MLA", "half", "later", "the query scale depends on the position"),
    (
        "gemma3n gemma4 qwen2_5_omni molmo2 minimax_m3_vl",
        "GQA",
        "half",
        "later",
        "its layers were not proven to move",
    ),
    ("deepseek_v32", "MLA", "half", "later", "indexed_attention layers: the indexer's keys turn as well"),
    ("deepseek_v4", "MLA", "half", "refused", "compressed attention layers: one row stands for many tokens"),
    (
        "mamba mamba2 jamba bamba falcon_h1 qwen3_next qwen3_5 minicpmv4_6 minicpmv4_7 kimi_linear lfm2",
        "recurrent",
        None,
        "refused",
        "recurrent layers: their state has no row per token",
    ),
    ("falcon mpt bloom", "MHA", None, "refused", "ALiBi attention: the bias follows the cache index"),
    ("gptj", "MHA", "interleaved", "refused", "positions come from a sinusoid table"),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {name: Family(name, *rest) for names, *rest in _ROWS for name in names.split()}
)


def _refuse(got: str, do: str = "") -> UnsupportedModel:
    exact = ", ".join(name for name, family in FAMILIES.items() if family.status == "exact")
    return UnsupportedModel(
        got=got,
        expected=f"full attention on every layer, one fixed rotary table, and a model type among {exact}",
        do=do or "load one of these, or run this model without agentkv",
    )


def family_of(config: Any) -> Family:
    """The table row of a transformers config. Raises UnsupportedModel for any that is not exact."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise _refuse(f"model type {config.model_type!r}, which is not in the family table")
    if family.status != "exact":
        raise _refuse(f"model type {config.model_type!r} ({family.status}): {family.reason}")
    return family


def _check_layers(config: Any) -> None:
    # The cache that transformers itself would build shows layers that hide behind a uniform config.
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if kinds != {DynamicLayer}:
        named = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
        odd = sorted(kind.__name__ for kind in kinds - {DynamicLayer})
        window = getattr(config, "sliding_window", None)
        raise _refuse(
            f"layers of type {', '.join(named or odd)} in {config.model_type!r}"
            + (f" (sliding_window={window})" if window else ""),
            do="load a checkpoint with full attention on every layer",
        )


def _rope_type(config: Any) -> str:
    rope_type = (config.rope_parameters or {}).get("rope_type")
    if rope_type not in FIXED_ROPES:
        raise _refuse(
            f"rope type {rope_type!r} in {config.model_type!r}, whose table is not known to be fixed",
            do=f"load a checkpoint whose rope type is one of {', '.join(FIXED_ROPES)}",
        )
    return rope_type


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def config_frequencies(config: Any) -> Tensor:
    """Inverse frequencies a config asks for: fp64 [R/2] holding transformers' fp32 values.

    Without attention scaling. Raises UnsupportedModel for a rope type whose table is not fixed.
    """
    rope_type = _rope_type(config)
    if rope_type != "default":
        return ROPE_INIT_FUNCTIONS[rope_type](config)[0].double()
    width = int(_head_dim(config) * config.rope_parameters.get("partial_rotary_factor", 1.0))
    exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
    return (1.0 / config.rope_parameters["rope_theta"] ** exponent).double()


def layout_of(config: Any, inv_freq: Tensor | None = None) -> Layout:
    """What the cache of a model with this config looks like.

    inv_freq: [R/2], the loaded model's own table, which wins over the one the config asks for.
    Raises UnsupportedModel naming the family, the layer type or the rope type that cannot be moved.
    """
    family = family_of(config)
    _check_layers(config)
    rope_type = _rope_type(config)
    table = config_frequencies(config) if inv_freq is None else inv_freq.detach().to("cpu", torch.float64)
    spec = RopeSpec(table, family.style or "half", width=2 * len(table))
    ropes = LayerRopes((spec,), of_layer=(0,) * config.num_hidden_layers)
    dim = _head_dim(config)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Layout(
        slots=(SlotSpec("keys", heads, dim, ropes), SlotSpec("values", heads, dim)),
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        max_positions=config.max_position_embeddings,
        scaling=getattr(config, "attention_multiplier", dim**-0.5),
        rope_type=rope_type,
    )
