"""Windows, forks, the store and threads: nobody sees what another does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings

from agentkv import Engine, Handle, Window
from agentkv.errors import AgentKVError, AlreadyEvicted, Busy, ForeignChunk, InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import Key, Note, residency
from agentkv.store.memory import MemoryStore
from agentkv.testing import kv_block, same_bits
from tests.runtime.cases import STRICT, assert_exact, engine, ids, live, question_logits, words
from tests.runtime.script import Edit, Script, scripts

FAST = Policy(name="fast")


@pytest.fixture
def built() -> Iterator[Engine]:
    with engine() as built:
        yield built


def filled(built: Engine, policy: str | Policy = "exact") -> tuple[Window, list[Handle]]:
    window = built.window(policy)
    handles = [window.append(words(20 + seed, seed)) for seed in range(3)]
    window.commit()
    return window, handles


def test_windows_of_one_engine_do_not_see_each_other(built: Engine) -> None:
    window, _ = filled(built)
    other, theirs = filled(built)
    before, logits = live(window), question_logits(window)
    other.evict(theirs[0])
    other.append(words(33, 8))
    other.generate(words(4), max_new_tokens=3)
    assert same_bits(live(window), before)
    assert torch.equal(question_logits(window), logits)
    assert window.commit().tokens()["reused"] == len(window)


def test_the_same_words_in_two_windows_are_one_chunk(built: Engine) -> None:
    window, _ = filled(built)
    other, _ = filled(built)
    assert [p.chunk.id for p in window.graph.placements] == [p.chunk.id for p in other.graph.placements]
    assert not {p.uid for p in window.graph.placements} & {p.uid for p in other.graph.placements}


def test_another_model_gives_the_same_words_another_chunk(built: Engine) -> None:
    window, _ = filled(built)
    with engine("qwen3") as qwen, engine(dtype=torch.float32) as narrow, engine(sink_text="w9") as sunk:
        ids_of = {p.chunk.id for p in window.graph.placements}
        for other in (qwen, narrow, sunk):
            theirs, _ = filled(other)
            assert not ids_of & {p.chunk.id for p in theirs.graph.placements}


def test_long_text_is_cut_where_its_content_says(built: Engine) -> None:
    """A few words in front move no cut but the first ones: the rest are the same chunks."""
    text = words(900, 5)
    first, second = built.window(), built.window()
    a, b = first.append(text), second.append(f"w20 w21 w22 {text}")
    parts = [
        [chunk.id for _, chunk in window.content.live()[0].parts] for window, _ in ((first, a), (second, b))
    ]
    assert len(parts[0]) > 3
    assert parts[0][-2:] == parts[1][-2:]
    assert parts[0][0] != parts[1][0]


EDITS: dict[str, Callable[[Window, list[Handle]], object]] = {
    "append": lambda w, h: w.append(words(30, 9)),
    "evict the first": lambda w, h: w.evict(h[0]),
    "evict the last": lambda w, h: w.evict(h[2]),
    "reorder": lambda w, h: w.reorder([h[2], h[0], h[1]]),
    "replace": lambda w, h: w.replace(h[1], words(9, 4)),
    "clean view": lambda w, h: w.clean_view(h[1]),
    "answer a prompt": lambda w, h: w.generate(words(3), max_new_tokens=4, stop=False),
    "answer": lambda w, h: w.generate(max_new_tokens=4, stop=False),
    "close": lambda w, h: w.close(),
}


@pytest.mark.parametrize("policy", [Policy(name="exact"), FAST], ids=lambda p: p.name)
@pytest.mark.parametrize("writer", [0, 1], ids=["parent", "fork"])
@pytest.mark.parametrize("name", EDITS)
def test_a_fork_keeps_its_rows_when_the_other_side_changes(
    name: str, writer: int, policy: Policy, built: Engine
) -> None:
    window, handles = filled(built, policy)
    pair = [window, window.fork()]
    assert pair[0].kv.slots[0].data_ptr() == pair[1].kv.slots[0].data_ptr()
    reader, before, logits = pair[1 - writer], live(window), question_logits(window)
    EDITS[name](pair[writer], handles)
    if name != "close":
        pair[writer].commit()
    assert same_bits(live(reader), before)
    assert torch.equal(question_logits(reader), logits)
    reader.append(words(5, 6))
    reader.commit()
    assert_exact(reader)
    if policy.name == "exact" and name not in ("close", "clean view"):
        assert_exact(pair[writer])


def test_both_sides_of_a_fork_answer_without_a_prompt(built: Engine) -> None:
    """Nothing is prefilled, so nothing but the answers is written: into rows of their own."""
    window, _ = filled(built)
    twin = window.fork()
    first = window.generate(max_new_tokens=5, stop=False)
    kept = live(window)
    twin.generate(max_new_tokens=5, stop=False, temperature=5.0, seed=3)
    assert same_bits(live(window), kept)
    assert_exact(window)
    assert_exact(twin)
    assert twin.ids()[-5:].tolist() != window.ids()[-5:].tolist()
    assert first


def test_a_fork_in_the_middle_of_an_answer_lacks_it_and_after_it_shares_it(built: Engine) -> None:
    window, _ = filled(built)
    stream = window.stream(words(3), max_new_tokens=4, stop=False)
    next(stream)
    early = window.fork()
    asked = early.ids().tolist()
    list(stream)
    assert window.ids().tolist()[: len(asked)] == asked
    assert early.ids().tolist() == asked
    early.append(words(4, 8))
    early.commit()
    assert_exact(early)
    twin = window.fork()
    assert twin.last_answer is window.last_answer
    assert window.last_answer is not None
    twin.evict(window.last_answer)
    twin.commit()
    assert_exact(window)
    assert_exact(twin)


def test_many_forks_of_forks_stay_apart(built: Engine) -> None:
    """One buffer, five holders; each writes in turn."""
    window, _ = filled(built)
    family = [window, window.fork(), window.fork()]
    family += [family[1].fork(), family[2].fork()]
    for turn, member in enumerate(family):
        member.append(words(4 + turn, turn))
        member.commit()
    assert len({member.kv.slots[0].data_ptr() for member in family}) == 5
    for turn, member in enumerate(family):
        assert len(member) == len(family[0]) + turn
        assert_exact(member)


def test_the_last_holder_of_shared_rows_copies_nothing(built: Engine) -> None:
    window, _ = filled(built)
    twin, at = window.fork(), window.kv.slots[0].data_ptr()
    twin.close()
    window.append(words(4))
    window.commit()
    assert window.kv.slots[0].data_ptr() == at


def test_handles_known_before_a_fork_work_on_both_sides_and_later_ones_on_one(built: Engine) -> None:
    window, handles = filled(built)
    twin = window.fork()
    twin.evict(handles[1])
    window.move(handles[1])
    new = twin.append(words(5))
    for side in (window, twin):
        side.commit()
    with pytest.raises(ForeignChunk):
        window.evict(new)
    assert twin.recall(handles[1]) is handles[1]


@settings(max_examples=10, deadline=None)
@given(script=scripts(most=10), other=scripts(most=6))
def test_forks_are_exact_whatever_the_other_side_does(script: list[Edit], other: list[Edit]) -> None:
    with engine() as built:
        player = Script(built.window("exact"))
        player.one(("append", 2, 0))
        player.play(script)
        twin = player.window.fork()
        text, shown = player.text, twin.ids().tolist()
        player.forks.append((twin, text))
        player.play(other)
        player.window.commit()
        assert twin.ids().tolist() == shown
        for window, wanted in player.forks:
            assert window.ids().tolist() == built.tokenizer(wanted)["input_ids"]
            if len(window):
                assert_exact(window)


def stored_block(built: Engine, key: Key) -> KVBlock:
    found = built.store.get(key)
    assert found is not None
    assert isinstance(found.entry, KVBlock)
    return found.entry


def test_stored_kv_is_not_the_live_rows(built: Engine) -> None:
    window, handles = filled(built, STRICT)
    window.evict(handles[2])
    window.commit()
    key = Key("conditioned", window.content.get(handles[2].id).parts[0][1].id)  # type: ignore[union-attr]
    (key,) = [k for k in built.store.keys() if k.chunk == key.chunk]  # noqa: SIM118
    block = stored_block(built, key)
    stored = block.clone()
    for slot in window.kv.slots:
        slot.fill_(7.0)
    assert same_bits(block, stored)


def test_live_rows_are_not_the_stored_kv(built: Engine) -> None:
    """After a recall the window edits its rows; what is stored must serve the next recall as well."""
    window, handles = filled(built, STRICT)
    window.evict(handles[2])
    window.commit()
    copies = {
        key: stored_block(built, key).clone()
        for key in built.store.keys()  # noqa: SIM118
        if key.kind == "conditioned"
    }
    assert copies
    window.recall(handles[2])
    window.commit()
    window.kv.slots[0].fill_(7.0)
    for key, copy in copies.items():
        assert same_bits(stored_block(built, key), copy)


def test_what_one_window_conditioned_serves_no_other_context(built: Engine) -> None:
    """A private message in front of a shared document must not reach the KV of others."""
    private = built.window(STRICT)
    private.append(words(30, 70))
    document = private.append(words(40, 1))
    private.commit()
    private.evict(document)
    private.commit()
    private.settle()
    public = built.window(STRICT)
    public.append(words(30, 71))
    public.append(words(40, 1))
    assert public.commit().tokens()["recomputed"] == 70
    assert_exact(public)


def alone(work: Callable[[Window, int], str], seed: int) -> str:
    with engine() as built:
        return work(built.window("balanced"), seed)


def agent(window: Window, seed: int) -> str:
    """A small session: answers, evictions, a recall, idle work. No two share a text, which may be stored."""
    window.append(words(12, 300 + seed), kind="system", pin=True)
    said, notes = [], []
    for turn in range(3):
        notes.append(window.append(words(15 + turn, 200 + 10 * seed + turn)))
        said.append(window.generate(words(4, 400 + 10 * seed + turn), max_new_tokens=4, stop=False))
        if turn == 1:
            window.evict(notes[0])
            window.settle()
    window.recall(notes[0])
    return " | ".join([*said, window.generate(max_new_tokens=3, stop=False)])


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results by number; an error is a result, too."""
    found: list[Any] = [None] * count
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_with_windows_of_their_own_answer_as_if_alone(built: Engine) -> None:
    windows = [built.window("balanced") for _ in range(5)]
    found = in_threads(5, lambda seed: agent(windows[seed], seed))
    assert found == [alone(agent, seed) for seed in range(5)]


