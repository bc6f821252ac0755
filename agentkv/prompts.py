"""A window that is handed a whole prompt: who stood there already, and what the rest is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.match import match
from agentkv_orchestrator.spans import Span

from agentkv import rules
from agentkv.handles import Content, Entry, Handle, renumbered, words
from agentkv.inputs import SINK_TOKENS, Ids
from agentkv.media import Tokens
from agentkv.parts import take_along
from agentkv.replacing import Parts, divided, whole_or_unchanged

if TYPE_CHECKING:
    from agentkv.edits import Edits

Found = Sequence[tuple[Chunk, Span]]
Shown = tuple[Content, tuple[Handle, ...]]


def prompted(window: Edits, ids: Ids, boundaries: Iterable[int], kind: str) -> Shown:
    """The content of ``window`` once it holds this prompt, and a handle for each of its messages."""
    ids, edges = _opened(window, ids, boundaries)
    with whole_or_unchanged(window):
        return _placed(window, ids, edges, kind)


def _placed(window: Edits, ids: Ids, edges: Sequence[int], kind: str) -> Shown:
    found = window.engine.admit(ids, kind, edges, SINK_TOKENS)
    _divide_live(window, found)
    take_along(window.engine, found)
    live = [(uid, chunk.id) for entry in window.content.live() for uid, chunk in entry.parts]
    first = window.engine.numbers(len(found))
    uids = match(live, [chunk.id for chunk, _ in found], first)
    standing = {tuple(uid for uid, _ in e.parts): e for e in window.content.live()}
    entries = [
        standing.get(tuple(uid for uid, _ in parts)) or _entry(window, parts, kind)
        for parts in _messages(found, uids, edges)
    ]
    _require_pinned(window, entries)
    content = window.content
    for old in _losing(window.content, entries, set(uids)):
        content = content.with_entry(_anew(window, old))
    for entry in entries:
        content = content.with_entry(entry)
    handles = tuple(entry.handle for entry in entries)
    return content.with_order(tuple(handle.id for handle in handles)), handles


def _opened(window: Edits, ids: Ids, boundaries: Iterable[int]) -> tuple[Ids, list[int]]:
    """The prompt with what must open every window, and its edges, both ends included."""
    engine = window.engine
    rules.pieces([Tokens(ids)], engine.vocabulary, engine.tower)
    inner = rules.boundaries(boundaries, len(ids))
    missing = len(engine.lead) if not np.array_equal(ids[: len(engine.lead)], engine.lead) else 0
    ids = np.concatenate([engine.lead[:missing], ids])
    rules.fits(len(ids), window.max_tokens)
    return ids, sorted({0, len(engine.lead), *(b + missing for b in inner), len(ids)})


def _divide_live(window: Edits, found: Found) -> None:
    """Where a part is wanted of a chunk that stands here, say that the chunk is several: no row changes."""
    cuts = defaultdict[str, set[int]](set)
    for chunk, span in found:
        if span.found == "part":
            cuts[span.chunk] |= {span.offset, span.offset + chunk.length}
    for entry in window.content.live():
        start, offsets = 0, set[int]()
        for _, chunk in entry.parts:
            offsets |= {start + cut for cut in cuts[chunk.id]}
            start += chunk.length
        if offsets:
            divided(window, entry, offsets)


def _messages(found: Found, uids: Sequence[int], edges: Sequence[int]) -> Iterator[Parts]:
    """The chunks of each message, with their uids."""
    at = 0
    for _, stop in pairwise(edges):
        first = at
        while at < len(found) and found[at][1].start < stop:
            at += 1
        yield tuple((uids[i], found[i][0]) for i in range(first, at))


def _entry(window: Edits, parts: Parts, kind: str) -> Entry:
    tokens = sum(chunk.length for _, chunk in parts)
    head = window.engine.chunks.ids(parts[0][1].id)[:24]
    text = words(window.engine.tokenizer.decode(head.tolist()))
    return Entry(Handle(window.engine.numbers(1), kind, tokens, text), parts)


def _require_pinned(window: Edits, entries: Sequence[Entry]) -> None:
    kept = {entry.handle.id for entry in entries}
    for entry in window.content.live():
        if entry.handle.id not in kept:
            rules.unpinned(entry)


def _losing(content: Content, entries: Sequence[Entry], taken: set[int]) -> Iterator[Entry]:
    """Messages that are not in the prompt as they were, while placements of theirs are."""
    kept = {entry.handle.id for entry in entries}
    for entry in content.live():
        if entry.handle.id not in kept and taken & {uid for uid, _ in entry.parts}:
            yield entry


def _anew(window: Edits, old: Entry) -> Entry:
    """The same message under fresh uids: a recall asks for placements of its own."""
    return Entry(old.handle, renumbered(old, window.engine.numbers(len(old.parts))), old.pinned)
