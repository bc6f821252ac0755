"""One window measured: several edits of it, several ways to carry each out, several questions behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np

from agentkv.calibrate.arms import Arms, Stored
from agentkv.calibrate.cases import Books, Case
from agentkv.calibrate.report import ArmRecord, EditRecord, WindowRecord
from agentkv.calibrate.texts import Part
from agentkv.calibrate.windows import Drawn, Edit
from agentkv.diagnose.probe import Blocks, Probe, Truth, plain
from agentkv.engine import Engine
from agentkv.inputs import Ids, marker_ids
from agentkv.kv import KVBlock
from agentkv.media import Tokens

QUESTIONS = (
    "What is the last text about?",
    "Which text is the most useful, and why?",
    "What is to be done next?",
    "Name one thing that is said above.",
)
QUOTE = "What follows '{words}'?"
ONE, MIXED = 3, 2
"""Arms of an edit in which one chunk is approximate, and in which several may be."""
SINK = -1
"""Number of the chunk in front of a window that has one."""
QUOTED = 8
"""Tokens that a question quotes of a chunk."""


class Asked:
    """Pieces and questions as the engine would append them: inside the markers of its chat template."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._marks = engine, engine.template.marks("document")
        self._head, self._tail = (
            marker_ids(engine.tokenizer, text) for text in (self._marks.head, self._marks.tail)
        )
        self.around = len(self._head) + len(self._tail)

    def encode(self, text: str) -> list[int]:
        """Ids of a text of any length."""
        ids: list[int] = self.engine.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def chunk(self, ids: Sequence[int]) -> Tokens:
        """A piece inside its markers."""
        return Tokens(np.concatenate([self._head, np.asarray(ids, dtype=np.int64), self._tail]))

    def question(self, text: str) -> Ids:
        """A question and the head of its answer."""
        template = self.engine.template
        return marker_ids(
            self.engine.tokenizer, template.render(text, "user") + template.marks("assistant").head
        )

    def about(self, ids: Sequence[int], draw: random.Random) -> Ids:
        """A question that quotes a chunk."""
        at = draw.randrange(max(1, len(ids) - QUOTED))
        words = self.engine.tokenizer.decode(list(ids[at : at + QUOTED]))
        return self.question(QUOTE.format(words=" ".join(words.split())))


class Measured:
    """A window, prefilled; `edit` measures one edit of it."""

    def __init__(self, probe: Probe, asked: Asked, drawn: Drawn, seed: str) -> None:
        self.probe, self.asked, self.drawn, self.draw = probe, asked, drawn, random.Random(seed)
        self.chunks = [asked.chunk(piece.ids) for piece in drawn.pieces]
        self.canonical = cache(lambda i: probe.canonical(self.chunks[i]))
        # A window without a system message loses its first tokens, and the attention they take, in a slide.
        self.head = probe.sink if drawn.headed else []
        self.order = tuple(range(drawn.size))
        self.full = self._prefill((), [], self.order)
        sink = {SINK: sum(block.tokens for block in probe.sink)}
        self.lengths = {i: len(chunk.ids) for i, chunk in enumerate(self.chunks)} | sink
        self.kinds = {i: piece.kind for i, piece in enumerate(drawn.pieces)} | {SINK: "system"}

    def edit(self, edit: Edit) -> EditRecord:
        """KL of every arm to the re-prefill of the wanted window, by question."""
        live = self._behind(edit.live, self.order, self.full)
        truth = self._behind(edit.wanted, *self._longer(edit, live))
        stored = {i: Stored(block, self.order[:i]) for i, block in zip(self.order, self.full, strict=True)}
        stored |= {i: Stored(live[at], edit.live[:at]) for at, i in enumerate(edit.live)}
        exact = dict(zip(edit.wanted, truth, strict=True))
        head = [SINK] if self.head else []
        books = Books(self.lengths, self.kinds, head, edit.live, edit.wanted)
        arms = Arms(
            self.probe,
            books,
            exact,
            {i: kv for i, kv in stored.items() if i in exact},
            self._orders(edit, live),
            self.canonical,
        )
        built = [
            arms.keep(),
            *(arms.one(self.draw) for _ in range(ONE)),
            *(arms.mixed(self.draw) for _ in range(MIXED)),
        ]
        questions = [self.asked.question(self.draw.choice(QUESTIONS)), self._targeted(arms)]
        right = [Truth(logits) for logits in self.probe.answers(plain([*self.head, *truth]), questions)]
        records: dict[tuple[Case, ...], ArmRecord] = {}
        for window, cases in built:
            if not cases or tuple(cases) in records:
                continue  # small windows have few arms, and some are drawn twice
            # Two questions to the same arm say much the same: only the first arm hears both.
            chosen = range(len(questions)) if not records else [len(records) % len(questions)]
            found = self.probe.answers([*plain(self.head), *window], [questions[q] for q in chosen])
            kl = tuple(right[q].kl(logits) for q, logits in zip(chosen, found, strict=True))
            records[tuple(cases)] = ArmRecord(cases=tuple(cases), kl=kl)
        return EditRecord(name=edit.name, arms=tuple(records.values()))

    def _targeted(self, arms: Arms) -> Ids:
        """About one of the chunks that changed, or about any."""
        i = self.draw.choice(arms.changed if self.draw.random() < 0.5 else list(arms.exact))
        return self.asked.about(self.drawn.pieces[i].ids, self.draw)

    def _longer(self, edit: Edit, live: Blocks) -> tuple[tuple[int, ...], Blocks]:
        """The window that starts like the wanted one for longer: the live or the full one."""
        if _common(edit.wanted, edit.live) > _common(edit.wanted, self.order):
            return edit.live, live
        return self.order, self.full

    def _behind(self, order: tuple[int, ...], known: tuple[int, ...], blocks: Blocks) -> Blocks:
        """KV of the chunks in this order, computed from where it leaves a known order."""
        same = _common(order, known)
        return self._prefill(order[:same], blocks[:same], order[same:])

    def _prefill(self, front: tuple[int, ...], blocks: Blocks, order: tuple[int, ...]) -> Blocks:
        if not order:
            return blocks
        return [*blocks, *self.probe.prefill([*self.head, *blocks], [self.chunks[i] for i in order])]

    def _orders(self, edit: Edit, live: Blocks) -> dict[int, list[KVBlock]]:
        """Of a reorder, KV of the first chunk behind what was permuted, in the live order and in another."""
        if edit.name != "reorder":
            return {}
        moved = [at for at, (a, b) in enumerate(zip(edit.live, edit.wanted, strict=True)) if a != b]
        first, last = moved[0], moved[-1] + 1
        if last == len(edit.live):
            return {}
        other = list(edit.live[first:last])
        while tuple(other) in (edit.live[first:last], edit.wanted[first:last]) and len(other) > 2:
            self.draw.shuffle(other)
        if len(other) == 2:
            return {}  # of two there is no third order
        order = (*edit.live[:first], *other, edit.live[last])
        return {edit.live[last]: [live[last], self._behind(order, edit.live, live)[-1]]}


def measure(probe: Probe, asked: Asked, drawn: Drawn, part: Part, seed: str) -> WindowRecord:
    """All edits of one window."""
    window = Measured(probe, asked, drawn, seed)
    return WindowRecord(
        part=part,
        sources=tuple(dict.fromkeys(piece.source for piece in drawn.pieces)),
        edits=tuple(window.edit(edit) for edit in drawn.edits),
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
