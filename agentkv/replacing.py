"""A message changed in its place: only the tokens that differ are new, however the message was cut before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.split import split

from agentkv.handles import Content, Entry
from agentkv.inputs import Ids

if TYPE_CHECKING:
    from agentkv.edits import Edits

Parts = tuple[tuple[int, Chunk], ...]

SHORTEST = 8
"""Tokens that must agree in a row to be worth a chunk of their own inside a changed stretch."""


@contextmanager
def whole_or_unchanged(window: Edits) -> Iterator[None]:
    """An edit that is given up leaves the window as it was, though placements were divided for it."""
    before = window.graph, window.content, window.committed, window.past
    try:
        yield
    except BaseException:
        window.graph, window.content, window.committed, window.past = before
        raise


class Block(NamedTuple):
    """``tokens`` that stand at ``old`` in one text and at ``new`` in the other."""

    old: int
    new: int
    tokens: int


def common(old: Ids, new: Ids) -> Iterator[Block]:
    """Stretches that both texts share, in order: their heads, their tails, and what lies between.

    int64 ids ``[T]`` of both. Heads and tails are compared as arrays, so that the quadratic search sees
    only the stretch that changed.
    """
    shorter = min(len(old), len(new))
    head = _agreeing(old[:shorter], new[:shorter])
    rest = shorter - head
    tail = _agreeing(old[len(old) - rest :][::-1], new[len(new) - rest :][::-1])
    yield Block(0, 0, head)
    inner_old, inner_new = old[head : len(old) - tail].tolist(), new[head : len(new) - tail].tolist()
    for block in SequenceMatcher(None, inner_old, inner_new, autojunk=False).get_matching_blocks():
        if block.size >= SHORTEST:
            yield Block(head + block.a, head + block.b, block.size)
    yield Block(len(old) - tail, len(new) - tail, tail)


def _agreeing(a: Ids, b: Ids) -> int:
    """How many leading numbers of two arrays of one length are the same."""
    same = a == b
    return len(a) if same.all() else int(np.argmin(same))


def replaced(window: Edits, old: Entry, new: Ids) -> Parts:
    """Chunks of the new text: those of the old one wherever both agree, fresh ones between.

    Splits live placements at the edges of what changed (graph, noted and committed content alike).
    """
    before = np.concatenate([window.engine.chunks.ids(chunk.id) for _, chunk in old.parts])
    blocks = list(common(before, new))
    parts = divided(window, old, {edge for b in blocks for edge in (b.old, b.old + b.tokens)})
    found, done = list[tuple[int, Chunk]](), 0
    for start, part in _inside(parts, blocks):
        if start > done:
            found += window.cut_parts(new[done:start], old.handle.kind)
        found.append(part)
        done = start + part[1].length
    if done < len(new):
        found += window.cut_parts(new[done:], old.handle.kind)
    return tuple(found)


def _inside(parts: Parts, blocks: list[Block]) -> Iterator[tuple[int, tuple[int, Chunk]]]:
    """Old parts that lie wholly in a block, each with its first token in the new text."""
    start = 0
    for part in parts:
        stop = start + part[1].length
        for block in blocks:
            if block.old <= start and stop <= block.old + block.tokens:
                yield block.new + start - block.old, part
                break
        start = stop


def divided(window: Edits, entry: Entry, offsets: set[int]) -> Parts:
    """Parts of ``entry`` divided at token ``offsets``; a chunk that is placed twice stays whole.

    Its live placements are divided with it, in the graph and in noted and committed content alike.
    """
    engine, pieces, start = window.engine, dict[int, Parts](), 0
    live = [p.chunk.id for p in window.graph.placements]
    for uid, chunk in entry.parts:
        inside = sorted(o - start for o in offsets if start < o < start + chunk.length)
        start += chunk.length
        if not inside or live.count(chunk.id) > 1:
            continue
        ids = engine.chunks.ids(chunk.id)
        spans = zip([0, *inside], [*inside, chunk.length], strict=True)
        first = engine.numbers(len(inside) + 1)
        pieces[uid] = tuple(
            (first + i, engine.register(ids[a:b], chunk.kind)) for i, (a, b) in enumerate(spans)
        )
        if window.graph.get(uid) is not None:
            window.graph = split(window.graph, uid, pieces[uid])
    window.content, window.committed = _with(window.content, pieces), _with(window.committed, pieces)
    if pieces:
        window.past = window.past.rewritten(lambda entries: tuple(_divided_entry(e, pieces) for e in entries))
    return _parts(entry, pieces)


def _parts(entry: Entry, pieces: Mapping[int, Parts]) -> Parts:
    return tuple(part for whole in entry.parts for part in pieces.get(whole[0], (whole,)))


def _with(content: Content, pieces: Mapping[int, Parts]) -> Content:
    """Whichever message has a divided placement has its pieces now; a rollback finds them there."""
    return Content(content.order, tuple((i, _divided_entry(e, pieces)) for i, e in content.entries))


def _divided_entry(entry: Entry, pieces: Mapping[int, Parts]) -> Entry:
    parts = _parts(entry, pieces)
    return entry if parts == entry.parts else replace(entry, parts=parts)
