"""Every family: our forward is transformers', and a cache moved by R(δ) is that of the shifted run."""

from __future__ import annotations

import pytest
import torch

from agentkv.cache import Run
from agentkv.models.hf import wrap
from tests.runtime.families.gates import (
    CASES,
    SHIFT,
    Case,
    model_of,
    moved,
    ours,
    rows,
    slots_of,
    stock,
    tokens,
)
from tests.tolerances import KV, LOGITS, kv_error

FIRST, COUNT = 7, 41

pytestmark = pytest.mark.parametrize(("case", "dtype"), CASES)


def test_our_forward_over_live_rows_is_the_eager_one(case: Case, dtype: torch.dtype) -> None:
    """Two forwards, the second of two runs; the sliding windows are shorter than the text."""
    model = model_of(case, dtype)
    layout, ids = wrap(model).layout, tokens(COUNT)
    wanted, cache = stock(model, ids, FIRST)
    kv = rows(model, FIRST + COUNT + 3)
    kv.start, kv.end = FIRST, FIRST + COUNT
    early = ours(model, kv, Run(FIRST, ids[:20]), keep=20)
    late = ours(model, kv, Run(27, ids[20:29]), Run(36, ids[29:]), keep=COUNT - 20)
    assert float((torch.cat((early, late)) - wanted).abs().max()) <= LOGITS[dtype]
    for slot, found, want in zip(layout.slots, kv.slots, slots_of(cache), strict=True):
        assert want.shape == (layout.layers, COUNT, slot.heads, slot.dim)
        assert kv_error(found[:, FIRST : kv.end], want) <= KV[dtype]


def test_a_moved_cache_is_that_of_the_shifted_run(case: Case, dtype: torch.dtype) -> None:
    model = model_of(case, dtype)
    layout, ids = wrap(model).layout, tokens(COUNT)
    _, here = stock(model, ids, FIRST)
    _, there = stock(model, ids, FIRST + SHIFT)
    shifted = moved(here, layout, SHIFT)
    for slot, found, before, want in zip(
        layout.slots, slots_of(shifted), slots_of(here), slots_of(there), strict=True
    ):
        assert kv_error(found, want) <= KV[dtype]
        if slot.rope is not None:
            assert kv_error(before, want) > 1e-2, "the shift does not show: this would pass without turning"
            still = [layer for layer, index in enumerate(slot.rope.of_layer) if index < 0]
            assert all(kv_error(before[layer], want[layer]) <= KV[dtype] for layer in still)
    asked = tokens(6, seed=1)
    wanted = stock(model, torch.cat((ids, asked)), FIRST)[0][COUNT:]
    found = stock(model, asked, FIRST + COUNT + SHIFT, shifted)[0]
    assert float((found - wanted).abs().max()) <= LOGITS[dtype]
