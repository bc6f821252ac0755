"""Undo and redo: a window is asked for what it held before, and one plan brings it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.history import History, Revision
from agentkv_orchestrator.plan import Plan

from agentkv.errors import InvalidInput
from agentkv.handles import Content, Entry, Handle, renumbered

if TYPE_CHECKING:
    from agentkv.window import Window

Entries = tuple[Entry, ...]
Past = History[Entries]

SHOWN = 3
"""Messages that a summary calls by their names; of more it says how many."""


def opened() -> Past:
    """The history of a window that was just opened."""
    return History((Revision(0, "opened", ()),))


def recorded(window: Window, past: Past, content: Content, known: Content) -> Past:
    """``past`` with ``content`` as what is live now: another revision, or the same one at another number.

    known: content of the commit before, for what to call the edit.
    """
    entries, number, stale = tuple(content.live()), window.graph.revision, stale_ids(window, content)
    if entries == past.now.content:
        return past.amended(replace(past.now, number=number, stale=stale))
    return past.then(Revision(number, described(past.now.content, entries, known), entries, stale))


def step(window: Window, steps: int, back: bool) -> Plan:
    """Go ``steps`` revisions back, or forward to what was undone; what is noted counts as the newest one.

    Raises InvalidInput when there are not so many; what `Window.commit` raises leaves the history as it was.
    """
    past, noted = window.past, tuple(window.content.live())
    if noted != past.now.content:
        past = past.then(Revision(None, described(past.now.content, noted, window.committed), noted))
    try:
        past = past.back(steps) if back else past.forward(steps)
    except WindowError as error:
        raise InvalidInput(error.got, error.expected, error.do) from error
    window.content = restored(window, past.now.content)
    plan = window.commit()
    entries = tuple(window.committed.live())  # in an order of their own where they are order-free
    number, stale = window.graph.revision, stale_ids(window, window.committed)
    window.past = past.amended(Revision(number, past.now.edit, entries, stale))
    return plan


def restored(window: Window, entries: Entries) -> Content:
    """What ``window`` holds once these entries are all that is live. Whatever it held since stays known, as
    evicted, under placements of its own."""
    known = dict(window.content.entries) | {e.handle.id: e for e in entries}
    live = {e.handle.id for e in entries}
    taken = {uid for e in entries for uid, _ in e.parts}
    for handle_id, entry in known.items():
        if handle_id not in live and any(uid in taken for uid, _ in entry.parts):
            fresh = renumbered(entry, window.engine.numbers(len(entry.parts)))
            known[handle_id] = replace(entry, parts=fresh)
    return Content(tuple(e.handle.id for e in entries), tuple(known.items()))


def stale_ids(window: Window, content: Content) -> frozenset[int]:
    """Handle ids of messages with a chunk that is conditioned on something else than what stands in front."""
    stale = set(window.graph.stale())
    return frozenset(e.handle.id for e in content.live() if any(uid in stale for uid, _ in e.parts))


def stale(window: Window, since: int | None) -> list[Handle]:
    """See `Window.stale`. Raises InvalidInput for a revision that the history does not hold."""
    before = frozenset[int]()
    if since is not None:
        found = {r.number: r.stale for r in (*window.past.past, *window.past.future)}
        if since not in found:
            raise InvalidInput(
                got=f"revision {since}",
                expected=f"one of {sorted(n for n in found if n is not None)}",
                do="see history()",
            )
        before = found[since]
    now = stale_ids(window, window.committed)
    return [e.handle for e in window.committed.live() if e.handle.id in now - before]


def described(before: Entries, entries: Entries, known: Content) -> str:
    """What was done to ``before`` to hold ``entries``, in words. known: what is no news."""
    was = {e.handle.id: e for e in before}
    now = {e.handle.id: e for e in entries}
    both = [(was[i], e) for i, e in now.items() if i in was]
    came = [e for i, e in now.items() if i not in was]
    groups = {
        "appended": [e for e in came if known.get(e.handle.id) is None],
        "brought back": [e for e in came if known.get(e.handle.id) is not None],
        "evicted": [e for i, e in was.items() if i not in now],
        "pinned": [b for a, b in both if b.pinned and not a.pinned],
        "unpinned": [b for a, b in both if a.pinned and not b.pinned],
        "showed clean": [b for a, b in both if b.clean and not a.clean],
        "put back into context": [b for a, b in both if a.clean and not b.clean],
    }
    parts = [f"{verb} {_named(group)}" for verb, group in groups.items() if group]
    parts += ["reordered"] * ([i for i in was if i in now] != [i for i in now if i in was])
    return ", ".join(parts) or "fixed the places of messages"


def _named(entries: Sequence[Entry]) -> str:
    if len(entries) > SHOWN:
        return f"{len(entries)} messages"
    return ", ".join(e.handle.name for e in entries)
