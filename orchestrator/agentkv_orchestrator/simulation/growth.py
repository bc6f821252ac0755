"""Turns that only append: an unchanged window in front needs no plan, so none is made.

Where the window stands as it was computed and all that comes is new, a plan keeps the one and computes the
other, whatever the policy. What is left here is its bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..chunks import Chunk
from ..cost import CostTable
from ..diff import Wanted
from ..plan import Plan
from ..trace import Message
from ..window import Placement, WindowGraph


def stands(plan: Plan, graph: WindowGraph) -> bool:
    """Whether what `plan` left is exact where it stands, and verbatim for a policy that asks for that."""
    if plan.predicted_kl:
        return False
    return plan.policy != "exact" or all(p.verbatim for p in graph.placements)


def goes_on(live: Sequence[Wanted], messages: Sequence[Message]) -> bool:
    """Whether these messages are the live ones, and more behind them."""
    return len(live) < len(messages) and all(
        w.chunk.id == m.id and w.pinned == m.pin and (w.order_free is not None) == m.order_free
        for w, m in zip(live, messages, strict=False)
    )


class Growth:
    """A window that grows at its end."""

    def __init__(self, graph: WindowGraph) -> None:
        self.graph = graph
        self._lineage = graph.lineage  # of all that stands
        self._verbatim = all(p.verbatim for p in graph.placements)

    def computed(self, wanted: Sequence[Wanted], costs: CostTable) -> float:
        """Take in chunks that are prefilled behind the window, in one forward; its milliseconds."""
        first = self.graph.placements[0].row
        prefill, rows = costs.of("prefill"), self.graph.placements[-1].stop - first
        ms = prefill.base
        for w in wanted:
            ms += round(prefill.more(w.chunk.length, rows), 4)
            rows += w.chunk.length
        self._take([(w.uid, w.chunk) for w in wanted], True)
        return ms

    def decoded(self, uid: int, chunk: Chunk, hearsay: float) -> None:
        """Take in an answer: it has seen the whole window, and nobody pays for it."""
        self._take([(uid, chunk)], self._verbatim, hearsay)

    def _take(self, chunks: Sequence[tuple[int, Chunk]], verbatim: bool, hearsay: float = 0.0) -> None:
        placed = tuple(self._placed(chunks, verbatim, hearsay))
        self.graph = self.graph.revise((*self.graph.placements, *placed))

    def _placed(
        self, chunks: Sequence[tuple[int, Chunk]], verbatim: bool, hearsay: float
    ) -> Iterator[Placement]:
        first, last = self.graph.placements[0], self.graph.placements[-1]
        row, position = last.stop, last.position_stop
        tokens = row - first.row
        for uid, chunk in chunks:
            yield Placement(
                uid=uid,
                chunk=chunk,
                row=row,
                position=position,
                antecedents=self._lineage,
                antecedent_tokens=tokens,
                exact=True,
                verbatim=verbatim,
                hearsay=hearsay,
                revision=self.graph.revision + 1,
            )
            self._lineage = self._lineage.then(chunk.id)
            row, position, tokens = row + chunk.length, position + chunk.span, tokens + chunk.length
