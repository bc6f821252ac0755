"""gemma3: the tokens of an image see each other both ways, in sliding layers inside the window only."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from agentkv.attention import Span, seeing
from agentkv.forward import own_attention
from tests.family_configs import SLIDING
from tests.runtime.cases import DTYPES
from tests.runtime.families.gates import Case, model_of, slots_of, stock, tokens
from tests.tolerances import KV, LOGITS, kv_error

COUNT = 3 * SLIDING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "images",
    [((4, 9),), ((0, 5), (11, 15)), ((3, 3 + 2 * SLIDING),)],
    ids=["one", "two", "wider than a window"],
)
def test_ranges_that_see_both_ways_are_those_of_transformers_masks(
    images: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> None:
    model, ids = model_of(Case("gemma3"), dtype), tokens(COUNT)
    types = torch.zeros(1, COUNT, dtype=torch.int64)
    for first, last in images:
        types[:, first:last] = 1
    cache, own = DynamicCache(), DynamicCache()
    positions = torch.arange(COUNT)[None]
    with torch.inference_mode():
        wanted = model(ids[None], position_ids=positions, token_type_ids=types, cache=cache).logits[0]
        with own_attention(model), seeing([Span(COUNT, COUNT, images)]):
            found = model(ids[None], position_ids=positions, cache=own).logits[0]
    assert float((found - wanted).abs().max()) <= LOGITS[dtype]
    for got, want in zip(slots_of(own), slots_of(cache), strict=True):
        assert kv_error(got, want) <= KV[dtype]
    assert float((stock(model, ids)[0] - wanted).abs().max()) > LOGITS[torch.float32]
