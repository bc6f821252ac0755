"""Windows to measure on, through the engine's own backend: all that diagnose knows of rows and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentkv.cache import Run
from agentkv.engine import Engine
from agentkv.errors import TooLong, UnsupportedModel
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.media import Tokens
from agentkv.patches import Patch

Placed = tuple[KVBlock, Patch | None]
"""What stands in a window: a block, wherever it was computed, and the patch it gets there."""
Blocks = list[KVBlock]


class Probe:
    """One engine, and one buffer in which windows of up to ``rows`` tokens are put together and asked.

    Raises TooLong when the model was not built for that many positions.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        limit = engine.layout.max_positions
        if rows > limit:
            raise TooLong(
                got=f"windows of {rows} tokens, question included",
                expected=f"at most {limit}, what the model was built for",
                do="use fewer (--chunks) or shorter chunks (--chunk-tokens)",
            )
        self.engine, self.backend, self.recipe = engine, engine.backend, engine.recipe
        self._kv = self.backend.new_kv(rows)
        self.sink = self.prefill([], [Tokens(engine.sink)]) if len(engine.sink) else []
        """The fixed prefix of canonicals; windows start with it, too: no block or one."""

    def prefill(self, front: Sequence[KVBlock], chunks: Sequence[Tokens]) -> Blocks:
        """KV of ``chunks`` from one forward behind the blocks ``front``.

        Raises UnsupportedModel for an image that takes other positions than rows: what is measured here puts
        blocks at rows.
        """
        runs, row = list[Run](), self._put([(block, None) for block in front])
        for ids, media in chunks:
            if media is not None and media.span != len(ids):
                raise UnsupportedModel(
                    got=f"an image of {len(ids)} tokens over {media.span} positions",
                    expected="a position a token",
                    do="diagnose this model on text",
                )
            runs.append(Run(row, ids, media=media))
            row += len(ids)
        self._kv.end = row
        self.backend.prefill(self._kv, runs, keep=0)
        return [self.backend.read(self._kv, run.row, run.stop) for run in runs]

    def canonical(self, chunk: Tokens) -> KVBlock:
        """KV(B|∅), behind the engine's sink alone."""
        return self.backend.canonical(*chunk)

    def moved(self, block: KVBlock, like: KVBlock) -> KVBlock:
        """``block`` turned to where ``like`` stands."""
        row = self.start(like)
        self.backend.place(self._kv, row, block)
        return self.backend.read(self._kv, row, row + block.tokens)

    def start(self, block: KVBlock) -> int:
        """Where the block's first token stands."""
        return int(block.positions[0])

    def rows_made_exact(self, block: KVBlock, exact: KVBlock, rows: Tensor) -> KVBlock:
        """``block`` with the tokens ``rows`` (int64, counted from its first) taken from ``exact``; both stand
        at the same place."""
        slots = tuple(
            mine.index_copy(1, rows.to(mine.device), theirs[:, rows])
            for mine, theirs in zip(block.slots, exact.slots, strict=True)
        )
        return KVBlock(slots, block.positions)

    def deficit(self, conditioned: KVBlock, base: KVBlock) -> tuple[Tensor, ...]:
        """Δ per slot ``[L, n, H, D]`` in fp32 (fp64 for fp64), where ``base`` stands."""
        return self.backend.deficit(conditioned, base)

    def placed(self, patch: Patch, base: KVBlock) -> Patch:
        """A patch of a deficit that was measured where ``base`` stands."""
        return replace(patch, position=self.start(base))

    def logits(self, window: Sequence[Placed], question: Ids) -> Tensor:
        """``[T, vocab]``: next-token logits of the question, teacher-forced behind the window."""
        return self.answers(window, [question])[0]

    def answers(self, window: Sequence[Placed], questions: Sequence[Ids]) -> list[Tensor]:
        """As `logits`, for several questions, each of them directly behind the window."""
        row, found = self._put(window), list[Tensor]()
        for question in questions:
            self._kv.end = row + len(question)
            found.append(self.backend.prefill(self._kv, [Run(row, question)], keep=len(question)))
        return found

    def _put(self, window: Sequence[Placed]) -> int:
        """Write the blocks one behind the other; the row behind them."""
        row = 0
        for block, patch in window:
            self.backend.place(self._kv, row, block, patch)
            row += block.tokens
        return row


def plain(blocks: Sequence[KVBlock]) -> list[Placed]:
    """A window of blocks without a patch."""
    return [(block, None) for block in blocks]


class Truth:
    """Logits ``[T, vocab]`` of a re-prefill, with what every comparison with them needs."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        known = logits.double().log_softmax(-1)
        self._p = known.exp()
        self._entropy = (self._p * known).sum(-1)  # negative, [T]

    def kl(self, found: Tensor) -> float:
        """KL(truth ‖ found) of the next token in nats, mean over the question; logits ``[T, vocab]``.

        Σ p ln q = Σ p·x - ln Σ exp x for logits x: half the work of two softmaxes, in fp64 as exact.
        """
        x = found.double()
        each = self._entropy - torch.einsum("tv,tv->t", self._p, x) + x.logsumexp(-1)
        return float(each.clamp_min(0).mean())


def largest(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; NaN where there is one."""
    return float((a.double() - b.double()).abs().max())


def power(x: Tensor) -> Tensor:
    """‖·‖² per layer of a slot ``[L, n, H, D]``: fp64 ``[L]``."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64).square()
