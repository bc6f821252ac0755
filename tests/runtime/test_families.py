"""Every family that loads passes the shift gates; everything else is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Mamba2Config

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.layout import Layout
from agentkv.models.families import FAMILIES, config_frequencies, family_of, layout_of
from agentkv.models.hf import wrap
from tests.models import ROPES, VOCAB, full_precision, tiny_config, tiny_model
from tests.tolerances import KV, LOGITS, kv_error

EXACT = [name for name, family in FAMILIES.items() if family.status == "exact"]
OTHER = [name for name, family in FAMILIES.items() if family.status != "exact"]
CASES = [pytest.param(name, {}, id=name) for name in EXACT] + [
    pytest.param("llama", {"rope_parameters": dict(rope)}, id=f"llama-{name}") for name, rope in ROPES.items()
]
SHIFT = 1234


def ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, (1, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def run(model: Any, tokens: Tensor, first: int, cache: DynamicCache) -> Tensor:
    """Logits [T, vocab] of tokens [1, T] at positions first.., behind what the cache holds."""
    positions = torch.arange(first, first + tokens.shape[1])[None]
    return model(tokens, position_ids=positions, cache=cache, use_cache=True).logits[0]


def moved(keys: Tensor, layout: Layout, delta: int) -> Tensor:
    """Keys [1, H, T, D] turned by `delta`, with complex numbers: independent of the kernels."""
    slot = layout.slots[0]
    assert slot.rope is not None
    spec = slot.rope.specs[0]
    half = spec.width // 2
    band = keys[..., spec.start : spec.start + spec.width].double()
    turn = torch.polar(torch.ones(half, dtype=torch.float64), delta * spec.inv_freq)
    turned = torch.complex(band[..., :half], band[..., half:]) * turn
    result = keys.clone()
    result[..., spec.start : spec.start + spec.width] = torch.cat((turned.real, turned.imag), -1).to(
        keys.dtype
    )
    return result


@pytest.mark.parametrize(("model_type", "overrides"), CASES)
def test_shape_of_the_cache(model_type: str, overrides: dict[str, Any]) -> None:
    model = tiny_model(model_type, **overrides)
    layout, cache = wrap(model).layout, DynamicCache()
    run(model, ids(5), 0, cache)
    assert len(cache.layers) == layout.layers
    for slot, tensor in zip(layout.slots, (cache.layers[0].keys, cache.layers[0].values), strict=True):
        assert tensor.shape == (1, slot.heads, 5, slot.dim)
        assert slot.features == slot.heads * slot.dim
    assert layout.query_heads == model.config.num_attention_heads
    scalings = {module.scaling for module in model.modules() if hasattr(module, "scaling")}
    assert scalings == {layout.scaling}


@pytest.mark.parametrize(("model_type", "overrides"), CASES)
@pytest.mark.parametrize("delta", [SHIFT, -17])
def test_rotated_keys_are_the_keys_of_the_shifted_run(
    model_type: str, overrides: dict[str, Any], delta: int
) -> None:
    model = tiny_model(model_type, **overrides)
    layout, here, there = wrap(model).layout, DynamicCache(), DynamicCache()
    with full_precision(model):
        run(model, ids(23), 100, here)
        run(model, ids(23), 100 + delta, there)
    for layer in range(layout.layers):
        keys = moved(here.layers[layer].keys, layout, delta)
        assert kv_error(keys, there.layers[layer].keys) <= KV[torch.float64]
        assert kv_error(here.layers[layer].values, there.layers[layer].values) <= KV[torch.float64]
    unmoved = kv_error(here.layers[0].keys, there.layers[0].keys)
    assert unmoved > 1e-2, "the shift does not show in the keys: this gate would pass without rotating"


@pytest.mark.parametrize(("model_type", "overrides"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_logits_behind_a_moved_cache(model_type: str, overrides: dict[str, Any], dtype: torch.dtype) -> None:
    model = tiny_model(model_type, dtype=dtype, **overrides)
    layout, cache, shifted = wrap(model).layout, DynamicCache(), DynamicCache()
    with full_precision(model):
        want = run(model, torch.cat((ids(23), ids(6, seed=1)), 1), 0, DynamicCache())[23:]
        run(model, ids(23), 0, cache)
        for index, layer in enumerate(cache.layers):
            shifted.update(moved(layer.keys, layout, SHIFT), layer.values, index)
        got = run(model, ids(6, seed=1), SHIFT + 23, shifted)
    assert (got - want).abs().max() <= LOGITS[dtype]


@pytest.mark.parametrize(("model_type", "overrides"), CASES)
def test_model_and_config_agree_on_the_frequencies(model_type: str, overrides: dict[str, Any]) -> None:
    config = tiny_config(model_type, **overrides)
    slot = wrap(tiny_model(model_type, **overrides)).layout.slots[0]
    assert slot.rope is not None
    table = slot.rope.specs[0].inv_freq
    assert torch.allclose(table, config_frequencies(config), rtol=1e-6, atol=0)
    from_config = layout_of(config).slots[0].rope
    assert from_config is not None
    assert from_config.width == slot.rope.width == 2 * len(table)


def test_partial_rotary_turns_the_first_dims_only() -> None:
    slot = layout_of(tiny_config("gpt_neox")).slots[0]
    assert slot.rope is not None
    assert (slot.dim, slot.rope.width, slot.rope.start) == (16, 4, 0)


def test_yarn_tables_carry_no_attention_scaling() -> None:
    """A cached key has the scaling already; tables with it would apply it twice."""
    model = tiny_model("llama", rope_parameters=dict(ROPES["yarn"]))
    assert model.model.rotary_emb.attention_scaling > 1.1
    rope = wrap(model).layout.ropes(torch.tensor([9]), torch.float64)[0]
    assert rope is not None
    assert torch.allclose(rope.cos**2 + rope.sin**2, torch.ones_like(rope.cos))


def test_bytes_of_a_token() -> None:
    assert layout_of(tiny_config("llama")).token_bytes(torch.bfloat16) == 4 * 2 * 3 * 8 * 2


def test_values_do_not_turn() -> None:
    keys, values = layout_of(tiny_config("qwen3")).ropes(torch.tensor([1]))
    assert keys is not None
    assert values is None


@pytest.mark.parametrize("model_type", OTHER)
def test_every_other_row_is_refused_with_its_reason(model_type: str) -> None:
    assert FAMILIES[model_type].reason
    with pytest.raises(UnsupportedModel) as caught:
        family_of(SimpleNamespace(model_type=model_type))
    assert FAMILIES[model_type].reason in str(caught.value)
    assert "among llama" in str(caught.value)
    assert caught.value.do


def test_unknown_family() -> None:
    with pytest.raises(UnsupportedModel, match="'bert', which is not in the family table"):
        layout_of(SimpleNamespace(model_type="bert"))


def test_recurrent_model() -> None:
    with pytest.raises(UnsupportedModel, match="recurrent layers"):
        layout_of(Mamba2Config())


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = tiny_config("llama", rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match=f"rope type '{rope_type}'"):
        layout_of(config)


def test_sliding_window() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mistral' \(sliding_window=32\)"):
        layout_of(tiny_config("mistral", sliding_window=32))


def test_sliding_layers_among_full_ones() -> None:
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=2)
    with pytest.raises(UnsupportedModel, match="layers of type sliding_attention"):
        layout_of(config)


def test_one_recurrent_layer_among_full_ones() -> None:
    config = tiny_config("llama")
    config.layer_types = ["full_attention", "linear_attention", "full_attention", "full_attention"]
    with pytest.raises(UnsupportedModel, match="layers of type linear_attention"):
        layout_of(config)


def test_a_model_in_training_mode_is_not_touched() -> None:
    model = tiny_model().train()
    with pytest.raises(InvalidInput, match=r"do call model.eval\(\) first"):
        wrap(model)
    assert model.training
