"""What a rule looks at to propose a way for one chunk, and what it answers with."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from .cost import CostTable, Timed
from .diff import Change, Wanted
from .errors_model import Where
from .figures import Figures
from .lineage import Lineage
from .plan import (
    NAMES,
    Alternative,
    Applying,
    ApplyRemoval,
    EstimatePatch,
    FormCanonical,
    Keep,
    Placing,
    Prefill,
    Repair,
    Rotate,
)
from .residency import Resident
from .window import Placement

MadeOp = Placing | Applying | FormCanonical
_STANDING: frozenset[type] = frozenset((Keep, Rotate))
_MENDING: frozenset[type] = frozenset((EstimatePatch, Repair))
_REWRITES: frozenset[type] = frozenset((ApplyRemoval, Repair))


class Step(NamedTuple):
    """An op that is priced but not written: most are never chosen."""

    kind: type[MadeOp]
    reason: str
    ms: float
    kl: float
    fields: dict[str, Any]
    """What this kind of op says besides."""

    def write(self, wanted: Wanted, alternatives: tuple[Alternative, ...] = ()) -> MadeOp:
        chunk = wanted.chunk
        return self.kind(
            uid=wanted.uid,
            chunk=chunk.id,
            tokens=chunk.length,
            reason=self.reason,
            ms=self.ms,
            kl=self.kl,
            alternatives=alternatives,
            **self.fields,
        )


class Candidate(NamedTuple):
    """Steps that together make one chunk's KV, in order, and what they come to."""

    steps: tuple[Step, ...]
    ms: float
    """Of the steps; of a forward only what this chunk adds to it."""
    kl: float
    price: float
    """ms, and what it takes to stash the live KV where this destroys it."""
    survives: bool
    """The live KV is still there afterwards."""
    computes: bool
    """Runs the chunk through the model, with all others that are computed."""
    mends: bool
    """Runs some of its rows, with all others that mend."""
    name: str

    def inheriting(self, kl: float) -> "Candidate":
        """The same, a prefill that is, with this KL."""
        (step,) = self.steps
        step = Step(step.kind, step.reason, step.ms, kl, step.fields)
        return Candidate((step,), self.ms, kl, self.price, False, True, False, self.name)


class Scene(NamedTuple):
    """What all sites of a plan share."""

    costs: CostTable
    window_tokens: int
    """Without what is asked at the end: errors are measured there, by the distance to it."""
    nearest: Callable[[int, Where, frozenset[str]], Change | None]
    """What KV conditioned on the closest of these contexts would miss as the n-th wanted chunk;
    `Change.context` is its key."""
    stashing: bool
    """What is exact goes to the store before it is lost."""
    figures: Figures
    asked: bool
    """The window ends with something that has to be computed: what rows are repaired for."""


