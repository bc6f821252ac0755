"""What is remembered of notes is bounded, and is what was written."""

from __future__ import annotations

from agentkv_orchestrator.lineage import EMPTY, Lineage
from agentkv_orchestrator.residency import Context
from hypothesis import given
from hypothesis import strategies as st

from agentkv.store.key import Note
from agentkv.store.notes import Notes, note_of, note_text

CHUNKS = st.lists(st.sampled_from("abc"), max_size=6)


def note(chunks: list[str], hearsay: float = 0.5) -> Note:
    return Note(hearsay, Context(chunks=Lineage.of(chunks), tokens=3 * len(chunks)))


@given(st.lists(st.tuples(CHUNKS, st.floats(0, 1)), max_size=12), st.integers(0, 400))
def test_notes_come_back_as_they_were_however_few_are_remembered(
    told: list[tuple[list[str], float]], room: int
) -> None:
    notes = Notes(room)
    for chunks, hearsay in told:
        text = note_text(note(chunks, hearsay))
        assert notes.of(text) == note_of(text) == note(chunks, hearsay)
        assert list(notes.of(text).context.chunks) == chunks  # type: ignore[union-attr]
        assert notes.size == sum(map(len, notes._known)) <= room


@given(CHUNKS, CHUNKS)
def test_lists_that_begin_alike_share_those_links(first: list[str], second: list[str]) -> None:
    one = Lineage.of(first)
    other = one.alike(second)
    assert (other, list(other)) == (Lineage.of(second), second)
    links = set[int]()
    link: Lineage | None = one
    while link is not None:
        links.add(id(link))
        link = link.parent
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    at: Lineage | None = other
    while at is not None and at.length > (min(len(first), len(second)) if same is None else same):
        at = at.parent
    assert id(at) in links


def test_a_text_is_read_once_while_there_is_room() -> None:
    text, notes = note_text(note(["a", "b"])), Notes(200)
    assert notes.of(text) is notes.of(text)
    assert Notes(5).of(text) is not Notes(5).of(text)
    assert notes.of("") == Note()
    assert EMPTY.alike([]) is EMPTY
