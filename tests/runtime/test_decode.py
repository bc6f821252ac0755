"""Answers: the tokens transformers would say, piece by piece, and what is left of them in the window."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agentkv import Engine, Window
from agentkv.decode import _TextDecoder
from agentkv.errors import Busy
from agentkv.inputs import Ids
from agentkv.sampling import Sampling
from agentkv.testing import recording_engine, rows, same_bits
from tests.runtime.cases import (
    DTYPES,
    FAMILIES,
    assert_exact,
    assert_kv,
    engine,
    ids,
    live,
    reprefilled,
    words,
)


def generated(window: Window, tokens: list[int], count: int) -> list[int]:
    """What transformers says behind the same ids, greedily and without stopping."""
    model = window.engine.loaded.model
    given = torch.tensor([tokens])
    with torch.inference_mode():
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=None,
        )
    return out[0, len(tokens) :].tolist()


def spelled(tokens: list[int]) -> str:
    return " ".join({0: "<pad>", 1: "<s>", 2: "</s>"}.get(token, f"w{token}") for token in tokens)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_answer_is_that_of_transformers(family: str, dtype: torch.dtype) -> None:
    with engine(family, dtype) as built:
        window = built.window("exact")
        window.append(words(40))
        said = window.generate(words(7, 1), max_new_tokens=16, stop=False)
        asked = [*ids(40), *ids(7, 1)]
        assert said == spelled(generated(window, [int(i) for i in asked], 16))
        assert_kv(live(window), reprefilled(window))


@pytest.mark.parametrize("first_rows", [64, 1024])
def test_an_answer_to_the_window_as_it_is(first_rows: int) -> None:
    """Nothing is left to prefill, the rows end with the window, and the answer needs room behind them."""
    with engine(first_rows=first_rows) as built:
        window = built.window("exact")
        window.append(words(64))
        window.commit()
        said = window.generate(max_new_tokens=12, stop=False)
        assert said == spelled(generated(window, ids(64).tolist(), 12))
        assert_exact(window)


def test_a_second_answer_follows_the_first() -> None:
    with engine() as built:
        window = built.window("exact")
        first = window.generate(words(9), max_new_tokens=5, stop=False)
        second = window.generate(words(4, 1), max_new_tokens=5, stop=False)
        front = [*ids(9).tolist(), *built.tokenizer(first)["input_ids"], *ids(4, 1).tolist()]
        assert second == spelled(generated(window, front, 5))
        assert window.usage.decoded == 10
        assert_exact(window)


def test_an_answer_wears_the_markers_of_its_template() -> None:
    with engine(chat=True) as built:
        window = built.window("exact")
        said = window.generate(words(6), max_new_tokens=4, stop=False)
        tokens = built.tokenizer(said)["input_ids"]
        assert window.ids().tolist() == [11, *ids(6).tolist(), 13, 12, *tokens, 13]
        assert said == spelled(generated(window, [11, *ids(6).tolist(), 13, 12], 4))
        assert [entry.handle.kind for entry in window.content.live()] == ["user", "assistant"]
        assert window.last_answer is not None
        assert window.last_answer.tokens == 1 + 4 + 1
        assert window.usage.decoded == 5
        assert_exact(window)


def test_roles_wear_their_own_markers_and_other_kinds_those_of_the_user() -> None:
    with engine(chat=True) as built:
        window = built.window("exact")
        for kind in ("system", "document", "assistant"):
            window.append("w50", kind=kind)
        window.commit()
        assert window.ids().tolist() == [10, 50, 13, 11, 50, 13, 12, 50, 13]
    with engine(chat=True, chat_template=False) as built:
        window = built.window("exact")
        window.append("w50", kind="system")
        window.commit()
        assert window.ids().tolist() == [50]


@pytest.mark.parametrize("at", [0, 1, 5])
def test_the_stop_token_ends_an_answer_and_is_not_part_of_it(at: int) -> None:
    with engine() as built:
        free = built.window("exact").generate(words(20), max_new_tokens=12, stop=False).split()
    stop = free[at]
    at = free.index(stop)
    with engine(stop=stop) as built:
        window = built.window("exact")
        said = window.generate(words(20), max_new_tokens=12)
        assert said.split() == free[:at]
        assert len(window) == 20 + at
        assert_exact(window)
        assert window.generate(words(20), max_new_tokens=1, stop=False)


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_of_one_token(chat: bool) -> None:
    with engine(chat=chat) as built:
        window = built.window("exact")
        said = window.generate(words(20), max_new_tokens=1, stop=False)
        assert len(said.split()) == 1
        assert len(window) == 21 + 4 * chat
        assert_exact(window)
        assert (window.timing.tokens, window.timing.ttft_ms > 0) == (1, True)


def test_sampling_with_a_seed_can_be_repeated() -> None:
    def said(seed: int | None, **more: Any) -> str:
        with engine() as built:
            return built.window().generate(
                words(10), max_new_tokens=12, temperature=3.0, seed=seed, stop=False, **more
            )

    assert said(1) == said(1)
    assert said(1) != said(2)
    assert said(1, top_p=0.3) == said(1, top_p=0.3)


def test_sampling_without_a_seed_cannot() -> None:
    with engine() as built:
        heated = {
            built.window().generate(words(10), max_new_tokens=12, temperature=5.0, stop=False)
            for _ in range(4)
        }
    assert len(heated) > 1


def test_sampling_leaves_the_global_generator_alone() -> None:
    with engine() as built:
        torch.manual_seed(5)
        wanted = torch.rand(3)
        torch.manual_seed(5)
        built.window().generate(words(10), max_new_tokens=3, temperature=1.0, seed=1)
        assert torch.equal(torch.rand(3), wanted)


def test_a_small_nucleus_is_greedy_and_a_large_temperature_is_not() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.9]])
    cold = Sampling(temperature=1.0, top_p=0.1, seed=0).chooser(torch.device("cpu"))
    assert {cold(logits) for _ in range(20)} == {1}
    hot = Sampling(temperature=50.0, seed=0).chooser(torch.device("cpu"))
    assert {hot(logits) for _ in range(60)} == {0, 1, 2, 3}
    half = Sampling(temperature=1.0, top_p=0.6, seed=0).chooser(torch.device("cpu"))
    assert {half(logits) for _ in range(60)} == {1, 3}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
def test_closing_early_keeps_what_was_said(chat: bool, pieces: int) -> None:
    with engine(chat=chat) as built:
        window = built.window("exact")
        window.append(words(30))
        stream = window.stream(words(5, 1), max_new_tokens=9, stop=False)
        said = "".join(next(stream) for _ in range(pieces))
        stream.close()
        assert len(said.split()) == pieces
        tail = window.ids()[-pieces - chat :].tolist()
        assert tail == [*built.tokenizer(said)["input_ids"], *([13] if chat else [])]
        assert not window.streaming
        assert_exact(window)
        window.append(words(8, 2))
        assert window.audit(attribute=False).kl <= 1e-9


def test_an_answer_may_fill_the_window_to_its_last_position() -> None:
    with engine(chat=True) as built:
        longest = built.layout.max_positions
        window = built.window()
        window.append_ids(ids(longest - 7))
        window.generate(max_new_tokens=5, stop=False)
        assert window.graph.tokens == longest


def test_no_edit_gets_in_before_an_answer_is_in_the_window() -> None:
    """It would be overwritten by what the stream puts there at its end."""
    with engine(chat=True) as built, ThreadPoolExecutor() as pool:
        window = built.window()
        window.append(words(20))
        stream, cut = window.stream(max_new_tokens=3, stop=False), window.cut_parts
        next(stream)
        late: list[Any] = []

        def cut_parts(tokens: Ids, kind: str) -> Any:
            window.cut_parts = cut  # type: ignore[method-assign]
            late.append(pool.submit(window.append, words(7, 5)).exception())
            return cut(tokens, kind)

        window.cut_parts = cut_parts  # type: ignore[method-assign]
        stream.close()
        assert isinstance(late[0], Busy)


def test_a_stream_that_is_never_read_does_nothing() -> None:
    with engine() as built:
        window = built.window("exact")
        window.append(words(10))
        stream = window.stream(words(5), max_new_tokens=4)
        stream.close()
        assert len(window) == 10
        window.append(words(3))


def test_a_caller_that_raises_while_reading_keeps_what_was_said() -> None:
    with engine() as built:
        window = built.window("exact")

        def read() -> None:
            for _ in window.stream(words(9), max_new_tokens=6, stop=False):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            read()
        assert not window.streaming
        assert len(window) == 10
        assert_exact(window)


def test_pieces_spell_the_answer() -> None:
    with engine() as built:
        pieces = list(built.window().stream(words(9), max_new_tokens=6, stop=False))
        assert len(pieces) == 6
        assert "".join(pieces) == built.window().generate(words(9), max_new_tokens=6, stop=False)


def test_an_answer_is_a_message_like_any_other() -> None:
    with engine() as built:
        window = built.window(Policy(name="balanced", kl_budget=0.0))
        old = window.append(words(40))
        window.generate(words(5, 1), max_new_tokens=6, stop=False)
        answer, shown = window.last_answer, window.ids()[-6:].tolist()
        assert answer is not None
        assert answer.kind == "assistant"
        assert answer.preview.split() == spelled(shown).split()
        window.evict(old)
        window.commit()
        assert window.ids()[-6:].tolist() == shown
        assert_exact(window)
        window.evict(answer)
        window.commit()
        window.append(words(4, 9))
        window.recall(answer)
        window.commit()
        assert window.ids()[-6:].tolist() == shown
        assert_exact(window)


def test_an_answer_survives_a_slide() -> None:
    with engine() as built:
        window = built.window("fast")
        window.append(words(40))
        window.generate(words(5, 1), max_new_tokens=6, stop=False)
        answer = window.last_answer
        before = live(window)
        assert len(window.slide(11)) == 1
        plan = window.commit()
        assert plan.tokens()["recomputed"] == 0
        assert len(window) == 11
        assert [entry.handle for entry in window.content.live()][-1] is answer
        assert same_bits(live(window), before.part(40, 51))  # the rows never moved


def test_a_later_turn_does_not_compute_the_answer_again() -> None:
    """What a decode wrote is what a prefix cache holds: the next turn starts behind it."""
    with engine() as built:
        window = built.window("exact")
        window.generate(words(20), max_new_tokens=6, stop=False)
        before = window.usage.recomputed
        window.append(words(4, 1))
        window.commit()
        assert window.usage.recomputed - before == 4
        assert_exact(window)


def test_a_long_answer_is_cut_into_chunks() -> None:
    with recording_engine() as built:
        window = built.window()
        said = window.generate(words(10), max_new_tokens=1400, stop=False)
        lengths = [chunk.length for _, chunk in window.content.live()[-1].parts]
        assert sum(lengths) == 1400
        assert len(lengths) >= 3
        assert max(lengths) <= 512
        assert [p.chunk.length for p in window.graph.placements] == [10, *lengths]
        assert rows(window.kv)[10:] == built.tokenizer(said)["input_ids"]
        window.evict(window.content.live()[-1].handle)
        window.commit()
        window.recall(window.last_answer)  # type: ignore[arg-type]
        window.commit()
        assert rows(window.kv)[10:] == built.tokenizer(said)["input_ids"]


def test_a_long_answer_is_exact_over_all_its_chunks() -> None:
    with engine() as built:
        window = built.window("exact")
        window.generate(words(10), max_new_tokens=530, stop=False)
        assert len(window.content.live()[-1].parts) >= 2
        assert_exact(window)


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_the_async_twin_says_the_same() -> None:
    with engine() as built:
        wanted = built.window().generate(words(9), max_new_tokens=5, stop=False)
        assert run(built.window().agenerate(words(9), max_new_tokens=5, stop=False)) == wanted

        async def pieces() -> list[str]:
            return [p async for p in built.window().astream(words(9), max_new_tokens=5, stop=False)]

        assert "".join(found := run(pieces())) == wanted
        assert len(found) == 5


def test_many_async_answers_share_one_worker() -> None:
    with engine() as built:

        async def all_of_them() -> list[str]:
            jobs = [built.window().agenerate(words(9, n), max_new_tokens=5, stop=False) for n in range(6)]
            return await asyncio.gather(*jobs)

        wanted = [built.window().generate(words(9, n), max_new_tokens=5, stop=False) for n in range(6)]
        assert run(all_of_them()) == wanted


def test_a_cancelled_answer_is_closed_and_kept() -> None:
    with engine() as built:
        window = built.window("exact")
        heard: list[str] = []

        async def cancel() -> None:
            async def listen() -> None:
                async for piece in window.astream(words(9), max_new_tokens=400, stop=False):
                    heard.append(piece)

            task = asyncio.create_task(listen())
            while len(heard) < 3:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(cancel())
        assert not window.streaming
        said = len(window) - 9
        assert len(heard) <= said < 400
        assert_exact(window)
        window.append(words(3))
        window.commit()


def test_leaving_an_async_loop_early_closes_the_answer() -> None:
    with engine() as built:
        window = built.window("exact")

        async def leave() -> None:
            stream = window.astream(words(9), max_new_tokens=50, stop=False)
            async for _ in stream:
                break
            with pytest.raises(Busy):
                window.append(words(3))
            await stream.aclose()  # type: ignore[attr-defined]
            window.append(words(3))

        run(leave())
        window.commit()
        assert_exact(window)


def test_async_errors_reach_the_caller() -> None:
    with engine() as built:
        window = built.window(max_tokens=20)
        with pytest.raises(Exception, match="at most 20"):
            run(window.agenerate(words(9), max_new_tokens=50))
        assert len(window) == 0


@pytest.fixture(scope="module")
def bpe() -> Any:
    from agentkv.models.embedded import ensure

    return AutoTokenizer.from_pretrained(ensure())


TEXTS = [
    "plain words, and more.",
    "naïve café — déjà vu…",
    "日本語のテキスト、漢字と仮名。",
    "🎉🎊 party 👩‍👩‍👧‍👦 family 🇫🇷 flag",
    "𝕬𝖓𝖈𝖎𝖊𝖓𝖙 𐍈 scripts ꙮ",
    " leading and trailing ",
    "newlines\n\n\tand tabs",
    "क्षत्रिय नमस्ते",
]


def pieces_of(tokenizer: Any, text: str) -> list[str]:
    decoder = _TextDecoder(tokenizer)
    found = [decoder.push(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    return [piece for piece in [*found, decoder.flush()] if piece]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_never_break_a_character(bpe: Any, text: str) -> None:
    pieces = pieces_of(bpe, text)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert all(piece.encode() for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40))
def test_pieces_spell_any_text(bpe: Any, text: str) -> None:
    pieces = pieces_of(bpe, text)
    tokens = bpe(text, add_special_tokens=False)["input_ids"]
    whole = bpe.decode(tokens)
    assert "".join(pieces) == whole
    assert "\ufffd" in whole or not any("\ufffd" in piece for piece in pieces)  # it lacks a few bytes


def test_bytes_that_end_no_character_come_out_at_the_end(bpe: Any) -> None:
    tokens = bpe("🎉", add_special_tokens=False)["input_ids"]
    assert len(tokens) > 1
    decoder = _TextDecoder(bpe)
    assert [decoder.push(token) for token in tokens[:-1]] == [""] * (len(tokens) - 1)
    assert decoder.flush() == bpe.decode(tokens[:-1])
    assert decoder.flush() == ""


def test_the_model_is_where_the_tokenizer_is(bpe: Any) -> None:
    assert Path(bpe.name_or_path).is_dir()


def test_the_embedded_model_answers_like_transformers(embedded: Any) -> None:
    """One real model, one real template."""
    with Engine(embedded, _config()) as built:
        window = built.window("exact")
        window.append("You answer briefly.", kind="system")
        pieces = list(window.stream("Say hello in French.", max_new_tokens=8, stop=False))
        window_ids = window.ids().tolist()
        said = built.tokenizer("".join(pieces), add_special_tokens=False)["input_ids"]
        tail = len(built.tokenizer(built.template.marks("assistant").tail)["input_ids"])
        front = window_ids[: len(window_ids) - 8 - tail]
        assert generated(window, front, 8) == window_ids[len(front) : len(front) + 8]
        assert built.tokenizer.decode(said) == "".join(pieces)


def _config() -> Any:
    from agentkv.config import EngineConfig

    return EngineConfig()
