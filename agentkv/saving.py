"""Windows that outlive their process: what a window holds goes into the store, and is opened again elsewhere.

A saved window is one document (messages, graph, revisions, policy, the ids of every token) and its rows,
chunk by chunk, as they stand. Opened again it is the same window to the bit. Rows that the store has lost
since are wanted and not there: the next plan loads or computes them, like anything else that is missing.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import torch
from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.errors import OrchestratorError
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.window import Placement, WindowGraph
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from xxhash import xxh3_128

from agentkv.errors import BadStore, FingerprintMismatch, InvalidInput, NothingStored
from agentkv.executor import Outcome
from agentkv.handles import Content, Entry, Handle
from agentkv.kv import KVBlock
from agentkv.store.base import Document, Key

if TYPE_CHECKING:
    from agentkv.engine import Engine
    from agentkv.window import Window


ROOM = 256
"""Rows behind an opened window: what comes first would copy all of it otherwise."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SavedChunk(_Frozen):
    """A chunk and what its id stands for. modality: hex digest of the pixels, "" for text."""

    chunk: Chunk
    ids: list[int]
    modality: str = ""


class SavedMessage(_Frozen):
    """A handle with the state of its message. parts: uid and chunk id of each chunk."""

    id: int
    kind: str
    tokens: int
    preview: str
    parts: list[tuple[int, str]]
    pinned: bool
    clean: bool
    order_free: bool
    recalls: int = Field(ge=0)
    used: int = Field(ge=0)


class SavedWindow(_Frozen):
    """All of a window but its rows. rows: by uid, where they are stored. start: row of the first token. took:
    milliseconds of the plan's steps."""

    format: Literal[1] = 1
    fingerprint: str
    policy: Policy
    max_tokens: int
    order: list[int]
    messages: list[SavedMessage]
    chunks: list[SavedChunk]
    graph: WindowGraph
    plan: Plan | None
    took: dict[str, float]
    start: int
    rows: dict[int, str]
    last_answer: int | None


def save(window: Window, name: str | None) -> str:
    """Commit, and put the window into its engine's store under ``name`` (None: a fresh one), in the place of
    an older one of this name. Returns the name. Raises InvalidInput for an empty name, BadStore when the
    store does not keep it."""
    if name is not None and not name:
        raise InvalidInput(got="an empty name", expected="a name, or None for a fresh one", do="pass one")
    name, engine = name or uuid4().hex, window.engine
    rows = {p.uid: _put_rows(window, p) for p in window.graph.placements}
    for entry in window.content.live():
        for media in entry.media:
            engine.shelf.keep_media(media)
    key = Key("window", name)
    document = Document(_told(window, rows).model_dump_json().encode())
    kept = engine.store.put(key, document)
    engine.store.flush()
    if not kept or key not in engine.store.held([name]):
        raise BadStore(
            got=f"a store that did not keep the window ({engine.store.stats().to_dict()['refused']})",
            expected="room for it",
            do="see agentkv store stats, and raise the budget or drop saved windows",
        )
    return name


