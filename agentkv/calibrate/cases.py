"""What the error model sees of a chunk: where it stands, what has changed in front of it, what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.diff import Change, Comparison, Wanted
from agentkv_orchestrator.errors_model import ErrorModel, Where
from agentkv_orchestrator.lineage import EMPTY, Lineage
from agentkv_orchestrator.window import Placement, WindowGraph

Treatment = Literal["stale", "near", "patch", "orbit", "removal", "canonical"]
"""stale: KV of another context, as it is. near: the patch of another context. patch, orbit, removal: made for
this context. canonical: nothing but R(δ)."""


class Case(NamedTuple):
    """One chunk of a window that is approximate."""

    treatment: Treatment
    kind: str
    tokens: int
    front: int
    """Tokens in front of it."""
    window: int
    """Tokens of the window."""
    lost: int = 0
    """Tokens of antecedents that are in its KV and in the window no more."""
    gained: int = 0
    """Tokens in front that its KV has not seen."""
    reordered: bool = False
    hole: bool = False
    rank: int = 0
    """Of its patch; 0 without one."""
    brought: bool = False
    """It was not in the window before."""

    def kl(self, model: ErrorModel) -> float:
        """What a model says of it, as it does to the planner."""
        where = Where(self.kind, self.tokens, self.front, self.window)
        ranked = model.at_rank(self.rank) if self.rank else model
        if self.treatment == "canonical":
            return model.bare(where)
        if self.treatment == "patch":
            return ranked.patched(where)
        if self.treatment == "orbit":
            return model.orbited(where)
        stale = model.stale(self.change(), where)
        if self.treatment == "near":
            return stale + ranked.patched(where)
        return stale * model.removal if self.treatment == "removal" else stale

    def change(self) -> Change:
        """What happened in front of it."""
        chunk = Chunk(id="", kind=self.kind, length=self.tokens)
        return Change(
            uid=0,
            chunk=chunk,
            kind="survivor",
            context="stored" if self.brought else "",
            lost_tokens=self.lost,
            gained_tokens=self.gained,
            reordered=self.reordered,
            hole=self.hole,
        )


class Books:
    """One edit as the planner's books have it: which antecedents live KV has, against what is wanted.

    Chunks are numbers. head: those that stand in front of every window here.
    """

    def __init__(
        self,
        lengths: Mapping[int, int],
        kinds: Mapping[int, str],
        head: Sequence[int],
        live: Sequence[int],
        wanted: Sequence[int],
    ) -> None:
        self._lengths, self._kinds, self._head, self._live = lengths, kinds, (*head,), (*live,)
        self.wanted = [*head, *wanted]
        chunks = [Wanted(uid=i + 2, chunk=self.chunk(i)) for i in self.wanted]
        self.graph = WindowGraph(placements=tuple(self._placements()))
        self._comparison = Comparison(self.graph, chunks)
        self._fronts = list(accumulate((lengths[i] for i in self.wanted), initial=0))

    def chunk(self, i: int) -> Chunk:
        """As the books know it."""
        return Chunk(id=str(i), kind=self._kinds[i], length=self._lengths[i])

    def _placements(self) -> list[Placement]:
        found, seen, row = [], EMPTY, 0
        for i in (*self._head, *self._live):
            chunk = self.chunk(i)
            found.append(
                Placement(
                    uid=i + 2,
                    chunk=chunk,
                    row=row,
                    position=row,
                    antecedents=seen,
                    antecedent_tokens=row,
                    exact=True,
                    revision=0,
                )
            )
            seen, row = seen.then(chunk.id), row + chunk.length
        return found

    def bare(self, antecedents: Sequence[int]) -> bool:
        """Whether KV computed behind these has seen nothing: to the planner it is a canonical then."""
        return not (self._head or antecedents)

    def change(self, i: int, antecedents: Sequence[int]) -> Change:
        """What chunk `i` misses at its wanted place if its KV was computed behind these."""
        seen = (*self._head, *antecedents)
        lineage = Lineage.of([str(j) for j in seen])
        tokens = sum(self._lengths[j] for j in seen)
        return self._comparison.at(self.wanted.index(i), lineage, tokens, context="stored")

    def case(self, i: int, treatment: Treatment, change: Change | None = None, rank: int = 0) -> Case:
        """Chunk `i` treated so; change: of KV or a patch from another context."""
        at = self.wanted.index(i)
        differs = change or Change(0, self.chunk(i), "kept")
        return Case(
            treatment,
            self._kinds[i],
            self._lengths[i],
            self._fronts[at],
            self._fronts[-1],
            differs.lost_tokens,
            differs.gained_tokens,
            differs.reordered,
            differs.hole,
            rank,
            i not in self._live,
        )