def test_forks_in_threads_answer_as_if_alone(built: Engine) -> None:
    window, _ = filled(built)
    twins = [window.fork() for _ in range(5)]

    def branch(number: int) -> str:
        twins[number].append(words(10 + number, number))
        return twins[number].generate(words(3), max_new_tokens=4, stop=False)

    found = in_threads(5, branch)
    for number in range(5):
        with engine() as fresh:
            single, _ = filled(fresh)
            single.append(words(10 + number, number))
            assert found[number] == single.generate(words(3), max_new_tokens=4, stop=False)
    for twin in twins:
        assert_exact(twin)


def test_two_threads_on_one_window_take_turns(built: Engine) -> None:
    window = built.window("exact")
    window.append(words(10))

    def note(number: int) -> list[Handle]:
        made = []
        for turn in range(6):
            made.append(window.append(words(5 + number, turn)))
            window.commit()
            if turn % 2:
                window.evict(made.pop(0))
        return made

    found = in_threads(4, note)
    assert all(isinstance(made, list) for made in found), found
    window.commit()
    live_now = {entry.handle for entry in window.content.live()}
    assert {handle for made in found for handle in made} <= live_now
    assert len(window) == 10 + sum(handle.tokens for made in found for handle in made)
    assert_exact(window)


def test_two_answers_at_once_in_one_window_are_refused(built: Engine) -> None:
    window = built.window("exact")
    window.append(words(10))
    found = in_threads(4, lambda number: window.generate(words(3, number), max_new_tokens=6, stop=False))
    answers = [said for said in found if isinstance(said, str)]
    assert answers
    assert all(isinstance(said, str | Busy) for said in found), found
    assert len(window) == 10 + len(answers) * (3 + 6)
    assert_exact(window)


