"""Windows with images and videos, edited, against transformers' own forward over the same content."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.plan import Plan

from agentkv import Engine, Window
from agentkv.errors import InvalidInput, NothingStored, UnsupportedModel
from agentkv.handles import Handle
from agentkv.vision import Video
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import FULL, STRICT, assert_unchanged, snapshot, trusting
from tests.runtime.media.cases import (
    FAMILIES,
    GRIDDED,
    TALL,
    WIDE,
    Patches,
    Rig,
    block_ids,
    laid_out,
    our_logits,
    rig,
)
from tests.tolerances import LOGITS
from tests.vlm_models import picture

QUESTION = "what?"
DTYPES = (torch.float64, torch.float32)
CASES = [
    pytest.param(family, dtype, id=f"{family}-{str(dtype)[6:]}") for family in FAMILIES for dtype in DTYPES
]


@contextmanager
def engine(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Iterator[Engine]:
    """An engine over the shared model, whose patches are of full rank and trusted."""
    found = rig(family, dtype)
    given = {"patch_rank": FULL, "patch_dtype": "model", **settings}
    with (
        full_precision(found.model),
        Engine.from_model(
            found.model, found.processor.tokenizer, processor=found.processor, costs=trusting(), **given
        ) as built,
    ):
        yield built


def asked(window: Window) -> torch.Tensor:
    """Logits [5, vocab] of a question behind the window; the window is left alone."""
    fork = window.fork()
    fork.append(QUESTION)
    fork.commit(keep=len(QUESTION))
    logits = fork.last_outcome.logits
    fork.close()
    assert logits is not None
    return logits


def true_logits(family: str, window: Window, parts: list[Any], **settings: Any) -> torch.Tensor:
    """The same question behind ``parts``, by transformers from position 0."""
    base = rig(family, window.kv.dtype)
    found = Rig(base.model, base.processor, window.engine.tower)
    pieces = laid_out(found, [*parts, QUESTION], **settings)
    return our_logits(found, family, pieces, **block_ids(pieces))[-len(QUESTION) :]


def assert_shows(family: str, window: Window, *parts: Any) -> None:
    """The window answers as transformers does behind this content."""
    error = (asked(window) - true_logits(family, window, list(parts))).abs().max()
    assert float(error) <= LOGITS[window.kv.dtype]


def show(window: Window, source: Any, **settings: Any) -> list[Handle]:
    """Append an image, or a video: a handle for each message it became."""
    found = window.append(source, **settings)
    return list(found) if isinstance(found, tuple) else [found]


def forget_rows(engine: Engine) -> None:
    """Drop all stored KV but canonicals and patches, so that the plan has to take these."""
    for key in engine.store.keys():  # noqa: SIM118
        if key.kind == "conditioned":
            engine.store.drop(key)


def ops(plan: Plan) -> set[str]:
    return {op.op for op in plan.ops}


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


FILM = [picture(16, 16, seed) for seed in range(6)]


@pytest.mark.parametrize("family", [*GRIDDED, "internvl", "smolvlm", "llava_onevision"])
def test_frames_of_a_video_leave_one_by_one(family: str) -> None:
    """Checked against the pieces that are left, laid out one behind the other."""
    film = Video(FILM if family in GRIDDED else [picture(32, 32, seed) for seed in range(3)], fps=2.0)
    with engine(family) as built:
        window = built.window(STRICT)
        window.append("ab")
        handles = show(window, film)
        window.append("cd")
        window.commit()
        assert_shows(family, window, "ab", film, "cd")
        base = rig(family)
        found = Rig(base.model, base.processor, built.tower)
        pieces = laid_out(found, ["ab", film, "cd", QUESTION])
        chunks = [(piece.ids, piece.media) for piece in pieces]
        frames = [handle for handle, (_, media) in zip(handles, chunks[1:], strict=False) if media]
        for frame in (frames[1], frames[0]):
            window.evict(frame)
            window.commit()
            del chunks[1 + handles.index(frame)]
            handles.remove(frame)
            left, position = [], 0
            for ids, media in chunks:
                left.append(pieces[0]._replace(ids=ids, media=media, position=position))
                position += left[-1].span
            wanted = our_logits(found, family, left)[-len(QUESTION) :]
            assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]
        assert built.tower.runs == 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_whole_video_is_one_chunk(family: str) -> None:
    film = Video(FILM, fps=2.0)
    with engine(family) as built:
        window = built.window(STRICT)
        window.append("abc")
        (handle,) = show(window, film, whole=True)
        window.append("de")
        window.commit()
        wanted = true_logits(family, window, ["abc", film, "de"], whole=True)
        assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]
        window.move(handle)
        window.commit()
        wanted = true_logits(family, window, ["abc", "de", film], whole=True)
        assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]


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
        before, held = snapshot(window), built.store.keys()
        placeholder = built.tower.placeholder_ids[0]
        for call in (
            lambda: show(window, b"no image"),
            lambda: show(window, np.zeros((0, 8, 8, 3), np.uint8)),
            lambda: show(window, picture(600, 2)),
            lambda: window.append("see <|image_pad|>"),
            lambda: window.append_ids(np.array([40, placeholder])),
        ):
            with pytest.raises(InvalidInput):
                call()
            assert_unchanged(window, before)
        assert built.store.keys() == held


def test_a_text_model_shows_nothing_and_says_so() -> None:
    with Engine.from_model(tiny_model("llama"), tiny_tokenizer()) as built:
        window = built.window()
        with pytest.raises(UnsupportedModel, match="text-only"):
            show(window, WIDE)
        assert not window.content.order


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_behind_an_image_is_the_greedy_one(family: str) -> None:
    """The window ends with an image, which has to run again as a whole for its last logits."""
    with engine(family) as built:
        window = built.window("exact")
        window.append("ab")
        window.append(WIDE)
        window.commit()
        runs = built.tower.runs
        window.generate(max_new_tokens=4, stop=False)
        said = window.ids()[-4:].tolist()
        base = rig(family)
        pieces = laid_out(Rig(base.model, base.processor, built.tower), ["ab", WIDE])
        for token in said:
            logits = our_logits(base, family, pieces, **block_ids(pieces))[-1]
            assert int(logits.argmax()) == token
            end = pieces[-1].position + pieces[-1].span
            pieces.append(pieces[0]._replace(ids=torch.tensor([token]), position=end))
        assert built.tower.runs == runs


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "gemma3", "internvl"])
def test_other_edits_take_images_as_they_take_text(family: str) -> None:
    with engine(family) as built:
        window = built.window(STRICT)
        head = window.append("head", pin=True)
        wide, tall = window.append(WIDE), window.append(TALL)
        window.append(["see ", WIDE, " there"])
        window.commit()
        assert_shows(family, window, "head", WIDE, TALL, "see ", WIDE, " there")
        assert window.audit(attribute=False).kl <= LOGITS[torch.float64]
        fork = window.fork()
        fork.evict(wide)
        fork.commit()
        assert_shows(family, fork, "head", TALL, "see ", WIDE, " there")
        assert window.slide(len(window) - 1) == [wide]
        window.commit()
        assert_shows(family, window, "head", TALL, "see ", WIDE, " there")
        window.clean_view(tall)
        window.commit()
        window.clean_view(tall, on=False)
        window.commit()
        assert_shows(family, window, "head", TALL, "see ", WIDE, " there")
        with pytest.raises(InvalidInput, match="shows an image"):
            window.replace(tall, "text")
        assert [entry.handle for entry in window.content.live()][:2] == [head, tall]
        assert built.tower.runs == 2


def test_a_text_model_with_an_adapter_sees() -> None:
    """Embeddings in place of placeholders, through every edit, against transformers' inputs_embeds."""
    adapter, model = Patches(), tiny_model("llama")
    with (
        full_precision(model),
        Engine.from_model(
            model, tiny_tokenizer(), vision=adapter, patch_rank=FULL, patch_dtype="model", costs=trusting()
        ) as built,
    ):
        window = built.window(STRICT)
        window.append("w5 w6 w7")
        shown = window.append(WIDE)
        window.append("w8 w9")
        window.commit()
        window.evict(shown)
        window.commit()
        window.recall(shown)
        window.append("w4")
        window.commit(keep=1)
        table = model.get_input_embeddings().weight
        embedded = torch.cat([table[[5, 6, 7, 8, 9]], adapter.encode(WIDE), table[[4]]])
        with torch.inference_mode():
            truth = model(inputs_embeds=embedded[None]).logits[0, -1:]
        found = window.last_outcome.logits
        assert found is not None
        assert float((found - truth).abs().max()) <= LOGITS[torch.float64]
        assert built.tower.runs == 1
        with pytest.raises(InvalidInput, match="placeholder"):
            window.append("w96")
