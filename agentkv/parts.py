"""Parts of stored chunks: KV of a run of tokens is a slice of the KV of the chunk that it was met in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.lineage import EMPTY, Lineage
from agentkv_orchestrator.residency import Context
from agentkv_orchestrator.spans import Span

from agentkv.kv import KVBlock
from agentkv.store.base import Key, Note

if TYPE_CHECKING:
    from agentkv.engine import Engine


def take_along(engine: Engine, found: Iterable[tuple[Chunk, Span]]) -> None:
    """For each part of a known chunk, put into the store what the store holds for the whole one.

    The slice is conditioned on what the whole chunk was and on the tokens in front of the part, and is stored
    as that: whether it may stand somewhere else is for the planner to say, as for any KV of another context.
    """
    for chunk, span in found:
        if span.found == "part" and not engine.store.held([chunk.id]):
            _slice(engine, chunk, span)


def _slice(engine: Engine, part: Chunk, span: Span) -> None:
    tokens = engine.chunks.ids(span.chunk)
    head = engine.register(tokens[: span.offset], part.kind) if span.offset else None
    for key, (note, _, _) in engine.store.held([span.chunk]).items():
        front = _front(engine, key, note)
        found = engine.shelf.get(key) if front is not None else None
        if front is None or found is None or not isinstance(found.entry, KVBlock):
            continue
        own = found.entry.part(span.offset, span.offset + part.length)
        if key.kind == "canonical" and head is None:
            engine.shelf.put(Key("canonical", part.id), own, note)
            continue
        chunks = front.chunks if head is None else front.chunks.then(head.id)
        context = Context(chunks=chunks, tokens=front.tokens + span.offset)
        engine.shelf.put(Key("conditioned", part.id, chunks.key), own, Note(note.hearsay, context))


def _front(engine: Engine, key: Key, note: Note) -> Context | None:
    """What stored KV was computed behind; None for patches, and where nobody remembers."""
    if key.kind == "conditioned":
        return note.context
    if key.kind != "canonical":
        return None
    if not len(engine.sink):
        return Context(chunks=EMPTY, tokens=0)
    sink = engine.register(engine.sink, "system")
    return Context(chunks=Lineage.of([sink.id]), tokens=sink.length)