def open_window(engine: Engine, name: str) -> Window:
    """The window saved under ``name``, its numbers fresh in this engine. Nothing is computed; what was lost
    is computed or loaded by the next commit. Raises NothingStored, FingerprintMismatch for another model's,
    BadStore for a document that contradicts itself."""
    found = engine.store.get(Key("window", name))
    if found is None or not isinstance(found.entry, Document):
        raise NothingStored(
            got=f"no window {name!r} in the store",
            expected="the name that Window.save returned",
            do="check name, store and tenant",
        )
    try:
        saved = _read(name, found.entry.text)
        if saved.fingerprint != engine.fingerprint:
            raise FingerprintMismatch(
                got=f"window {name!r} of another model, tokenizer or sink",
                expected=f"{engine.loaded.name} as this engine runs it",
                do="open it with the model that it was saved with",
            )
        window = engine.bare_window(saved.policy, saved.max_tokens)
        try:
            _restore(window, saved)
        except BaseException:
            window.close()
            raise
        return window
    except (ValidationError, OrchestratorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise BadStore(
            got=f"window {name!r} that contradicts itself ({str(error).splitlines()[0][:100]})",
            expected="a document that Window.save wrote",
            do="drop it and build the window anew",
        ) from error


def _read(name: str, text: bytes) -> SavedWindow:
    """Raises BadStore for a window of another format, ValidationError for what is none."""
    try:
        return SavedWindow.model_validate_json(text)
    except ValidationError as error:
        formats = [e["input"] for e in error.errors(include_url=False) if e["loc"] == ("format",)]
        if not formats:
            raise
        raise BadStore(
            got=f"window {name!r} of format {formats[0]!r}",
            expected=f"format {SavedWindow.model_fields['format'].default}",
            do="open it with the agentkv that saved it; nothing was changed",
        ) from error


def _told(window: Window, rows: dict[int, str]) -> SavedWindow:
    entries = [entry for _, entry in window.content.entries]
    chunks = {chunk.id: chunk for entry in entries for _, chunk in entry.parts}
    table = window.engine.chunks
    return SavedWindow(
        fingerprint=window.engine.fingerprint,
        policy=window.policy,
        max_tokens=window.max_tokens,
        order=list(window.content.order),
        messages=[_message(entry) for entry in entries],
        chunks=[
            SavedChunk(chunk=chunk, ids=table.ids(i).tolist(), modality=table.modality(i).hex())
            for i, chunk in chunks.items()
        ],
        graph=window.graph,
        plan=window.last_plan,
        took=window.last_outcome.ms,
        start=window.kv.start,
        rows=rows,
        last_answer=window.last_answer.id if window.last_answer else None,
    )


def _message(entry: Entry) -> SavedMessage:
    handle = entry.handle
    return SavedMessage(
        id=handle.id,
        kind=handle.kind,
        tokens=handle.tokens,
        preview=handle.preview,
        parts=[(uid, chunk.id) for uid, chunk in entry.parts],
        pinned=entry.pinned,
        clean=entry.clean,
        order_free=entry.order_free,
        recalls=entry.recalls,
        used=entry.used,
    )


def _put_rows(window: Window, placement: Placement) -> str:
    """Store one chunk's live rows; the digest they are stored under, so that equal ones are kept once."""
    block = window.engine.backend.read(window.kv, placement.row, placement.stop)
    digest = xxh3_128(block.positions.numpy().tobytes())
    for slot in block.slots:
        bits: Any = slot.cpu().contiguous().view(torch.uint8).numpy()
        digest.update(bits)
    context = digest.hexdigest()
    key = Key("rows", placement.chunk.id, context)
    if key not in window.engine.store.held([placement.chunk.id]):
        window.engine.shelf.put(key, block)
    return context


def _restore(window: Window, saved: SavedWindow) -> None:
    """Fill a bare window: the numbers shifted to fresh ones, the rows as far as they are still there."""
    engine = window.engine
    chunks = {c.chunk.id: _known(engine, c) for c in saved.chunks}
    numbers = [m.id for m in saved.messages] + [p.uid for p in saved.graph.placements]
    numbers += [uid for m in saved.messages for uid, _ in m.parts] + [m.used for m in saved.messages]
    shift = engine.numbers(max(numbers, default=0) + 1)
    entries = {m.id + shift: _entry(engine, m, chunks, shift) for m in saved.messages}
    content = Content(tuple(i + shift for i in saved.order), tuple(entries.items()))
    content.live()  # raises KeyError for an order of messages that are not there
    _known_rows(saved, chunks, engine.layout.max_positions)
    placed = _fill(window, saved)
    moved = [p.model_copy(update={"uid": p.uid + shift}) for p in placed]
    window.graph = WindowGraph(placements=tuple(moved), revision=saved.graph.revision)
    window.content = content
    window.committed = content if len(placed) == len(saved.graph.placements) else _only(content, moved)
    window.last_plan, window.last_outcome = _shifted(saved.plan, shift), Outcome(ms=dict(saved.took))
    answer = entries.get(saved.last_answer + shift) if saved.last_answer is not None else None
    window.last_answer = answer.handle if answer else None


def _known(engine: Engine, saved: SavedChunk) -> Chunk:
    """Register a chunk under this engine. Raises ValueError when its id is not what its tokens give."""
    ids, modality = np.asarray(saved.ids, dtype=np.int64), bytes.fromhex(saved.modality)
    made = engine.chunks.register(ids, saved.chunk.kind, modality, saved.chunk.span if modality else None)
    if made != saved.chunk:
        raise ValueError(f"tokens that are not those of chunk {saved.chunk.id[:8]}")
    return made


def _entry(engine: Engine, m: SavedMessage, chunks: dict[str, Chunk], shift: int) -> Entry:
    parts = tuple((uid + shift, chunks[chunk]) for uid, chunk in m.parts)
    media = (engine.media_of(chunk.id) for _, chunk in parts)
    handle = Handle(m.id + shift, m.kind, m.tokens, m.preview)
    return Entry(
        handle,
        parts,
        pinned=m.pinned,
        clean=m.clean,
        order_free=m.order_free,
        recalls=m.recalls,
        used=m.used + shift,
        media=tuple(x for x in media if x is not None),
    )


def _known_rows(saved: SavedWindow, chunks: dict[str, Chunk], most: int) -> None:
    """Raises ValueError or KeyError where the rows are not those of chunks whose tokens are known, from the
    row that the window starts at on."""
    placements = saved.graph.placements
    if any(chunks[p.chunk.id].length != p.chunk.length or p.uid not in saved.rows for p in placements):
        raise ValueError("rows of chunks of another length")
    if placements and not (0 <= placements[0].row == saved.start and placements[-1].stop <= most):
        raise ValueError(f"rows from {placements[0].row} on in a window that starts at {saved.start}")


def _fill(window: Window, saved: SavedWindow) -> list[Placement]:
    """Read the rows where they stand, up to the first gap, behind which nothing has a place; what stands."""
    kv, engine, placed = window.kv, window.engine, list[Placement]()
    if not saved.graph.placements:
        return placed
    stop = saved.graph.placements[-1].stop
    kv.clear(saved.start, min(stop + ROOM, engine.layout.max_positions))
    for placement in saved.graph.placements:
        rows = kv.view(placement.row, placement.stop)
        found = engine.shelf.get(Key("rows", placement.chunk.id, saved.rows[placement.uid]), rows)
        block = found.entry if found else None
        wanted = [slot.shape for slot in rows.slots]
        if not isinstance(block, KVBlock) or [slot.shape for slot in block.slots] != wanted:
            break
        if all(map(is_, block.slots, rows.slots)) and int(block.positions[0]) == placement.position:
            rows.positions.copy_(block.positions)  # it was read where it stands
        else:
            engine.backend.place(kv, placement.row, block.to(kv.device), position=placement.position)
        kv.end = placement.stop
        placed.append(placement)
    return placed


def _only(content: Content, placed: list[Placement]) -> Content:
    """The messages whose chunks all stand: what a failed commit goes back to."""
    there = {p.uid for p in placed}
    whole = (e.handle.id for e in content.live() if all(uid in there for uid, _ in e.parts))
    return content.with_order(tuple(whole))


def _shifted(plan: Plan | None, shift: int) -> Plan | None:
    if plan is None:
        return None
    ops = (op if op.uid is None else replace(op, uid=op.uid + shift) for op in plan.ops)
    return plan.model_copy(update={"ops": tuple(ops)})
