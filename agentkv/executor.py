"""Carries out a Plan on the live rows: everything, or nothing.

What can be missing is fetched before a row changes; rows about to be overwritten are copied first, so that a
failure at any later step puts the window back bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch
from agentkv_orchestrator.plan import (
    ApplyOrbit,
    ApplyPatch,
    ApplyRemoval,
    FormCanonical,
    FormPatch,
    Keep,
    Load,
    Mending,
    Op,
    PlaceCanonical,
    Placing,
    Plan,
    Prefill,
    Repair,
    Rotate,
    Stash,
)
from torch import Tensor

from agentkv.backends.base import Backend
from agentkv.cache import WindowKV
from agentkv.fetching import block_of, fetch, key_of, patch_of
from agentkv.kv import KVBlock
from agentkv.media import Tokens
from agentkv.mending import Estimator, Mender, run_of
from agentkv.patches import Patch
from agentkv.store.base import PLAIN, Key, Note, Stored
from agentkv.store.shelf import Shelf


@dataclass
class Outcome:
    """What executing a plan gave: logits of the last prefilled tokens, and milliseconds by step."""

    logits: Tensor | None = None
    ms: dict[str, float] = field(default_factory=dict)

    def lap(self, step: str, since: float) -> float:
        """Add the time since ``since`` to ``step``; returns now."""
        now = time.perf_counter()
        self.ms[step] = self.ms.get(step, 0.0) + (now - since) * 1e3
        return now


@dataclass
class Write:
    """Rows to fill with moved or stored KV: from live rows (``live``) or from a stored block."""

    uid: int
    row: int
    position: int
    tokens: int
    live: int | None = None
    block: KVBlock | None = None
    patch: Patch | None = None


class Executor:
    """Executes plans over one backend and one shelf. ``tokens_of`` gives what a chunk's id stands for."""

    def __init__(
        self,
        backend: Backend,
        shelf: Shelf,
        tokens_of: Callable[[str], Tokens],
        estimator: Estimator | None = None,
    ) -> None:
        self.backend, self.shelf, self.tokens_of = backend, shelf, tokens_of
        self.mender = Mender(backend, tokens_of, estimator)

    def execute(
        self, plan: Plan, kv: WindowKV, keep: int = 0, notes: Mapping[int, Note] = MappingProxyType({})
    ) -> Outcome:
        """Leave ``kv`` as ``plan`` says. keep: of how many last tokens of the last prefill logits are wanted.
        notes: by uid, what to keep beside KV that is stashed.

        Raises NothingStored when the store lost what the plan counted on (plan again), OutOfMemory and
        NonFinite from the model; the rows are then as they were.
        """
        outcome, now = Outcome(), time.perf_counter()
        # Everything is in hand before the store takes more in: what it makes room for may be what is wanted.
        formed = self._canonicals(plan.ops)
        writes = self._writes(plan.ops, formed, kv.device)
        self._put(formed)
        now = outcome.lap("load", now)
        self._fill_store(plan.ops, kv, notes)
        now = outcome.lap("stash", now)
        prefills = [op for op in plan.ops if isinstance(op, Prefill)]
        if not writes and not prefills:
            kv.grow(plan.frame.capacity)  # an answer may follow
            kv.start, kv.end = plan.frame.start, plan.frame.start + _tokens(plan.ops)
            self._keep_sources(kv, plan, writes)
            return outcome
        kv.own()
        kv.grow(plan.frame.capacity)
        before = (kv.start, kv.end)
        mending = list(_mending(plan.ops))
        touched: list[Prefill | _Rows] = [*prefills, *(_Rows(row, op.tokens) for op, row, _ in mending)]
        saved = self._save(kv, writes, touched)
        try:
            now = outcome.lap("save", now)
            self._write(kv, writes, saved)
            now = outcome.lap("edit", now)
            kv.start, kv.end = plan.frame.start, plan.frame.start + _tokens(plan.ops)
            outcome.logits = self._compute(kv, mending, prefills, keep)
            outcome.lap("prefill", now)
            self._keep_sources(kv, plan, writes)
        except BaseException:
            for row, block in saved:
                self.backend.place(kv, row, block, position=int(block.positions[0]))
            kv.start, kv.end = before
            raise
        return outcome

    def idle(self, op: Op, kv: WindowKV) -> None:
        """Carry out one op that changes the store and no row.

        Raises NothingStored when what it starts from is gone.
        """
        self._put(self._canonicals([op]))
        self._fill_store([op], kv, {})

    def _canonicals(self, ops: Sequence[Op]) -> dict[Key, KVBlock]:
        """Canonicals to be formed, which a small store may not have room for."""
        formed = {}
        for op in ops:
            if isinstance(op, FormCanonical):
                key = Key("canonical", op.chunk)
                formed[key] = self.backend.canonical(*self.tokens_of(op.chunk))
        return formed

    def _put(self, formed: dict[Key, KVBlock]) -> None:
        for key, block in formed.items():
            self.shelf.put(key, block)

    def _fill_store(self, ops: Sequence[Op], kv: WindowKV, notes: Mapping[int, Note]) -> None:
        """What these ops store is right whatever happens to the rest of the plan."""
        for op in ops:
            if isinstance(op, Stash):
                block = self.backend.read(kv, op.row, op.row + op.tokens)
                note = notes.get(op.uid, PLAIN)
                media = self.tokens_of(op.chunk).media
                if media is not None:
                    self.shelf.keep_media(media)
                if self.shelf.put(Key("conditioned", op.chunk, op.context), block, note):
                    # If there is a patch, it is of worse hearsay.
                    self.shelf.drop(Key("patch", op.chunk, op.context))
            elif isinstance(op, FormPatch):
                whole, bare = Key("conditioned", op.chunk, op.context), Key("canonical", op.chunk)
                found = fetch(self.shelf, self.backend.layout, kv.device, {whole: op.tokens, bare: op.tokens})
                patch = self.backend.form(block_of(found[whole]), block_of(found[bare]))
                if self.shelf.put(Key("patch", op.chunk, op.context), patch, found[whole].note):
                    self.shelf.drop(whole)  # the patch stands for it now, in fewer bytes

    def _writes(self, ops: Sequence[Op], formed: dict[Key, KVBlock], device: torch.device) -> list[Write]:
        """Rotations, loads and placements, each with its patch: an Apply op amends the write of its
        placement."""
        wanted = {key: op.tokens for op in ops if (key := key_of(op)) and key not in formed}
        stored = fetch(self.shelf, self.backend.layout, device, wanted)
        stored |= {key: Stored(block) for key, block in formed.items()}
        writes: dict[int, Write] = {}
        kept = {op.uid: op for op in ops if isinstance(op, Keep)}
        for op in ops:
            key = key_of(op)
            if isinstance(op, Rotate):
                writes[op.uid] = _write(op, live=op.from_row)
            elif isinstance(op, Load | PlaceCanonical) and key:
                writes[op.uid] = _write(op, block=block_of(stored[key]))
            elif isinstance(op, ApplyPatch | ApplyOrbit | ApplyRemoval) and key:
                if op.uid not in writes:  # a removal, on rows that stay where they are
                    writes[op.uid] = _write(kept[op.uid], live=kept[op.uid].row)
                writes[op.uid].patch = patch_of(stored[key])
        return list(writes.values())

    def _save(
        self, kv: WindowKV, writes: list[Write], touched: Sequence[Prefill | _Rows]
    ) -> list[tuple[int, KVBlock]]:
        """Copies of the live rows that will be read from or written to, as few runs as possible."""
        spans = [(w.row, w.row + w.tokens) for w in writes]
        spans += [(t.row, t.row + t.tokens) for t in touched]
        spans = [(max(a, kv.start), min(b, kv.end)) for a, b in spans]
        spans += [(w.live, w.live + w.tokens) for w in writes if w.live is not None]
        return [(a, self.backend.read(kv, a, b)) for a, b in _merged(spans)]

    def _write(self, kv: WindowKV, writes: list[Write], saved: list[tuple[int, KVBlock]]) -> None:
        for write in writes:
            if write.live is not None:
                write.block = kv.sources.get(write.uid) or _cut(saved, write.live, write.tokens)
            assert write.block is not None  # a Write has a block or live rows
            self.backend.place(kv, write.row, write.block, write.patch, write.position)

    def _keep_sources(self, kv: WindowKV, plan: Plan, writes: list[Write]) -> None:
        """In half precision, what was rotated is rotated from there the next time: one rounding, not one
        more.

        A window that moves as a whole (back to row 0) is not kept twice: it is the smaller side that moves
        often.
        """
        stood = {op.uid for op in plan.ops if isinstance(op, Keep | Rotate)}
        stood -= {op.uid for op in plan.ops if isinstance(op, ApplyRemoval | Repair)}
        kv.sources = {uid: block for uid, block in kv.sources.items() if uid in stood}
        if kv.dtype not in (torch.bfloat16, torch.float16):
            return
        moved = [w for w in writes if w.live is not None and w.patch is None]
        if sum(w.tokens for w in moved) <= (kv.end - kv.start) // 2:
            kv.sources |= {w.uid: w.block.clone() for w in moved if w.block and w.uid not in kv.sources}

    def _compute(
        self,
        kv: WindowKV,
        mending: Sequence[tuple[Mending, int, int]],
        prefills: Sequence[Prefill],
        keep: int,
    ) -> Tensor | None:
        """All chunks to compute go through the model in one forward, unless rows that they see are mended."""
        runs = [run_of(op, self.tokens_of, op.row, op.position) for op in prefills]
        runs.sort(key=lambda run: run.row)
        if mending:
            return self.mender.run(kv, mending, runs, keep)
        return self.backend.prefill(kv, runs, keep) if runs else None