class Site:
    """One wanted chunk at its row, and everything a rule may look at."""

    __slots__ = (
        "at",
        "bare",
        "change",
        "clean_front",
        "costs",
        "front",
        "number",
        "outlived",
        "placement",
        "resident",
        "rows_in_front",
        "same",
        "scene",
        "stands",
        "wanted",
        "weight",
        "where",
    )

    at: dict[str, int]
    """Where the chunk will stand, as fields of an op."""
    bare: bool
    """The live KV is the canonical, which has seen nothing. At the front, only if not computed there."""
    outlived: bool
    """The live KV was computed behind a clean view that has ended: the same ids, and other KV."""
    same: bool
    """The live KV has seen what it would see now; of a clean view, is nothing but that."""
    stands: bool
    """The live KV is where it has to be, in rows and in positions."""
    weight: float
    """Share of the window's KL that an error of this chunk makes."""
    where: Where
    """Where the chunk will stand, for the error model."""

    def __init__(
        self,
        scene: Scene,
        number: int,
        wanted: Wanted,
        change: Change,
        live: Placement | None,
        resident: Resident,
        row: int,
        position: int,
        rows_in_front: int,
        front: Lineage,
        clean_front: frozenset[str],
    ) -> None:
        """number: of the wanted chunk. front: all that will stand in front. clean_front: those of it that are
        wanted as clean views."""
        self.scene, self.costs, self.number = scene, scene.costs, number
        self.wanted, self.change, self.placement, self.resident = wanted, change, live, resident
        self.rows_in_front = rows_in_front
        self.at = {"row": row, "position": position}
        self.front, self.clean_front = front, clean_front
        self.weight = scene.figures.weights[number]
        kind, tokens = wanted.chunk.kind, wanted.chunk.length
        self.where = Where(kind, tokens, rows_in_front, scene.window_tokens, self.weight)
        self.bare = self.outlived = self.same = self.stands = False
        if live is None:
            return
        self.bare = not live.antecedents.length and (front.length > 0 or not live.exact)
        self.outlived = bool(live.clean_front) and live.outlives(clean_front)
        off = live.hearsay > 0 or live.mended
        other = off if wanted.clean else self.bare or self.outlived
        self.same = change.kind == "kept" and not other
        self.stands = live.row == row and live.position == position

    @property
    def stash(self) -> float:
        """Milliseconds to copy the live KV to the store, where it is worth that."""
        live = self.placement
        if live is None or not self.scene.stashing or not worth_storing(live, self.resident):
            return 0.0
        return self.scene.figures.ms("stash")[self.number]

    @property
    def context(self) -> str:
        return self.front.key

    def closest(self, keys: frozenset[str]) -> tuple[str, float, str] | None:
        """The key of the closest context that something is held for, the KL of the difference, and words.

        Most chunks hold nothing, and then nothing is hashed.
        """
        if not keys or self.wanted.clean:
            return None
        if self.context in keys:
            return self.context, self.hearsay(self.context), f"for the {count(self.front.length)} in front"
        where = self.where
        change = self.scene.nearest(self.number, where, keys)
        if change is None:
            return None
        kl = self.costs.kl.stale(change, where) + self.hearsay(change.context)
        return change.context, kl, f"for a context like this; {difference(change)}"

    def hearsay(self, key: str) -> float:
        """KL of second hand in what is stored under a key."""
        hearsay = self.resident.hearsay.get(key, 0.0)
        return self.weight * hearsay if hearsay else 0.0

    @property
    def may_stand(self) -> bool:
        """The live KV can serve. It cannot begin or end a clean view, unless that changes nothing."""
        live = self.placement
        return live is not None and (not (self.wanted.clean or live.clean) or self.same)

    @property
    def stale(self) -> float:
        """KL of leaving the live KV as it is, for what has changed in front since it was computed."""
        if self.same:
            return 0.0
        if self.bare or self.outlived:
            return self.costs.kl.bare(self.where)
        return self.costs.kl.stale(self.change, self.where)

    @property
    def heard(self) -> float:
        """KL of leaving the live KV as it is, for what was off in front already when it was computed."""
        hearsay = self.placement.hearsay if self.placement else 0.0
        return self.weight * hearsay if hearsay else 0.0

    def fetched(self, step: Step, kind: str, key: str = "") -> Step:
        """The step with the time that it takes to fetch what it starts from: kind and key of the entry."""
        where = self.resident.where
        ms = self.costs.fetch_ms(where[kind].get(key)) if kind in where else 0.0
        return step._replace(ms=step.ms + ms) if ms else step

    def step(
        self,
        kind: type[MadeOp],
        timed: Timed | None,
        reason: str,
        fields: dict[str, Any],
        kl: float = 0.0,
    ) -> Step:
        """A priced op for this chunk; fields: what this kind says besides."""
        ms = self.scene.figures.ms(timed)[self.number] if timed else 0.0
        return Step(kind, reason, ms, round(kl, 6) if kl else 0.0, fields)

    def mend(
        self, kind: type[Repair | EstimatePatch], rows: int, reason: str, kl: float, **fields: Any
    ) -> Step:
        """Rows of this chunk that run through the model, as a priced op; what their forward takes to start is
        charged once, where the choice is made."""
        ms = self.costs.of("prefill").more(rows, self.rows_in_front + self.wanted.chunk.length // 2)
        return Step(kind, reason, round(ms, 4), round(kl, 6), {**fields, "rows": rows})

    def candidate(self, *steps: Step) -> Candidate:
        last = steps[-1]
        ms, kl, name = last.ms, last.kl, NAMES[last.kind]
        for step in steps[-2::-1] if len(steps) > 1 else ():
            ms, kl, name = round(ms + step.ms, 4), round(kl + step.kl, 6), f"{NAMES[step.kind]}+{name}"
        survives = steps[0].kind in _STANDING and last.kind not in _REWRITES
        price = ms if survives else ms + self.stash
        return Candidate(steps, ms, kl, price, survives, last.kind is Prefill, last.kind in _MENDING, name)


def worth_storing(p: Placement, held: Resident) -> bool:
    """Exact, and the store lacks it or has it from worse hearsay."""
    if not p.exact:
        return False
    key = p.antecedents.key
    stored = key in held.conditioned or key in held.patches
    return not stored or held.hearsay.get(key, 0.0) > p.hearsay


def difference(change: Change) -> str:
    return _difference(change.lost, change.gained, change.reordered)


@lru_cache(maxsize=1024)  # what stands behind an edit has changed alike
def _difference(lost: int, gained: int, reordered: bool) -> str:
    parts = [f"{count(lost)} left"] if lost else []
    parts += [f"{count(gained)} came"] if gained else []
    parts += ["the order changed"] if reordered else []
    return ", ".join(parts)


def count(chunks: int) -> str:
    return f"{chunks} chunk{'' if chunks == 1 else 's'}"
