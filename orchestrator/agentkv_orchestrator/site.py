"""What a rule looks at to propose a way for one chunk, and what it answers with."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

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
MENDING: frozenset[type] = frozenset((EstimatePatch, Repair))
_REWRITES: frozenset[type] = frozenset((ApplyRemoval, Repair))


@dataclass(slots=True)
class Step:
    """An op that is priced but not written: most are never chosen. Nobody changes one; a frozen one would
    take three times as long to make."""

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


@dataclass(slots=True)
class Candidate:
    """Steps that together make one chunk's KV, in order, and what they come to. As with a step, nobody
    changes one."""

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

    @property
    def reason(self) -> str:
        """What it starts from, in words."""
        return self.steps[-1].reason

    def inheriting(self, kl: float) -> "Candidate":
        """The same, a prefill that is, with this KL."""
        (step,) = self.steps
        step = Step(step.kind, step.reason, step.ms, kl, step.fields)
        return Candidate((step,), self.ms, kl, self.price, False, True, False, self.name)


@dataclass(slots=True)
class Scene:
    """What all sites of a plan share."""

    costs: CostTable
    window_tokens: int
    """Without what is asked at the end: errors are measured there, by the distance to it."""
    nearest: Callable[["Site", frozenset[str]], tuple[float, Change] | None]
    """What KV conditioned on the closest of these contexts would miss there, and the KL of that;
    `Change.context` is its key."""
    stashing: bool
    """What is exact goes to the store before it is lost."""
    figures: Figures
    asked: bool
    """The window ends with something that has to be computed: what rows are repaired for."""


class Site:
    """One wanted chunk at its row, and everything a rule may look at."""

    __slots__ = (
        "_where",
        "at",
        "bare",
        "change",
        "clean_front",
        "costs",
        "front",
        "may_stand",
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
    )

    at: dict[str, int]
    """Where the chunk will stand, as fields of an op."""
    bare: bool
    """The live KV is the canonical, which has seen nothing. At the front, only if not computed there."""
    may_stand: bool
    """The live KV can serve. It cannot begin or end a clean view, unless that changes nothing."""
    outlived: bool
    """The live KV was computed behind a clean view that has ended: the same ids, and other KV."""
    same: bool
    """The live KV has seen what it would see now; of a clean view, is nothing but that."""
    stands: bool
    """The live KV is where it has to be, in rows and in positions."""
    weight: float
    """Share of the window's KL that an error of this chunk makes."""

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
        self._where: Where | None = None
        self.bare = self.outlived = self.same = self.stands = self.may_stand = False
        if live is None:
            return
        self.bare = not live.antecedents.length and (front.length > 0 or not live.exact)
        self.outlived = bool(live.clean_front) and live.outlives(clean_front)
        off = live.hearsay > 0 or live.mended
        other = off if wanted.clean else self.bare or self.outlived
        self.same = change.kind == "kept" and not other
        self.stands = live.row == row and live.position == position
        self.may_stand = self.same or not (wanted.clean or live.clean)

    @property
    def where(self) -> Where:
        """Where the chunk will stand, for the error model."""
        if self._where is None:
            chunk, window = self.wanted.chunk, self.scene.window_tokens
            self._where = Where(chunk.kind, chunk.length, self.rows_in_front, window, self.weight)
        return self._where

    @property
    def stash(self) -> float:
        """Milliseconds to copy the live KV to the store, where it is worth that."""
        live = self.placement
        if live is None or not self.scene.stashing or not worth_storing(live, self.resident):
            return 0.0
        return self.scene.figures.ms["stash"][self.number]

    @property
    def context(self) -> str:
        return self.front.key

    def closest(self, keys: frozenset[str]) -> tuple[str, float, str] | None:
        """The key of the closest context that something is held for, the KL of the difference, and words.

        Most chunks hold nothing, and then nothing is hashed.
        """
        if not keys or self.wanted.clean:
            return None
        context = self.front.key
        if context in keys:
            return context, self.hearsay(context), f"for the {count(self.front.length)} in front"
        found = self.scene.nearest(self, keys)
        if found is None:
            return None
        stale, change = found
        kl = stale + self.hearsay(change.context)
        return change.context, kl, f"for a context like this; {difference(change)}"

    def hearsay(self, key: str) -> float:
        """KL of second hand in what is stored under a key."""
        hearsay = self.resident.hearsay.get(key, 0.0)
        return self.weight * hearsay if hearsay else 0.0

    @property
    def stale(self) -> float:
        """KL of leaving the live KV as it is, for what has changed in front since it was computed."""
        if self.same:
            return 0.0
        if self.bare or self.outlived:
            return self.costs.kl.bare(self.where)
        return self.costs.kl.left(self.change, self.rows_in_front, self.weight)

    @property
    def heard(self) -> float:
        """KL of leaving the live KV as it is, for what was off in front already when it was computed."""
        hearsay = self.placement.hearsay if self.placement else 0.0
        return self.weight * hearsay if hearsay else 0.0

    def fetched(self, step: Step, kind: str, key: str = "") -> Step:
        """The step with the time that it takes to fetch what it starts from: kind and key of the entry."""
        where = self.resident.where
        ms = self.costs.fetch_ms(where[kind].get(key)) if kind in where else 0.0
        return replace(step, ms=step.ms + ms) if ms else step

    def step(
        self,
        kind: type[MadeOp],
        timed: Timed | None,
        reason: str,
        fields: dict[str, Any],
        kl: float = 0.0,
    ) -> Step:
        """A priced op for this chunk; fields: what this kind says besides."""
        ms = self.scene.figures.ms[timed][self.number] if timed else 0.0
        return Step(kind, reason, ms, round(kl, 6) if kl else 0.0, fields)

    def mend(
        self, kind: type[Repair | EstimatePatch], rows: int, reason: str, kl: float, **fields: Any
    ) -> Step:
        """Rows of this chunk that run through the model, as a priced op; what their forward takes to start is
        charged once, where the choice is made."""
        ms = self.costs.of("prefill").more(rows, self.rows_in_front + self.wanted.chunk.length // 2)
        return Step(kind, reason, round(ms, 4), round(kl, 6), {**fields, "rows": rows})

    def alone(self, step: Step) -> Candidate:
        """The candidate of one step, which most are."""
        kind, ms = step.kind, step.ms
        survives = kind in _STANDING
        price = ms if survives or self.placement is None else ms + self.stash
        return Candidate((step,), ms, step.kl, price, survives, kind is Prefill, False, NAMES[kind])

    def both(self, first: Step, last: Step) -> Candidate:
        """The candidate of two steps, in order."""
        ms, kl = round(last.ms + first.ms, 4), round(last.kl + first.kl, 6)
        survives = first.kind in _STANDING and last.kind not in _REWRITES
        price = ms if survives or self.placement is None else ms + self.stash
        name = f"{NAMES[first.kind]}+{NAMES[last.kind]}"
        return Candidate((first, last), ms, kl, price, survives, False, last.kind in MENDING, name)


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
