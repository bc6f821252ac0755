"""What stands in which tensor, asked about messages: the queries of the window graph by handle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from agentkv import rules
from agentkv.errors import InvalidInput
from agentkv.handles import Handle

if TYPE_CHECKING:
    from agentkv.window import Window

Relation = Literal["antecedents", "dependents", "cascade"]


def related(window: Window, handle: Handle, how: Relation) -> list[Handle]:
    """See `Window.related`."""
    graph, entry = window.graph, rules.live(window.committed, handle)
    asks = {"antecedents": graph.antecedents, "dependents": graph.dependents, "cascade": graph.cascade}
    if how not in asks:
        raise InvalidInput(got=f"relation {how!r}", expected=" or ".join(asks), do="pick one of them")
    own = {uid for uid, _ in entry.parts}
    return _handles(window, {uid for part in own for uid in asks[how](part)} - own)


def names(window: Window) -> dict[int, str]:
    """By uid: kind and first words of every message that this window has held, and of what was replaced as
    far back as its history goes."""
    before = (e for r in (*window.past.past, *window.past.future) for e in r.content)
    found = {uid: e.handle.name for e in before for uid, _ in e.parts}
    return found | window.committed.names() | window.content.names()


def _handles(window: Window, uids: Iterable[int]) -> list[Handle]:
    """The live messages of these placements, in window order."""
    chosen = set(uids)
    return [e.handle for e in window.committed.live() if any(uid in chosen for uid, _ in e.parts)]
