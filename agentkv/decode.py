"""Answers: the decode loop, and how an answer becomes a chunk of the window."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.plan import Prefill
from agentkv_orchestrator.window import Placement, WindowGraph
from torch import Tensor

from agentkv import rules
from agentkv.cache import Run
from agentkv.errors import EmptyChunk
from agentkv.handles import Entry, Handle, Unanswered, words
from agentkv.inputs import Ids, Marks, marker_ids
from agentkv.replacing import whole_or_unchanged
from agentkv.sampling import Guide, Sampling
from agentkv.showing import Message
from agentkv.undo import recorded

if TYPE_CHECKING:
    from agentkv.window import Window


@dataclass
class Timing:
    """Of the last answer: ms from the call to the first token, then ms and number of tokens after it."""

    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    tokens: int = 0


def answer(
    window: Window,
    prompt: str | Sequence[Message] | None,
    sampling: Sampling,
    marks: Marks | None = None,
    guide: Guide | None = None,
) -> Generator[str, None, None]:
    """Append the prompt, or show a list of messages, then commit and decode. Yields text as soon as its
    tokens spell whole characters.

    marks: what opens and ends the answer, in place of what the engine's template writes. guide: what it may
    say.
    Whatever was decoded is in the window afterwards, also when the caller stops early or an error is raised
    between two tokens. Raises TooLong when the longest answer would not fit (the window is then as it was),
    and what `Window.append` and `Window.show` raise.
    """
    decoding = _Decoding(window, prompt, sampling, marks, guide)
    try:
        yield from decoding.pieces()
    finally:
        decoding.close()


class _Decoding:
    """One answer under way: rows from ``first`` on hold the head of the message, then what was said."""

    def __init__(
        self,
        window: Window,
        prompt: str | Sequence[Message] | None,
        sampling: Sampling,
        marks: Marks | None,
        guide: Guide | None,
    ) -> None:
        self.start = time.perf_counter()
        self.window, self.sampling, self.engine = window, sampling, window.engine
        self.guide = guide
        self.stops = self.engine.template.stop_ids
        if marks is None:
            marks = self.engine.template.marks("assistant")
        else:
            self.stops |= set(marker_ids(self.engine.tokenizer, marks.tail.strip())[:1].tolist())
        self.head = marker_ids(self.engine.tokenizer, marks.head)
        self.tail = marker_ids(self.engine.tokenizer, marks.tail)
        self.said: list[int] = []
        self.fed = 0
        with window.editing():
            self.logits = self._open(prompt)
            self.first = window.kv.end - len(self.head)
            last = window.graph.placements[-1]
            self.skew = last.position_stop - window.kv.end  # positions minus rows from here on
            window.unanswered = _unanswered(window, self.first, bool(len(self.head)))
        self.cache = window.kv.live()

    def _open(self, prompt: str | Sequence[Message] | None) -> Tensor:
        """Commit the prompt and the head of the answer in one plan; logits ``[1, vocab]`` of the last
        token."""
        window = self.window
        room = len(self.head) + self.sampling.max_new_tokens + len(self.tail)
        with whole_or_unchanged(window):
            if isinstance(prompt, str):
                window.append(prompt, kind="user")
            elif prompt is not None:
                window.show(prompt)
            rules.fits(window.content.tokens + room, window.max_tokens)
            if not window.content.tokens:
                raise EmptyChunk(
                    got="an empty window", expected="something to answer", do="append a message first"
                )
            if len(self.head):
                window.append_ids(self.head, kind="assistant")
        past, known = window.past, window.committed
        window.commit(headroom=room - len(self.head), keep=1)  # the head is in the window by now
        if len(self.head):  # no revision of its own
            window.past = recorded(window, past, window.content.without({window.content.order[-1]}), known)
        window.kv.own()  # a commit that writes nothing leaves the rows shared with forks
        logits, last = window.last_outcome.logits, window.graph.placements[-1]
        prefilled = window.last_plan is not None and any(
            isinstance(op, Prefill) and op.uid == last.uid for op in window.last_plan.ops
        )
        if logits is not None and prefilled:
            return logits
        # Everything was reused: only the last token's logits are missing. Its KV keeps the bits it had.
        backend, kv = self.engine.backend, window.kv
        ids, media = self.engine.tokens(last.chunk.id)
        row = last.row if media else last.stop - 1  # an image runs as a whole
        again = Run(row, ids[row - last.row :], last.position + row - last.row, media)
        kept = backend.read(kv, row, last.stop)
        try:
            return backend.prefill(kv, [again], keep=1)
        finally:
            backend.place(kv, row, kept, position=int(kept.positions[0]))

    def pieces(self) -> Iterator[str]:
        choose = self.sampling.chooser(self.logits.device)
        decoder = _TextDecoder(self.engine.tokenizer)
        stops = self.stops if self.sampling.stop else frozenset()
        timing, logits, since = self.window.timing, self.logits, 0.0
        for count in range(self.sampling.max_new_tokens):
            token = choose(self._sayable(logits))
            if count == 0:
                since = time.perf_counter()
                timing = self.window.timing = Timing(ttft_ms=(since - self.start) * 1e3)
            if token in stops:
                break
            self.said.append(token)
            timing.tokens, timing.decode_ms = count + 1, (time.perf_counter() - since) * 1e3
            if text := decoder.push(token):
                yield text
            if self.guide is not None and self.guide.push(token):
                break
            if count + 1 < self.sampling.max_new_tokens:
                logits = self._feed([token])
        if text := decoder.flush():
            yield text

    def _sayable(self, logits: Tensor) -> Tensor:
        """Without the tokens that stand for images (an answer shows none, and the next forward would look for
        it), and without those that the guide forbids."""
        hidden = self.engine.tower.placeholder_ids
        if hidden:
            logits = logits.index_fill(-1, torch.tensor(hidden, device=logits.device), -torch.inf)
        return logits if self.guide is None else self.guide.mask(logits)

    def _feed(self, tokens: list[int]) -> Tensor:
        self.window.require_open()
        row = self.first + len(self.head) + self.fed
        logits = self.engine.runner.run([Run(row, tokens, row + self.skew)], self.cache, keep=1)
        self.fed += len(tokens)
        return logits

    def close(self) -> None:
        """Run what was said but is not in the cache yet, with the end of the message, and make it a chunk.

        When that fails the answer is dropped, and the window is as it was before it.
        """
        window = self.window
        if window.closed:
            window.unanswered = None
            return
        try:
            rest = [*self.said[self.fed :], *self.tail.tolist()]
            if rest:
                self._feed(rest)
            ids = np.concatenate([self.head, np.asarray(self.said, dtype=np.int64), self.tail])
        except BaseException:
            ids = np.empty(0, dtype=np.int64)
            raise
        finally:
            try:
                _settle_answer(window, self.first + self.skew, len(self.head), ids)
            finally:
                window.unanswered = None  # last: an edit let in any earlier would be lost


def _unanswered(window: Window, first: int, headed: bool) -> Unanswered:
    """The window without the head of the answer, which was committed as a message of its own."""
    graph, content = window.graph, window.content
    if headed:
        graph = graph.revise(graph.placements[:-1])
        content = content.forgotten(content.order[-1])
    return Unanswered(graph, content, window.past, first)


def _settle_answer(window: Window, position: int, head: int, ids: Ids) -> None:
    """Put the finished answer ``ids``, of which ``head`` tokens open it, behind what it answers, at
    ``position``."""
    if window.unanswered is None:
        return
    graph, content, past, first = window.unanswered
    hearsay = window.error_in_front(first)
    window.kv.end = first + len(ids)
    if len(ids):
        parts = window.cut_parts(ids, "assistant")
        text = window.engine.tokenizer.decode(ids[head:].tolist(), skip_special_tokens=True)
        handle = Handle(window.engine.numbers(1), "assistant", len(ids), words(text))
        content = content.with_entry(Entry(handle, parts), len(content.order))
        graph = graph.revise([*graph.placements, *_placements(graph, parts, first, position, hearsay)])
        window.last_answer = handle
    window.graph = graph
    window.past = recorded(window, past, content, window.committed)
    window.content = window.committed = content
    window.usage = replace(window.usage, decoded=window.usage.decoded + max(0, len(ids) - head))


def _placements(
    graph: WindowGraph, parts: Sequence[tuple[int, Chunk]], row: int, position: int, hearsay: float
) -> Iterator[Placement]:
    """The answer's chunks, conditioned for free by their own decode on all that stood in front."""
    front, tokens = graph.lineage, graph.tokens
    verbatim = all(p.verbatim or p.clean for p in graph.placements)
    clean = tuple(p.chunk.id for p in graph.placements if p.clean)
    for uid, chunk in parts:
        yield Placement(
            uid=uid,
            chunk=chunk,
            row=row,
            position=position,
            antecedents=front,
            antecedent_tokens=tokens,
            exact=not clean,
            clean_front=clean,
            verbatim=verbatim,
            hearsay=hearsay,
            revision=graph.revision + 1,
        )
        front = front.then(chunk.id)
        tokens, row, position = tokens + chunk.length, row + chunk.length, position + chunk.length


class _TextDecoder:
    """Token ids to text, holding back bytes that do not end a character yet."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.pending: list[int] = []
        self.context: list[int] = []

    def push(self, token: int) -> str:
        self.pending.append(token)
        text = self._text()
        if text.endswith("\ufffd"):
            return ""
        self.context, self.pending = self.pending[-4:], []
        return text

    def flush(self) -> str:
        text = self._text() if self.pending else ""
        self.pending = []
        return text

    def _text(self) -> str:
        """Text of the pending tokens; decoded behind a few earlier ones, since a space may belong to
        either."""
        decode = self.tokenizer.decode
        before = decode(self.context, skip_special_tokens=False)
        return decode(self.context + self.pending, skip_special_tokens=False)[len(before) :]