class _Rows(NamedTuple):
    row: int
    tokens: int


def _mending(ops: Sequence[Op]) -> Iterator[tuple[Mending, int, int]]:
    """Ops that mend a chunk, with the row and position where it stands by then."""
    places = {op.uid: (op.row, op.position) for op in ops if isinstance(op, Placing)}
    for op in ops:
        if isinstance(op, Mending):
            yield op, *places[op.uid]


def _write(
    op: Keep | Rotate | Load | PlaceCanonical, live: int | None = None, block: KVBlock | None = None
) -> Write:
    return Write(op.uid, op.row, op.position, op.tokens, live, block)


def _tokens(ops: Iterable[Op]) -> int:
    """Length of the window after ``ops``."""
    return sum(op.tokens for op in ops if isinstance(op, Keep | Rotate | Load | PlaceCanonical | Prefill))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Non-empty spans, overlapping and touching ones joined."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(s for s in spans if s[0] < s[1]):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def _cut(saved: list[tuple[int, KVBlock]], first: int, tokens: int) -> KVBlock:
    """Rows ``first : first + tokens`` out of the saved copies, which cover them."""
    for row, block in saved:
        offset = first - row
        if offset >= 0 and offset + tokens <= block.tokens:
            return block.part(offset, offset + tokens)
    raise AssertionError(f"rows {first}:{first + tokens} were not saved")