def test_a_message_evicted_by_two_threads_is_evicted_once(built: Engine) -> None:
    window, handles = filled(built)
    found = in_threads(6, lambda number: window.evict(handles[0]))
    assert sum(error is None for error in found) == 1
    assert sum(isinstance(error, AlreadyEvicted) for error in found) == 5
    found = in_threads(6, lambda number: window.recall(handles[0]))
    assert sum(handle is handles[0] for handle in found) == 1
    assert sum(isinstance(error, InvalidInput) for error in found) == 5


def test_readers_may_look_while_a_window_changes(built: Engine) -> None:
    window, _ = filled(built)

    def look(number: int) -> bool:
        for turn in range(15):
            if number == 0:
                window.append(words(3, turn))
                window.commit()
            else:
                assert window.stats()["tokens"] >= 63
                assert len(window.ids()) >= 63
                assert repr(window)
                assert "div" in window._repr_html_()
                assert window.explain()
        return True

    assert in_threads(4, look) == [True] * 4


def test_the_store_is_looked_through_while_others_fill_it() -> None:
    """What is held for a chunk is a dict that grows; a plan in another thread goes through it meanwhile."""
    store, block = MemoryStore(1 << 20), kv_block(1)

    def work(number: int) -> None:
        for turn in range(3000):
            if number:
                store.put(Key("patch", "a", f"{number}.{turn % 50}"), block, Note(1.0))
            else:
                residency(store, {"a": 1})

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert in_threads(3, work) == [None] * 3
    finally:
        sys.setswitchinterval(before)


