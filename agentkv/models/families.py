"""The one table of model families: what a transformers model type keeps in its cache, and what R(δ) may turn.

A model type is a text model, or a wrapper (vision and a text model) whose cache is that of its text model.
Adding one is a row; `agentkv.models.layouts` reads the row and a config, and nothing else asks for a model
type. A family that is not exact cannot be loaded: `family_of` raises UnsupportedModel with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from agentkv.errors import UnsupportedModel
from agentkv.rope import Style

Status = Literal["exact", "later", "refused"]
ANY = "any"


@dataclass(frozen=True)
class Family:
    """One transformers `model_type`.

    attention: MHA, GQA, MLA, or what stands in its place. style: dims of the rope band that turn together;
    None where nothing turns or the text model decides. status: "exact" loads; "later" is movable
    in principle and not proven here; "refused" cannot be moved. reason: what stands in the way, or what to
    know. loads: the transformers auto class; "inside" loads as the text model of a wrapper only.
    text: a wrapper's text model type, or "any" that loads. axes: numbers in a position id. sections: how
    M-RoPE deals its axes out to frequencies; a chunk moves by one δ on all axes, so turning does not need
    it. still: which layers have no positions, as `layouts.STILL` reads it. query_scale: where the query
    scale starts to depend on the position, as `layouts.SCALES` reads it: windows end there. traits: what
    else its attention does. images: may be shown some, because they were run against transformers. both_ways:
    tokens of one image see each other in both directions. time_behind: a frame's time is written behind its
    end marker, not in front of its begin marker.
    """

    model_type: str
    attention: Literal["MHA", "GQA", "MLA", "recurrent", "of its text model"]
    style: Style | None
    status: Status
    reason: str = ""
    loads: Literal["causal", "image-text", "inside"] = "causal"
    text: str = ""
    axes: int = 1
    sections: Literal["", "chunked", "interleaved"] = ""
    still: Literal["", "full_attention", "no_rope_layers"] = ""
    query_scale: Literal["", "floor_scale", "llama_4_scaling_beta"] = ""
    traits: tuple[str, ...] = ()
    images: bool = False
    both_ways: bool = False
    time_behind: bool = False

    @property
    def rope_slot(self) -> str:
        """The cache slot whose band turns; empty where none does or the text model decides."""
        return "" if self.style is None else "values" if self.attention == "MLA" else "keys"

    @property
    def content_slot(self) -> str:
        """The cache slot that holds content alone."""
        return "" if self.style is None else "keys" if self.attention == "MLA" else "values"


def _rows(names: str, attention: Any, style: Style | None, status: Status, **more: Any) -> list[Family]:
    return [Family(name, attention, style, status, **more) for name in names.split()]


_SLIDING, _PARTIAL = "sliding layers", "the first dims of a head turn"
_LENGTH = "longrope: up to the original length, by the short factors"
_SCALED = "up to the original length: beyond it the query scale grows with the position"
_TEXT = [
    *_rows("llama internlm3 olmo2 granite", "GQA", "half", "exact"),
    *_rows("stablelm phi minimax_m2 glm4_moe", "GQA", "half", "exact", traits=(_PARTIAL,)),
    *_rows("gpt_neox persimmon", "MHA", "half", "exact", traits=(_PARTIAL,)),
    *_rows("mistral qwen2 qwen3", "GQA", "half", "exact", traits=(_SLIDING,)),
    *_rows("phi3", "GQA", "half", "exact", reason=_LENGTH, traits=(_SLIDING, _PARTIAL)),
    *_rows("glm4", "GQA", "interleaved", "exact", traits=(_PARTIAL,)),
    *_rows("cohere2", "GQA", "interleaved", "exact", still="full_attention", traits=(_SLIDING,)),
    *_rows("exaone4", "GQA", "half", "exact", still="full_attention", traits=(_SLIDING,)),
    *_rows("smollm3", "GQA", "half", "exact", still="no_rope_layers", traits=(_SLIDING,)),
    *_rows("gemma2", "GQA", "half", "exact", traits=(_SLIDING, "logit softcap")),
    *_rows("gemma3_text", "GQA", "half", "exact", traits=(_SLIDING, "a theta per layer type")),
    *_rows("gpt_oss", "GQA", "half", "exact", traits=(_SLIDING, "attention sinks")),
    *_rows("deepseek_v2", "MLA", "interleaved", "exact"),
    *_rows("deepseek_v3 glm4_moe_lite", "MLA", "half", "exact"),
    *_rows("minicpm3", "MLA", "half", "exact", reason=_LENGTH),
    *_rows(
        "llama4_text",
        "GQA",
        "interleaved",
        "exact",
        reason="up to one attention chunk, and to floor_scale: beyond it the query scale grows with the row",
        still="no_rope_layers",
        query_scale="floor_scale",
        traits=("chunked layers",),
    ),
    *_rows(
        "ministral3",
        "GQA",
        "half",
        "exact",
        reason=_SCALED,
        query_scale="llama_4_scaling_beta",
        traits=(_SLIDING,),
    ),
    *_rows(
        "mistral4",
        "MLA",
        "half",
        "exact",
        reason=_SCALED,
        loads="image-text",
        query_scale="llama_4_scaling_beta",
    ),
    *_rows(
        "qwen2_vl_text qwen2_5_vl_text", "GQA", "half", "exact", loads="inside", axes=3, sections="chunked"
    ),
    *_rows("qwen3_vl_text", "GQA", "half", "exact", loads="inside", axes=3, sections="interleaved"),
    *_rows(
        "glm4v_text",
        "GQA",
        "interleaved",
        "exact",
        loads="inside",
        axes=3,
        sections="chunked",
        traits=(_PARTIAL,),
    ),
    *_rows(
        "glm4v_moe_text",
        "GQA",
        "half",
        "exact",
        loads="inside",
        axes=3,
        sections="chunked",
        traits=(_PARTIAL,),
    ),
    *_rows(
        "gemma3n",
        "GQA",
        "half",
        "later",
        reason="layers that reuse the keys and values of others (dummy layers)",
    ),
    *_rows(
        "gemma4",
        "GQA",
        "half",
        "later",
        reason="layers that reuse others' keys and values, proportional rope",
    ),
    *_rows("qwen2_5_omni", "GQA", "half", "later", reason="audio beside images, on a clock of its own"),
    *_rows("molmo2", "GQA", "half", "later", reason="its full_attention layers were not proven to move"),
    *_rows(
        "minimax_m3_vl",
        "GQA",
        "half",
        "later",
        reason="minimax_m3_sparse layers: the index keys turn as well",
    ),
    *_rows(
        "deepseek_v32",
        "MLA",
        "half",
        "later",
        reason="indexed_attention layers: the indexer's keys turn as well",
    ),
    *_rows(
        "deepseek_v4",
        "MLA",
        "half",
        "refused",
        reason="compressed_sparse_attention layers: one row stands for many tokens",
    ),
    *_rows(
        "mamba mamba2 jamba bamba falcon_h1 qwen3_next qwen3_5 minicpmv4_6 minicpmv4_7 kimi_linear lfm2",
        "recurrent",
        None,
        "refused",
        reason="recurrent layers: their state has no row per token",
    ),
    *_rows(
        "falcon mpt bloom", "MHA", None, "refused", reason="ALiBi attention: the bias follows the cache index"
    ),
    *_rows("gptj", "MHA", "interleaved", "refused", reason="positions come from a sinusoid table"),
]

_SEES: dict[str, Any] = {"images": True}

# wrapper | its text model type | what else it does
_WRAPPERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("qwen2_vl", "qwen2_vl_text", _SEES),
    ("qwen2_5_vl", "qwen2_5_vl_text", _SEES),
    ("qwen3_vl", "qwen3_vl_text", {**_SEES, "traits": ("deepstack",)}),
    ("glm4v glm46v", "glm4v_text", {**_SEES, "time_behind": True}),
    ("glm4v_moe", "glm4v_moe_text", {**_SEES, "time_behind": True}),
    ("kimi_k25", "deepseek_v3", {"reason": "text alone: its images were not run"}),
    ("gemma3", "gemma3_text", {**_SEES, "both_ways": True}),
    ("smolvlm idefics3 llava deepseek_vl llava_onevision internvl mistral3", ANY, _SEES),
)


def _wrapper(name: str, text: Family | None, more: dict[str, Any]) -> Family:
    if text is None:
        return Family(name, "of its text model", None, "exact", loads="image-text", text=ANY, **more)
    more = {**more, "traits": (*text.traits, *more.get("traits", ()))}
    return replace(text, model_type=name, loads="image-text", text=text.model_type, **more)


def _table() -> dict[str, Family]:
    table = {family.model_type: family for family in _TEXT}
    for names, text, more in _WRAPPERS:
        table |= {name: _wrapper(name, table.get(text), more) for name in names.split()}
    # Its own wrapper class raises AttributeError at the end of every forward in transformers 5.24.
    images = "; text alone: Llama4ForConditionalGeneration fails in transformers 5.24"
    llama4 = table["llama4_text"]
    table["llama4"] = replace(llama4, model_type="llama4", text="llama4_text", reason=llama4.reason + images)
    return table


FAMILIES: Mapping[str, Family] = MappingProxyType(_table())


def refusal(got: str, do: str = "") -> UnsupportedModel:
    """The error for a model that cannot be moved."""
    loads = ", ".join(name for name, family in FAMILIES.items() if family.status == "exact")
    return UnsupportedModel(
        got=got,
        expected=f"a row per token on every layer, one fixed rotary table, and a model type among {loads}",
        do=do or "load one of these, or run this model without agentkv",
    )


def family_of(config: Any) -> Family:
    """The table row of a transformers config. Raises UnsupportedModel for any that does not load."""
    family = _row(config.model_type)
    if family.loads == "inside":
        raise refusal(
            f"model type {family.model_type!r}, which is the text model of another",
            do="load the whole model: text alone runs on it as well",
        )
    return family


def text_family_of(config: Any) -> Family:
    """The row that says what the cache of a model with this config looks like: its text model's.

    Raises UnsupportedModel.
    """
    family = family_of(config)
    return _row(config.get_text_config().model_type) if family.text else family


def _row(model_type: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is None:
        raise refusal(f"model type {model_type!r}, which is not in the family table")
    if family.status != "exact":
        raise refusal(f"model type {model_type!r} ({family.status}): {family.reason}")
    return family
