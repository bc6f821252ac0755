"""The family table and what it makes of a model: slots, bands, limits; and everything else refused by name.

That each row is right is for `tests/runtime/families` to show.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, DynamicCache, Mamba2Config

from agentkv import Engine
from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.layout import Layout, SlotSpec
from agentkv.models.families import ANY, FAMILIES, family_of, text_family_of
from agentkv.models.hf import wrap
from agentkv.models.layouts import judge, layout_of, rope_tables
from agentkv.rope import LayerRopes
from tests.family_configs import SLIDING, TEXT, VARIANTS, WRAPPERS
from tests.models import ROPES, full_precision, tiny_config, tiny_model, tiny_tokenizer
from tests.runtime.families.gates import moved, slots_of, stock, tokens
from tests.tolerances import KV, kv_error

LOADABLE = [name for name, family in FAMILIES.items() if family.status == "exact"]
OTHER = [name for name, family in FAMILIES.items() if family.status != "exact"]


def layout(model_type: str, **overrides: Any) -> Layout:
    return layout_of(tiny_model(model_type, **overrides))


def variant(name: str) -> Any:
    model_type, overrides = VARIANTS[name]
    return tiny_model(model_type, **overrides)


def ropes_of(slot: SlotSpec) -> LayerRopes:
    assert slot.rope is not None
    return slot.rope


@pytest.mark.parametrize("model_type", LOADABLE)
def test_every_row_that_loads_has_a_tiny_model(model_type: str) -> None:
    """The gates are made from the table: a row without one would go untested."""
    if FAMILIES[model_type].loads == "inside":
        assert any(FAMILIES[name].text == model_type for name in WRAPPERS)
    else:
        assert model_type in {*TEXT, *WRAPPERS}


@pytest.mark.parametrize("model_type", [n for n in LOADABLE if FAMILIES[n].loads != "inside"])
def test_the_table_says_what_a_layout_has(model_type: str) -> None:
    model = tiny_model(model_type)
    family, found = text_family_of(model.config), wrap(model).layout
    turning = [slot.name for slot in found.slots if slot.rope is not None]
    assert turning == [family.rope_slot]
    assert ropes_of(next(s for s in found.slots if s.rope)).style == family.style
    assert found.axes == family.axes
    assert found.query_heads == model.config.get_text_config().num_attention_heads
    scalings = {m.scaling for m in model.get_decoder().modules() if hasattr(m, "scaling")}
    assert scalings == {found.scaling}
    assert all(slot.features == slot.heads * slot.dim for slot in found.slots)


def test_latent_attention_keeps_content_and_rope_apart() -> None:
    content, rope = layout("deepseek_v3").slots
    assert (content.name, content.heads, content.dim, content.rope) == ("keys", 1, 20, None)
    assert (rope.name, rope.heads, rope.dim, ropes_of(rope).width) == ("values", 1, 8, 8)
    assert layout("deepseek_v3").token_bytes(torch.bfloat16) == 4 * (20 + 8) * 2


@pytest.mark.parametrize(
    ("model_type", "dim", "width", "style"),
    [("gpt_neox", 16, 4, "half"), ("glm4", 16, 8, "interleaved"), ("glm4v", 16, 8, "interleaved")],
)
def test_partial_rotary_turns_the_first_dims_only(model_type: str, dim: int, width: int, style: str) -> None:
    keys, values = layout(model_type).slots
    rope = ropes_of(keys)
    assert (keys.dim, rope.width, rope.start, rope.style) == (dim, width, 0, style)
    assert values.rope is None


@pytest.mark.parametrize(
    ("model_type", "of_layer"),
    [
        ("llama", (0, 0, 0, 0)),
        ("cohere2", (0, 0, 0, -1)),
        ("exaone4", (0, -1, 0, -1)),
        ("smollm3", (0, -1, 0, 0)),
        ("llama4_text", (0, -1, 0, 0)),
        ("gemma3_text", (1, 1, 0, 1)),
        ("gemma3", (1, 1, 0, 1)),
    ],
)
def test_layers_with_tables_of_their_own_or_none(model_type: str, of_layer: tuple[int, ...]) -> None:
    assert ropes_of(layout(model_type).slots[0]).of_layer == of_layer


def test_all_layers_of_exaone4_turn_when_none_of_them_slides() -> None:
    assert ropes_of(layout_of(variant("exaone4-full")).slots[0]).of_layer == (0, 0, 0, 0)


def test_two_thetas_are_two_tables() -> None:
    full, sliding = ropes_of(layout("gemma3_text").slots[0]).specs  # by name
    exponent = torch.arange(0, 8, 2, dtype=torch.float64) / 8
    assert torch.allclose(sliding.inv_freq, 1e4**-exponent, rtol=1e-6)
    assert torch.allclose(full.inv_freq, 1e6**-exponent / 8, rtol=1e-6)


def test_the_models_own_table_counts_not_the_one_its_config_asks_for() -> None:
    bent = tiny_model()
    bent.model.rotary_emb.inv_freq[1] *= 1.5
    spec = ropes_of(layout_of(bent).slots[0]).specs[0]
    assert torch.equal(spec.inv_freq, bent.model.rotary_emb.inv_freq.double())


def test_yarn_tables_carry_no_attention_scaling() -> None:
    """A cached key has the scaling already; tables with it would apply it twice."""
    model = tiny_model("llama", rope_parameters=dict(ROPES["yarn"]))
    assert model.model.rotary_emb.attention_scaling > 1.1
    rope = wrap(model).layout.ropes(torch.tensor([9]), torch.float64)[0]
    assert rope is not None
    assert torch.allclose(rope.cos**2 + rope.sin**2, torch.ones_like(rope.cos))


def test_bytes_of_a_token() -> None:
    assert layout("llama").token_bytes(torch.bfloat16) == 4 * 2 * 3 * 8 * 2


def test_longrope_ends_where_its_table_changes() -> None:
    """Also after a longer forward, which leaves the long table on the model."""
    model = variant("phi3-longrope")
    before = rope_tables(model)[""]
    found = layout_of(model)
    assert (found.max_positions, found.rope_type) == (2048, "longrope")
    stock(model, tokens(3), 3000)
    assert not torch.equal(model.model.rotary_emb.inv_freq, before)
    assert torch.equal(rope_tables(model)[""], before)
    with Engine.from_model(model, tiny_tokenizer()) as engine:
        assert engine.window().max_tokens == 2048
        with pytest.raises(InvalidInput, match="2049"):
            engine.window(max_tokens=2049)


def test_a_shift_across_the_end_of_the_short_table_would_show() -> None:
    """Which is why there is an end."""
    model = variant("phi3-longrope")
    found = layout_of(model)
    error = shift_error(model, found, 2000, 2100)
    assert error > 0.1
    assert shift_error(model, found, 100, 200) <= KV[torch.float64]


def shift_error(model: Any, found: Layout, here: int, there: int) -> float:
    """How far KV turned from one position to another is from KV computed there, over all slots."""
    with full_precision(model):
        _, near = stock(model, tokens(23), here)
        _, far = stock(model, tokens(23), there)
        pairs = zip(slots_of(moved(near, found, there - here)), slots_of(far), strict=True)
        return max(kv_error(a, b) for a, b in pairs)


@pytest.mark.parametrize("model_type", ["ministral3", "mistral4"])
def test_windows_end_where_the_query_scale_starts_to_grow(model_type: str) -> None:
    model = tiny_model(model_type)
    found = layout_of(model)
    assert model.config.get_text_config().max_position_embeddings == 4096
    assert found.max_positions == 1024
    assert shift_error(model, found, 500, 1024 - 23) <= KV[torch.float64]
    assert shift_error(model, found, 500, 1024) > 1e-3


def test_llama4_ends_with_its_chunk_and_with_its_scale() -> None:
    assert layout("llama4_text", attention_chunk_size=700, floor_scale=1000).max_positions == 700
    assert layout("llama4_text", attention_chunk_size=2000, floor_scale=1000).max_positions == 999


def test_layers_of_llama4_differ_beyond_a_chunk() -> None:
    """What stands at row 8 sees nothing in front of it: chunks are cut by the row, and a move would cross
    them."""
    model, ids = tiny_model("llama4_text", attention_chunk_size=8), tokens(20)
    _, whole = stock(model, ids)
    _, behind = stock(model, ids[3:])
    turned_keys = whole.layers[1].values[0, :, 3:] - behind.layers[1].values[0]
    assert float(turned_keys.abs().max()) > 1e-2
    assert layout_of(model).max_positions == 8


@pytest.mark.parametrize("model_type", OTHER)
def test_every_other_row_is_refused_with_its_reason(model_type: str) -> None:
    assert FAMILIES[model_type].reason
    with pytest.raises(UnsupportedModel) as caught:
        family_of(SimpleNamespace(model_type=model_type))
    assert FAMILIES[model_type].reason in str(caught.value)
    assert "among llama" in str(caught.value)
    assert caught.value.do


def test_the_families_that_are_refused() -> None:
    """By name: what is missing here would be loaded."""
    later = "gemma3n gemma4 qwen2_5_omni molmo2 minimax_m3_vl deepseek_v32"
    never = (
        "deepseek_v4 mamba mamba2 jamba bamba falcon_h1 qwen3_next qwen3_5 minicpmv4_6 minicpmv4_7 "
        "kimi_linear lfm2 falcon mpt bloom gptj"
    )
    assert {n for n in OTHER if FAMILIES[n].status == "later"} == set(later.split())
    assert {n for n in OTHER if FAMILIES[n].status == "refused"} == set(never.split())


@pytest.mark.parametrize("model_type", [*FAMILIES])
def test_transformers_knows_every_model_type_of_the_table(model_type: str) -> None:
    if FAMILIES[model_type].loads == "inside":
        assert any(FAMILIES[name].text == model_type for name in CONFIG_MAPPING if name in FAMILIES)
    else:
        assert model_type in CONFIG_MAPPING


@pytest.mark.parametrize("model_type", [n for n in FAMILIES if FAMILIES[n].loads == "inside"])
def test_a_text_model_of_a_wrapper_does_not_load_alone(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match="which is the text model of another"):
        family_of(SimpleNamespace(model_type=model_type))


def test_unknown_family() -> None:
    with pytest.raises(UnsupportedModel, match="'bert', which is not in the family table"):
        judge(SimpleNamespace(model_type="bert"))


@pytest.mark.parametrize("model_type", [n for n in FAMILIES if FAMILIES[n].text == ANY])
def test_a_wrapper_around_a_text_model_that_is_refused(model_type: str) -> None:
    config = tiny_config(model_type)
    config.text_config = Mamba2Config()
    with pytest.raises(UnsupportedModel, match=r"'mamba2' \(refused\): recurrent layers"):
        judge(config)


def test_recurrent_model() -> None:
    with pytest.raises(UnsupportedModel, match="recurrent layers"):
        judge(Mamba2Config())


def test_rope_that_depends_on_the_length() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = tiny_config("llama", rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match="rope type 'dynamic'"):
        judge(config)


def test_longrope_without_the_length_where_it_changes() -> None:
    config = variant("phi3-longrope").config
    del config.rope_parameters["original_max_position_embeddings"]
    with pytest.raises(UnsupportedModel, match="rope type 'longrope'"):
        judge(config)


def test_one_layer_type_with_a_rope_that_is_refused() -> None:
    config = tiny_config("gemma3_text")
    config.rope_parameters["full_attention"]["rope_type"] = "dynamic"
    with pytest.raises(UnsupportedModel, match="rope type 'dynamic'"):
        judge(config)


@pytest.mark.parametrize(
    "hidden", ["linear_attention", "hybrid", "conv", "indexed_attention", "hybrid_sliding"]
)
def test_one_layer_of_another_kind_among_full_ones(hidden: str) -> None:
    config = tiny_config("llama", sliding_window=SLIDING)
    config.layer_types = ["full_attention", hidden, "full_attention", "full_attention"]
    cache = DynamicCache(config=config)
    assert hidden not in ("hybrid", "hybrid_sliding") or not any(cache.is_linear), "it hides behind the flag"
    with pytest.raises(UnsupportedModel, match=f"layers of type {hidden}"):
        judge(config)


def test_a_layer_without_a_cache_of_its_own() -> None:
    """All names are on the list; what transformers would build is not."""
    config = tiny_config("llama")
    config.layer_types = ["full_attention"] * 4
    config.kv_sharing_modes = [None, "store", "reuse", "reuse"]
    with pytest.raises(UnsupportedModel, match="layers of type DummyLayer"):
        judge(config)


def test_a_sliding_layer_without_a_window() -> None:
    config = tiny_config("cohere2", sliding_window=None)
    with pytest.raises(UnsupportedModel, match="sliding_attention without a sliding_window"):
        judge(config)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "gemma3"])
def test_a_model_whose_tokens_all_see_each_other(model_type: str) -> None:
    config = tiny_config(model_type)
    config.get_text_config().use_bidirectional_attention = True
    with pytest.raises(UnsupportedModel, match="use_bidirectional_attention"):
        judge(config)


def test_a_model_without_a_rotary_table() -> None:
    model = tiny_model()
    del model.model.rotary_emb
    with pytest.raises(UnsupportedModel, match=r"without rotary_emb\.inv_freq on LlamaModel"):
        layout_of(model)


def test_a_model_in_training_mode_is_not_touched() -> None:
    model = tiny_model().train()
    with pytest.raises(InvalidInput, match=r"do call model.eval\(\) first"):
        wrap(model)
    assert model.training
