"""Windows with images, edited, against transformers' own forward over the same content."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from agentkv import Engine
from agentkv.errors import AlreadyEvicted, Busy, ClosedError, InvalidInput, NothingStored, UnsupportedModel
from agentkv.store.memory import MemoryStore
from tests.models import tiny_model, tiny_tokenizer
from tests.runtime.cases import STRICT, assert_unchanged, snapshot
from tests.runtime.media.cases import (
    FAMILIES,
    TALL,
    WIDE,
)
from tests.runtime.media.windows import (
    asked,
    assert_shows,
    engine,
    forget_rows,
    ops,
    show,
)
from tests.vlm_models import picture

DTYPES = (torch.float64, torch.float32)
CASES = [
    pytest.param(family, dtype, id=f"{family}-{str(dtype)[6:]}") for family in FAMILIES for dtype in DTYPES
]


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_every_edit_of_an_image_is_a_reprefill_and_no_run_of_the_tower(
    family: str, dtype: torch.dtype
) -> None:
    with engine(family, dtype) as built:
        window = built.window(STRICT)
        window.append("abc")
        (wide,) = show(window, WIDE)
        text = window.append("defg")
        (tall,) = show(window, TALL)
        window.append("hi")
        window.commit()
        assert_shows(family, window, "abc", WIDE, "defg", TALL, "hi")
        runs = built.tower.runs
        assert runs == 2
        window.evict(wide)
        window.commit()
        assert_shows(family, window, "abc", "defg", TALL, "hi")
        window.recall(wide, before=text)
        assert "load" in ops(window.commit())
        assert_shows(family, window, "abc", WIDE, "defg", TALL, "hi")
        window.move(wide)
        window.commit()
        assert_shows(family, window, "abc", "defg", TALL, "hi", WIDE)
        window.reorder([wide, tall])
        window.commit()
        assert_shows(family, window, "abc", "defg", WIDE, "hi", TALL)
        assert built.tower.runs == runs


@pytest.mark.parametrize("family", FAMILIES)
def test_patches_carry_an_image(family: str) -> None:
    """Settled to canonical and patch, recalled; then its removal patched away. No KV of it was kept."""
    with engine(family) as built:
        window = built.window(STRICT)
        window.append("abc")
        (wide,) = show(window, WIDE)
        tail = window.append("defghijk")
        window.commit()
        window.evict(wide)
        window.commit()
        window.settle()
        forget_rows(built)
        window.recall(wide, before=tail)
        assert "apply_patch" in ops(window.commit())
        assert_shows(family, window, "abc", WIDE, "defghijk")
        assert window.learn_removal(wide) == 1
        forget_rows(built)
        window.evict(wide)
        assert "apply_removal" in ops(window.commit())
        assert_shows(family, window, "abc", "defghijk")
        assert built.tower.runs == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_may_come_first(family: str) -> None:
    with engine(family) as built:
        window = built.window(STRICT)
        (wide,) = show(window, WIDE)
        window.append("abc")
        window.commit()
        assert_shows(family, window, WIDE, "abc")
        (tall,) = show(window, TALL)
        window.move(tall, before=wide)
        window.commit()
        assert_shows(family, window, TALL, WIDE, "abc")
        window.evict(tall)
        window.evict(wide)
        window.commit()
        assert_shows(family, window, "abc")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_text_behind_another_image_is_not_mixed_up(family: str) -> None:
    """Two images of one size have the same ids: KV of the wrong one is the bug that other engines had."""
    other = picture(*WIDE.size, seed=33)
    with engine(family) as built:
        first, second = built.window(STRICT), built.window(STRICT)
        for window, image in ((first, WIDE), (second, other)):
            (shown,) = show(window, image)
            window.append("the same")
            window.commit()
            window.evict(shown)
            window.commit()
            window.recall(shown, before=window.content.live()[0].handle)
            window.commit()
        assert first.ids().tolist() == second.ids().tolist()
        assert_shows(family, first, WIDE, "the same")
        assert_shows(family, second, other, "the same")
        assert float((asked(first) - asked(second)).abs().max()) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_session_after_an_image_session_is_right(family: str) -> None:
    with engine(family) as built:
        window = built.window("exact")
        show(window, WIDE)
        window.append("ab")
        window.generate("c", max_new_tokens=3, stop=False)
        text = built.window("exact")
        text.append("only text here")
        text.commit()
        assert_shows(family, text, "only text here")
        alone = text.generate("d", max_new_tokens=6, stop=False)
    with engine(family) as fresh:
        text = fresh.window("exact")
        text.append("only text here")
        assert text.generate("d", max_new_tokens=6, stop=False) == alone


def test_features_live_as_long_as_any_window_that_shows_them() -> None:
    """Appended twice: the second window goes, and with it its handle; the first still re-prefills."""
    with engine("qwen2_vl") as built:
        first, second = built.window("exact"), built.window("exact")
        text = first.append("ab")
        show(first, WIDE)
        first.commit()
        show(second, WIDE)
        second.commit()
        second.close()
        del second
        first.evict(text)
        assert "prefill" in ops(first.commit())
        assert_shows("qwen2_vl", first, WIDE)
        assert built.tower.runs == 1


def test_a_closed_window_holds_no_images() -> None:
    """Nor does what was done with them: forks, answers, audits, idle work, a failed append."""
    with engine("qwen2_vl") as built:
        window = built.window(STRICT)
        window.append(["ab", WIDE])
        window.append(TALL)
        window.append("cd")
        window.generate(max_new_tokens=2, stop=False)
        window.audit()
        window.settle()
        window.fork().close()
        with pytest.raises(InvalidInput):
            window.append(["ab", WIDE, 5])
        held = [weakref.ref(media) for entry in window.content.live() for media in entry.media]
        assert len(held) == 2
        window.close()
        gc.collect()
        assert [media() for media in held] == [None, None]


def test_an_image_that_nobody_holds_is_asked_for_again() -> None:
    with engine("qwen2_vl") as built:
        window = built.window("exact")
        (shown,) = show(window, WIDE)
        window.commit()
        chunk = window.content.get(shown.id).parts[0][1]  # type: ignore[union-attr]
        window.close()
        del window, shown
        gc.collect()
        with pytest.raises(NothingStored, match="append the image again"):
            built.tokens(chunk.id)


def test_a_picture_that_is_refused_changes_nothing() -> None:
    with engine("qwen2_vl") as built:
        window = built.window(STRICT)
        window.append("ab")
        show(window, WIDE)
        window.commit()
        gone = window.append("gone")
        window.evict(gone)
        window.commit()
        before, held, runs = snapshot(window), built.store.keys(), built.tower.runs
        placeholder, fresh = built.tower.placeholder_ids[0], picture(40, 24, seed=50)
        for call in (
            lambda: show(window, b"no image"),
            lambda: show(window, np.zeros((0, 8, 8, 3), np.uint8)),
            lambda: show(window, picture(600, 2)),
            lambda: window.append("see <|image_pad|>"),
            lambda: window.append_ids(np.array([40, placeholder])),
            lambda: window.append(fresh, before=gone),
            lambda: window.append(fresh, before="the first"),  # type: ignore[call-overload]
            lambda: window.append(fresh, kind=5),  # type: ignore[call-overload]
            lambda: window.append(fresh, whole=True),
            lambda: window.append("text", fps=2.0),
            lambda: window.append(iter([fresh])),
            lambda: window.append([]),
            lambda: window.append([fresh] * 1000),
            lambda: window.replace(gone, fresh),  # type: ignore[arg-type]
        ):
            with pytest.raises((InvalidInput, AlreadyEvicted)):
                call()
            assert_unchanged(window, before)
        assert built.store.keys() == held
        assert built.tower.runs == runs


def test_a_closed_or_busy_window_looks_at_no_picture() -> None:
    with engine("qwen2_vl") as built:
        window = built.window(STRICT)
        window.append("ab")
        answer = window.stream(max_new_tokens=3, stop=False)
        next(answer)
        with pytest.raises(Busy):
            window.append(WIDE)
        answer.close()
        window.close()
        with pytest.raises(ClosedError):
            window.append(WIDE)
        assert built.tower.runs == 0


def test_a_text_model_shows_nothing_and_says_so() -> None:
    with Engine.from_model(tiny_model("llama"), tiny_tokenizer()) as built:
        window = built.window()
        with pytest.raises(UnsupportedModel, match="text-only"):
            show(window, WIDE)
        assert not window.content.order


@pytest.mark.parametrize("family", FAMILIES)
def test_another_process_opens_a_window_with_images_without_the_tower(family: str) -> None:
    """And one that was evicted everywhere comes back without it, when it is shown again."""
    store = MemoryStore()
    with engine(family, torch.float64, store=store) as built:
        window = built.window(STRICT)
        window.append("abc")
        show(window, WIDE)
        (tall,) = show(window, TALL)
        window.append("hi")
        window.commit()
        window.evict(tall)
        window.save("mine")
        assert built.tower.runs == 2
    for key in store.keys():  # noqa: SIM118
        if key.kind in ("rows", "conditioned", "canonical"):
            store.drop(key)
    with engine(family, torch.float64, store=store) as built:
        window = built.open("mine")
        window.commit()
        assert_shows(family, window, "abc", WIDE, "hi")
        show(window, TALL)
        window.commit()
        assert_shows(family, window, "abc", WIDE, "hi", TALL)
        assert built.tower.runs == 0
