"""One window measured, start to end; and the basis that its patches may share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from agentkv.diagnose import edits, pair
from agentkv.diagnose.documents import Piece
from agentkv.diagnose.gates import KV, recomputed
from agentkv.diagnose.probe import Probe, plain
from agentkv.diagnose.report import WindowRecord
from agentkv.diagnose.sample import Sample
from agentkv.engine import Engine
from agentkv.errors import InvalidInput
from agentkv.inputs import Ids, marker_ids
from agentkv.media import Tokens
from agentkv.patches.basis import BasisPool, SharedBasis

QUESTIONS = (
    "What is the last of these texts about?",
    "Which of these texts is the most useful one, and why?",
    "What does the text above say first?",
    "Name one thing that the texts above have in common.",
)
TRAIN = 4
"""Windows that the shared basis is pooled over; they give a pair for every chunk but the first."""


class Texts:
    """Pieces and questions as the engine would append them: inside the markers of its chat template."""

    def __init__(self, engine: Engine, length: int) -> None:
        """length: tokens of a chunk, markers included. Raises InvalidInput when they leave no room."""
        marks, self.engine = engine.template.marks("document"), engine
        self._head, self._tail = (marker_ids(engine.tokenizer, text) for text in (marks.head, marks.tail))
        self.body = length - len(self._head) - len(self._tail)
        if self.body < 1:
            raise InvalidInput(
                got=f"chunks of {length} tokens",
                expected=f"more than the {length - self.body} that the chat template takes for itself",
                do="use longer chunks (--chunk-tokens)",
            )
        self.questions = [self._question(text) for text in QUESTIONS]

    def encode(self, text: str) -> list[int]:
        """Ids of a text of any length."""
        ids: list[int] = self.engine.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def chunk(self, piece: Piece) -> Tokens:
        """``length`` tokens: a piece of ``body`` tokens inside its markers."""
        return Tokens(np.concatenate([self._head, np.asarray(piece.ids, dtype=np.int64), self._tail]))

    def _question(self, text: str) -> Ids:
        template = self.engine.template
        return marker_ids(
            self.engine.tokenizer, template.render(text, "user") + template.marks("assistant").head
        )


def sample(probe: Probe, texts: Texts, pieces: Sequence[Piece], index: int) -> Sample:
    """The window of these pieces, with the question that is due."""
    question = texts.questions[index % len(texts.questions)]
    return Sample(probe, [texts.chunk(piece) for piece in pieces], question)


def train(probe: Probe, texts: Texts, windows: Sequence[Sequence[Piece]]) -> SharedBasis:
    """A basis pooled over every chunk of ``windows`` behind those in front of it."""
    pool = BasisPool()
    for pieces in windows:
        chunks = [texts.chunk(piece) for piece in pieces]
        for conditioned, chunk in zip(probe.prefill(probe.sink, chunks)[1:], chunks[1:], strict=True):
            pool.add(probe.deficit(conditioned, probe.canonical(chunk)))
    return pool.basis(pair.RANK)


def measure(one: Sample, basis: SharedBasis, pieces: Sequence[Piece], index: int) -> WindowRecord:
    """Everything about one window; ``index`` seeds what is drawn."""
    layout, count = one.probe.engine.layout, one.target.tokens
    ranks, profile = pair.by_rank(one), pair.profile(one, layout)
    alike = KV[one.target.slots[0].dtype]
    noise = {name: [x < alike for x in each] for name, each in profile.items()}
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(index))
    found, removal, orbit = edits.measure(one, index)
    return WindowRecord(
        documents=tuple(f"{piece.name}:{piece.start}" for piece in pieces),
        noise=one.error(plain(recomputed(one))),
        blind=one.behind_the_rest((one.canonical[-1], None)),
        rank=ranks,
        depth=pair.by_depth(one),
        shared=pair.shared(one, basis),
        orbit=orbit,
        oracle=pair.by_tokens(one, pair.SUBSETS, pair.worst_first(one.delta)),
        random=pair.by_tokens(one, pair.SUBSETS, shuffled),
        removal=removal,
        edits=found,
        components=pair.components(one.spectrum, layout, noise),
        profile={name: tuple(each) for name, each in profile.items()},
        patch_bytes=pair.stored(one, one.spectrum, pair.RANK).nbytes,
    )
