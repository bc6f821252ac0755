"""From a loaded model and its row in the family table to the Layout of its cache.

Every Hugging Face config name that agentkv reads is read here or in `agentkv.models.hf`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from agentkv.errors import UnsupportedModel
from agentkv.layout import Layout, SlotSpec
from agentkv.models.families import Family, refusal, text_family_of
from agentkv.rope import LayerRopes, RopeSpec

FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Rope types with one frequency table; longrope has one on either side of the original length."""

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")

STILL: dict[str, Callable[[Any, int], bool]] = {
    "": lambda config, layer: False,
    "full_attention": lambda config, layer: (
        config.sliding_window is not None and config.layer_types[layer] == "full_attention"
    ),
    "no_rope_layers": lambda config, layer: not config.no_rope_layers[layer],
}
"""Whether a layer has no positions."""

SCALES: dict[str, Callable[[Any], int]] = {
    "floor_scale": lambda config: config.floor_scale - 1,
    "llama_4_scaling_beta": lambda config: config.rope_parameters["original_max_position_embeddings"],
}
"""The first position whose query is scaled differently from position 0."""


def body_of(model: Any) -> Any:
    """A causal LM without its head: what `base_model` means, also where the prefix it goes by names nothing.

    Raises UnsupportedModel for a model that is all body, or hides it elsewhere.
    """
    body = model.base_model if model.base_model is not model else getattr(model, "model", None)
    if body is None:
        raise refusal(
            f"{type(model).__name__} without a body beside its head",
            do="load the model with AutoModelForCausalLM or AutoModelForImageTextToText, as its row says",
        )
    return body


def decoder_of(model: Any) -> Any:
    """The text model inside, which holds the layers and the rotary table."""
    return body_of(model).get_decoder()


def judge(config: Any) -> Family:
    """The text family of a config, whose cache can be moved by all that a config tells.

    Raises UnsupportedModel naming the family, the layer type or the rope type that cannot.
    """
    family, text = text_family_of(config), config.get_text_config()
    _check_layers(text)
    for parameters in rope_parameters(text).values():
        _check_rope(text, parameters)
    return family


def layout_of(model: Any) -> Layout:
    """What the cache of a loaded model looks like. Raises UnsupportedModel for one that cannot be moved."""
    family, config = judge(model.config), model.config.get_text_config()
    tables = rope_tables(model)
    ropes = _ropes(family, config, tables)
    return Layout(
        slots=_slots(family, config, ropes),
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        max_positions=_max_positions(family, config),
        scaling=_scaling(model),
        rope_type="/".join(sorted({p["rope_type"] for p in rope_parameters(config).values()})),
        axes=family.axes,
    )


def rope_parameters(config: Any) -> dict[str, dict[str, Any]]:
    """A text config's rope settings by layer type; under "" where all layers share them."""
    found = config.rope_parameters or {}
    types = set(getattr(config, "layer_types", None) or ())
    if found.keys() & types:
        return {name: found[name] for name in sorted(types)}
    return {"": found}


def rope_tables(model: Any) -> dict[str, Tensor]:
    """fp64 [R/2] on the CPU by layer type ("": all): the inverse frequencies this model rotates by, without
    attention scaling.

    They are the model's own, not what its config asks for. Raises UnsupportedModel for a model that has none.
    """
    decoder = decoder_of(model)
    found = {}
    for name, parameters in rope_parameters(model.config.get_text_config()).items():
        # longrope writes the table of the last forward's length into inv_freq.
        kind = "original_inv_freq" if parameters.get("rope_type") == "longrope" else "inv_freq"
        buffer = f"{name}_{kind}" if name else kind
        table = getattr(getattr(decoder, "rotary_emb", None), buffer, None)
        if not isinstance(table, Tensor):
            raise UnsupportedModel(
                got=f"{type(model).__name__} without rotary_emb.{buffer} on {type(decoder).__name__}",
                expected="one rotary table that all layers of a type share",
                do="load the model with an unmodified transformers class",
            )
        found[name] = table.detach().to("cpu", torch.float64)
    return found


def _ropes(family: Family, config: Any, tables: dict[str, Tensor]) -> LayerRopes:
    style = family.style or "half"
    specs = tuple(RopeSpec(table, style, width=2 * len(table)) for table in tables.values())
    names = list(tables)
    of_layer = []
    for layer in range(config.num_hidden_layers):
        name = names[0] if len(names) == 1 else config.layer_types[layer]
        of_layer.append(-1 if STILL[family.still](config, layer) else names.index(name))
    return LayerRopes(specs, tuple(of_layer))


def _slots(family: Family, config: Any, ropes: LayerRopes) -> tuple[SlotSpec, ...]:
    if family.attention == "MLA":  # the normalised latent, and one rope key that all heads share
        content = SlotSpec("keys", 1, config.kv_lora_rank)
        return content, SlotSpec("values", 1, config.qk_rope_head_dim, ropes)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return SlotSpec("keys", heads, dim, ropes), SlotSpec("values", heads, dim)


def _max_positions(family: Family, config: Any) -> int:
    """Positions up to which one table, one kind of attention and one query scale hold."""
    limits = [config.max_position_embeddings]
    if family.query_scale:
        limits.append(SCALES[family.query_scale](config))
    for parameters in rope_parameters(config).values():
        if parameters["rope_type"] == "longrope":
            limits.append(parameters["original_max_position_embeddings"])
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        limits.append(config.attention_chunk_size)
    return int(min(limits))


def _scaling(model: Any) -> float:
    """Factor on q·k before the softmax, as the layers have it."""
    found = {
        m.scaling for m in decoder_of(model).modules() if hasattr(m, "scaling") and hasattr(m, "layer_idx")
    }
    if len(found) != 1:
        raise refusal(
            f"attention scales {sorted(found)} in {type(model).__name__}, one for all layers is known"
        )
    return float(found.pop())


def _check_layers(config: Any) -> None:
    """Refuse all but attention layers with a row per token.

    Two looks: at the cache that transformers itself would build, whose exact classes show what a flag such as
    `is_linear` hides, and at the names.
    """
    names = set(getattr(config, "layer_types", None) or ())
    if names - set(LAYER_TYPES):
        raise _odd_layers(config, names - set(LAYER_TYPES))
    if "sliding_attention" in names and getattr(config, "sliding_window", None) is None:
        raise refusal(f"layers of type sliding_attention without a sliding_window in {config.model_type!r}")
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
        raise _odd_layers(config, {k.__name__ for k in kinds - {DynamicLayer, DynamicSlidingWindowLayer}})
    if getattr(config, "use_bidirectional_attention", None):
        raise refusal(
            f"use_bidirectional_attention in {config.model_type!r}: every token sees those behind it",
            do="load a generative checkpoint, not an embedding model",
        )


def _odd_layers(config: Any, named: set[str]) -> UnsupportedModel:
    return refusal(
        f"layers of type {', '.join(sorted(named))} in {config.model_type!r}",
        do="load a checkpoint with full or sliding attention on every layer",
    )


def _check_rope(config: Any, parameters: dict[str, Any]) -> None:
    rope_type = parameters.get("rope_type")
    if rope_type == "longrope" and parameters.get("original_max_position_embeddings"):
        return
    if rope_type not in FIXED_ROPES:
        raise refusal(
            f"rope type {rope_type!r} in {config.model_type!r}, whose table is not known to be fixed",
            do=f"load a checkpoint whose rope type is one of {', '.join(FIXED_ROPES)}, or longrope with its "
            "original length",
        )