def test_a_second_engine_on_one_store_sees_near_matches() -> None:
    """What stored KV was conditioned on stays with it: another engine knows how far off it is."""
    store = MemoryStore(1 << 28)
    with engine(store=store) as first, engine(store=store) as second:
        window = first.window(Policy(kl_budget=9.0))
        a, b = window.append(words(31, 1)), window.append(words(29, 2))
        window.commit()
        window.evict(b)
        window.commit()
        other = second.window(Policy(kl_budget=9.0))
        other.append(words(7, 3))
        other.append(words(31, 1))
        other.append(words(29, 2))
        loads = [op for op in other.plan().ops if op.op == "load"]
        assert [op.tokens for op in loads] == [29]
        assert loads[0].kl > 0  # something else stands in front
        assert a.tokens == 31


def test_closing_an_engine_closes_its_windows_and_its_worker() -> None:
    with engine() as built:
        window, _ = filled(built)
        twin = window.fork()
    for closed in (window, twin):
        with pytest.raises(AgentKVError):
            closed.append(words(3))
    assert window.kv.slots[0].shape[1] == 0
    assert not any(
        thread.name.startswith("agentkv") and thread.is_alive() for thread in built.worker._threads
    )


def test_a_closed_window_gives_its_rows_back(built: Engine) -> None:
    window, _ = filled(built)
    rows = window.kv.slots[0]
    window.close()
    assert window.kv.slots[0].untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
    assert window not in built._windows


def test_the_words_of_these_tests_differ() -> None:
    assert len({tuple(ids(20, seed)) for seed in range(80)}) == 80


def test_a_fork_waits_for_an_answer_that_is_being_opened(built: Engine) -> None:
    """It comes when none is under way, waits for the prefill of one, and takes what stands in front of it."""
    window, _ = filled(built)
    twins = list[Window]()
    forking = threading.Thread(target=lambda: twins.append(window.fork()))
    with window.editing():
        front = window.ids().tolist()
        forking.start()
        forking.join(0.2)
        assert not twins, "it waits"
        stream = window.stream(None, max_new_tokens=4, stop=False)
        next(stream)
    forking.join(5)
    list(stream)
    (twin,) = twins
    assert twin.ids().tolist() == front
    assert_exact(twin)
    assert_exact(window)
