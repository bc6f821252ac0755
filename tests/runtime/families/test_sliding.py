"""Sliding layers: the live rows keep what has slid out, so that it can slide back in."""

from __future__ import annotations

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from transformers import DynamicCache

from tests.family_configs import SLIDING
from tests.runtime.cases import live, question_logits, words
from tests.runtime.families.gates import ROWS, Case, engine_of, model_of, stock, tokens
from tests.tolerances import LOGITS

WIDE = torch.float64
SLIDERS = [
    pytest.param(case, id=case.name)
    for case in ROWS
    if getattr(model_of(case, WIDE).config.get_text_config(), "sliding_window", None)
]


def test_there_are_families_with_sliding_layers() -> None:
    assert {"mistral", "qwen2", "cohere2", "gemma2", "gemma3", "gpt_oss"} <= {p.id for p in SLIDERS}


@pytest.mark.parametrize("case", SLIDERS)
def test_words_slide_back_in_when_what_hid_them_leaves(case: Case) -> None:
    """The truth: transformers over a cache that keeps all rows, filled with the rows that are left."""
    with engine_of(case, WIDE) as engine:
        window = engine.window(Policy(name="fast"))
        window.append(words(SLIDING + 6, 1))
        gone = window.append(words(2 * SLIDING, 2))
        window.append(words(5, 3))
        window.commit()
        hidden = question_logits(window, 9)
        window.evict(gone)
        window.commit()
        block, cache = live(window), DynamicCache()
        for layer, (keys, values) in enumerate(zip(*block.slots, strict=True)):
            cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], layer)
        wanted = stock(engine.loaded.model, tokens(9, seed=77), window.kv.end, cache)[0]
        found = question_logits(window, 9)
    assert float((found - wanted).abs().max()) <= LOGITS[WIDE]
    assert float((found - hidden).abs().max()) > LOGITS[torch.float32]


def test_a_cache_built_from_the_config_forgets_what_slid_out() -> None:
    """Which is why the live rows are laid out as a cache without a config has them."""
    model = model_of(Case("mistral"), WIDE)
    short, whole = DynamicCache(config=model.config), DynamicCache()
    for cache in (short, whole):
        stock(model, tokens(41), 0, cache)
    assert short.layers[0].keys.shape[-2] == SLIDING - 1
    assert whole.layers[0].keys.shape[-2] == 41
    asked = tokens(6, seed=1)
    same = stock(model, asked, 41, short)[0] - stock(model, asked, 41, whole)[0]
    assert float(same.abs().max()) <= LOGITS[WIDE]
