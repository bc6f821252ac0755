"""Traps of transformers' caches and models: what springs there, and that agentkv's path does not step into
it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.llama import modeling_llama

import agentkv
from agentkv.cache import Overlay, Run
from agentkv.forward import Runner
from agentkv.kv import KVBlock
from agentkv.testing import same_bits
from tests.runtime.cases import STRICT, question_logits, words
from tests.runtime.families.gates import Case, engine_of, model_of, ours, rows, stock, tokens
from tests.tolerances import LOGITS

WIDE = torch.float64
LLAMA = Case("llama")


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_no_deprecated_name_of_the_cache_is_used() -> None:
    """`past_key_values` goes in 5.40; a forward of ours says `cache`."""
    model = model_of(LLAMA, WIDE)
    kv = rows(model, 12)
    kv.end = 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(model, kv, Run(0, tokens(9)), keep=1)
        ours(model, kv, Run(0, tokens(9)))


def test_rows_that_were_assigned_are_not_dropped() -> None:
    """A layer whose keys were assigned instead of updated has length 0, and forgets them. An overlay does
    not."""
    model, asked = model_of(LLAMA, WIDE), tokens(5, seed=1)
    wanted = stock(model, torch.cat((tokens(20), asked)))[0][20:]
    _, full = stock(model, tokens(20))
    assigned = DynamicCache(config=model.config)
    for layer, whole in zip(assigned.layers, full.layers, strict=True):
        layer.keys, layer.values = whole.keys, whole.values
    assert assigned.get_seq_length() == 0
    assert far(stock(model, asked, 20, assigned)[0], wanted) > 1e-2
    kv = rows(model, 40)
    kv.end = 20
    ours(model, kv, Run(0, tokens(20)))
    overlay = Overlay(kv, 20)
    assert overlay.get_seq_length() == 20
    assert far(Runner(model).run([Run(20, asked)], overlay, keep=5), wanted) <= LOGITS[WIDE]


def test_a_cache_grows_with_every_forward_but_what_is_stored_does_not() -> None:
    model = model_of(LLAMA, WIDE)
    _, cache = stock(model, tokens(20))
    stock(model, tokens(5, seed=1), 20, cache)
    assert cache.get_seq_length() == 25
    with engine_of(LLAMA, WIDE) as engine:
        window = engine.window(STRICT)
        window.append(words(20, 1))
        note = window.append(words(15, 2))
        window.commit()
        window.evict(note)
        window.commit()
        stored = {key: engine.store.get(key) for key in tuple(engine.store.keys())}
        kept = {key: s.entry.clone() for key, s in stored.items() if s and isinstance(s.entry, KVBlock)}
        assert kept
        for _ in range(2):
            window.recall(note)
            window.commit()
            list(window.stream("w20 w21", max_new_tokens=3))
            window.evict(note)
            window.commit()
        for key, value in kept.items():
            found = engine.store.get(key)
            assert found is not None
            assert isinstance(found.entry, KVBlock)
            assert same_bits(found.entry, value)


def test_questions_leave_no_trace_in_the_window() -> None:
    with engine_of(LLAMA, WIDE) as engine:
        window = engine.window(STRICT)
        window.append(words(20, 1))
        window.commit()
        first, second = question_logits(window), question_logits(window)
    assert torch.equal(first, second)


def test_crop_takes_a_negative_count() -> None:
    """The other sign raises; a window goes back by its own row numbers."""
    _, cache = stock(model_of(LLAMA, WIDE), tokens(20))
    with pytest.raises(ValueError, match="positive"):
        cache.crop(15)
    cache.crop(-5)
    assert cache.get_seq_length() == 15


def test_gapped_positions_are_one_text() -> None:
    """Without a cache and a mask, transformers reads a gap as the start of another text. Runs with a gap
    between them see each other here."""
    model, ids = model_of(LLAMA, WIDE), tokens(30)
    whole = stock(model, ids)[0]
    positions = torch.cat((torch.arange(10), torch.arange(20, 30)))[None]
    with torch.inference_mode():
        gapped = model(torch.cat((ids[:10], ids[20:]))[None], position_ids=positions, use_cache=False).logits[
            0
        ]
    kv = rows(model, 30)
    kv.end = 30
    ours(model, kv, Run(0, ids))
    found = ours(model, kv, Run(0, ids[:10]), Run(20, ids[20:]), keep=10)
    assert far(found, whole[20:]) <= LOGITS[WIDE]
    # In the other reading, the second half sees nothing of the first.
    alone = stock(model, ids[20:], 20)[0]
    assert far(gapped[10:], alone) <= LOGITS[WIDE]
    assert far(alone, whole[20:]) > 1e-2


def test_positions_never_come_from_the_model() -> None:
    """`rope_deltas` of an earlier image stays on the model object and shifts whoever passes no positions."""
    model, ids = model_of(Case("qwen2_vl"), WIDE), tokens(12)
    kv = rows(model, 20)
    kv.end = 20
    ours(model, kv, Run(0, ids))
    clean = ours(model, kv, Run(12, ids[:5]), keep=5)
    assert model.model.rope_deltas is None
    model.model.rope_deltas = torch.tensor([[50]])
    try:
        assert torch.equal(ours(model, kv, Run(12, ids[:5]), keep=5), clean)
    finally:
        model.model.rope_deltas = None


@pytest.mark.parametrize("keep", [0, 1])
def test_every_forward_has_explicit_positions(monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    model, passed = model_of(LLAMA, WIDE), []
    body = model.model.forward

    def spy(*args: Any, **kwargs: Any) -> Any:
        passed.append(kwargs["position_ids"].tolist())
        return body(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", spy)
    kv = rows(model, 20)
    kv.start, kv.end = 3, 20
    for slot in kv.slots:
        slot.zero_()
    ours(model, kv, Run(3, tokens(4)), Run(11, tokens(2)), keep=keep)
    assert passed == [[[3, 4, 5, 6, 11, 12]]]


def test_rotary_functions_stay_transformers_own() -> None:
    """A hub kernel may take their place: whoever patches them would not be called."""
    before = modeling_llama.apply_rotary_pos_emb
    with engine_of(LLAMA, WIDE) as engine:
        window = engine.window(STRICT)
        window.append(words(9, 1))
        window.commit()
        assert modeling_llama.apply_rotary_pos_emb is before
    assert before.__module__ == modeling_llama.__name__


def test_our_kernels_do_not_shadow_those_of_transformers() -> None:
    """With an `__init__.py` in kernels/, transformers would import it as its package `kernels`."""
    root = Path(agentkv.__file__).parent.parent
    if not (root / "kernels").is_dir():
        pytest.skip("an installed package has no kernels/ beside it")
    assert not (root / "kernels" / "__init__.py").exists()
