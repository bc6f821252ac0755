"""One window of the user's texts, with its question and all that its measurements are made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from agentkv.diagnose.probe import Blocks, Placed, Probe, Truth, plain
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.media import Tokens
from agentkv.patches import Spectrum, decompose


class Sample:
    """[sink · C1 … Cn] and a question, prefilled in one forward.

    chunks: n ≥ 3, text or images. question: int64 ``[T]``. Windows are given and returned without the sink.
    """

    def __init__(self, probe: Probe, chunks: Sequence[Tokens], question: Ids) -> None:
        self.probe, self.chunks, self.question = probe, list(chunks), question
        self.full = probe.prefill(probe.sink, chunks)
        # The first chunk stands behind the sink alone as it is.
        self.canonical = [self.full[0], *map(probe.canonical, self.chunks[1:])]
        self.truth = self.ask(self.full)

    def prefill(self, front: Sequence[KVBlock], order: Sequence[int]) -> Blocks:
        """``front`` and the chunks in ``order`` behind it, from one forward."""
        fresh = self.probe.prefill([*self.probe.sink, *front], [self.chunks[i] for i in order])
        return [*front, *fresh]

    def logits(self, window: Sequence[Placed]) -> Tensor:
        """Of the question behind sink and window: ``[T, vocab]``."""
        return self.probe.logits([*plain(self.probe.sink), *window], self.question)

    def ask(self, window: Blocks) -> Truth:
        """What a window that was prefilled answers."""
        return Truth(self.logits(plain(window)))

    def error(self, window: Sequence[Placed], truth: Truth | None = None) -> float:
        """KL to the re-prefill, nats. truth: of another window than the full one."""
        return (truth or self.truth).kl(self.logits(window))

    @property
    def target(self) -> KVBlock:
        """The last chunk, conditioned on all others."""
        return self.full[-1]

    def behind_the_rest(self, placed: Placed) -> float:
        """KL with ``placed`` in the place of the last chunk, the others as prefilled."""
        return self.error([*plain(self.full[:-1]), placed])

    @cached_property
    def delta(self) -> tuple[Tensor, ...]:
        """What the last chunk's canonical misses, per slot ``[L, n, H, D]``, where the canonical stands."""
        return self.probe.deficit(self.target, self.canonical[-1])

    @cached_property
    def spectrum(self) -> Spectrum:
        """All components of that deficit."""
        return decompose(self.delta)
