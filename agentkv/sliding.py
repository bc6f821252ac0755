"""Which messages leave a window that has to get shorter."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Literal, get_args

from agentkv_orchestrator.eviction import reuse_rate

from agentkv.errors import InvalidInput
from agentkv.handles import Entry

if TYPE_CHECKING:
    from agentkv.edits import Edits

By = Literal["oldest", "benefit"]


def first_to_leave(window: Edits, by: By) -> list[Entry]:
    """The unpinned messages, the first to leave first. Raises InvalidInput for an unknown ``by``.

    benefit: expected recalls × ms to bring it back / tokens, least first; messages of one kind are recalled
    about as often.
    """
    if by not in get_args(By):
        raise InvalidInput(got=f"by={by!r}", expected="oldest or benefit", do="pick one of the two")
    free = [entry for entry in window.content.live() if not entry.pinned]
    if by == "oldest":
        return free
    members = Counter[str](entry.handle.kind for entry in window.content.known())
    uses = Counter[str]()
    for entry in window.content.known():
        uses[entry.handle.kind] += entry.recalls
    came = sorted(max(entry.used, entry.handle.id) for entry in window.content.known())

    def benefit(entry: Entry) -> float:
        kind = entry.handle.kind
        age = len(came) - bisect_right(came, max(entry.used, entry.handle.id))
        rate = reuse_rate(entry.recalls, uses[kind], members[kind], age)
        return rate * _to_bring_back(window, entry) / entry.handle.tokens

    return sorted(free, key=benefit)


def _to_bring_back(window: Edits, entry: Entry) -> float:
    """Milliseconds: what is exact will be stored and loaded; the rest is computed again at the end."""
    costs, total, rows = window.engine.costs, 0.0, window.content.tokens
    for uid, chunk in entry.parts:
        live = window.graph.get(uid)
        loaded = window.policy.name != "exact" and window.policy.stash and live is not None and live.exact
        if loaded:
            total += costs.time("load", chunk.length)
        else:
            total += costs.of("prefill").more(chunk.length, rows)
    return total
