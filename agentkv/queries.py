"""What stands in which tensor, asked about messages: the queries of the window graph by handle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from agentkv import rules
from agentkv.errors import InvalidInput
from agentkv.handles import Entry, Handle

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
    """By uid: kind and first words of every message that this window remembers, and of what was replaced as
    far back as its history goes."""
    before = (e for r in (*window.past.past, *window.past.future) for e in r.content)
    found = {uid: e.handle.name for e in before for uid, _ in e.parts}
    return found | window.committed.names() | window.content.names()


def asked_of(window: Window, question: Handle | None) -> Entry:
    """The entry of the question: the given one, or the last message that is no answer. Raises InvalidInput
    where nothing stands in front of it."""
    live = window.content.live()
    said = [e for e in live if e.handle.kind != "assistant"] or live
    entry = rules.live(window.content, question) if question else said[-1] if said else None
    if entry is None or entry is live[0]:
        raise InvalidInput(
            got="a question with nothing in front of it",
            expected="at least two messages",
            do="append a question",
        )
    return entry


def stats(window: Window) -> dict[str, Any]:
    """See `Window.stats`."""
    return {
        "tokens": window.graph.tokens,
        "messages": len(window.content.order),
        "remembered": len(window.content.entries) - len(window.content.order),
        "chunks": len(window.graph.placements),
        "stale_chunks": len(window.graph.stale()),
        "max_tokens": window.max_tokens,
        "rows": {"start": window.kv.start, "end": window.kv.end, "capacity": window.kv.capacity},
        "kv_bytes": window.kv.nbytes,
        "registry_bytes": sum(window.engine.chunks.sizes),
        "store_bytes": window.engine.store.nbytes,
        "policy": window.policy.name,
        "last_answer": asdict(window.timing),
        **asdict(window.usage),
    }


def _handles(window: Window, uids: Iterable[int]) -> list[Handle]:
    """The live messages of these placements, in window order."""
    chosen = set(uids)
    return [e.handle for e in window.committed.live() if any(uid in chosen for uid, _ in e.parts)]
