"""The ways to make one chunk's KV stand at its row: one rule, one op.

A rule looks at a Site and answers with a Candidate or None. None of them chooses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from .chunks import context_key, set_key
from .cost import CostTable, Timed
from .diff import Change, Wanted
from .plan import (
    Applying,
    ApplyOrbit,
    ApplyPatch,
    ApplyRemoval,
    BaseOp,
    FormCanonical,
    Keep,
    Load,
    PlaceCanonical,
    Placing,
    Prefill,
    Rotate,
)
from .residency import Resident, removal_key
from .window import Placement

Step = Placing | Applying | FormCanonical
_S = TypeVar("_S", bound=BaseOp)


@dataclass(frozen=True)
class Candidate:
    """Ops that together make one chunk's KV, in order."""

    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return "+".join(step.op for step in self.steps)

    @cached_property
    def ms(self) -> float:
        return sum(step.ms for step in self.steps)

    @cached_property
    def kl(self) -> float:
        return sum(step.kl for step in self.steps)


@dataclass(frozen=True)
class Site:
    """One wanted chunk at its row, and everything a rule may look at."""

    wanted: Wanted
    change: Change
    placement: Placement | None
    resident: Resident
    row: int
    rows_in_front: int
    front: tuple[str, ...]
    window_tokens: int
    costs: CostTable

    @cached_property
    def context(self) -> str:
        return context_key(self.front)

    def in_context(self, keys: frozenset[str]) -> bool:
        """Something is held for this context. Most chunks hold nothing, and then nothing is hashed."""
        return bool(keys) and self.context in keys

    @property
    def bare(self) -> bool:
        """The live KV has seen nothing of what stands in front of it: it is the canonical."""
        return self.placement is not None and not self.placement.antecedents and bool(self.front)

    @property
    def was_clean(self) -> bool:
        return self.placement is not None and self.placement.clean

    @property
    def may_stand(self) -> bool:
        """The live KV can serve. It cannot begin or end a clean view, unless that changes nothing."""
        switches = self.wanted.clean or self.was_clean
        return self.placement is not None and (not switches or self.change.kind == "kept")

    @property
    def weight(self) -> float:
        """Share of the window's KL that an error of this chunk makes.

        Survivors' figures are those of a whole stale window, so each chunk answers for its share of tokens.
        A chunk that was brought in, or stands bare since, is charged in full: it may be what is asked about.
        """
        if self.placement is None or self.bare:
            return 1.0
        return self.wanted.chunk.length / self.window_tokens

    @property
    def stale(self) -> float:
        """KL of leaving the live KV as it is."""
        if self.change.kind == "kept":
            return 0.0
        whole = self.costs.kl.canonical if self.bare else self.costs.stale(self.change, self.window_tokens)
        return self.weight * whole

    def step(self, kind: type[_S], timed: Timed | None, reason: str, kl: float = 0.0, **fields: Any) -> _S:
        """A priced op for this chunk."""
        tokens = self.wanted.chunk.length
        rows_in_front = self.rows_in_front if timed == "prefill" else 0  # nothing else attends the window
        ms = self.costs.time(timed, tokens, rows_in_front) if timed else 0.0
        same = {"uid": self.wanted.uid, "chunk": self.wanted.chunk.id, "tokens": tokens, "reason": reason}
        return kind.model_validate({**same, "ms": round(ms, 4), "kl": round(kl, 6), **fields})


Rule = Callable[[Site], Candidate | None]


def keep(site: Site) -> Candidate | None:
    """Stand still."""
    if not site.may_stand or site.placement is None or site.placement.row != site.row:
        return None
    return Candidate((site.step(Keep, None, _standing(site), site.stale, row=site.row),))


def rotate(site: Site) -> Candidate | None:
    """Move along with the window."""
    if not site.may_stand or site.placement is None or site.placement.row == site.row:
        return None
    rows = {"row": site.row, "from_row": site.placement.row}
    return Candidate((site.step(Rotate, "rotate", _standing(site), site.stale, **rows),))


def removal(site: Site) -> Candidate | None:
    """Stand, and take out what the antecedents that left had put in."""
    change, live = site.change, site.placement
    if live is None or not change.lost or change.gained or change.reordered or not site.resident.removals:
        return None
    before = context_key(live.antecedents)
    if removal_key(before, site.context) not in site.resident.removals:
        return None
    standing = keep(site) or rotate(site)
    if standing is None:
        return None
    kl = site.stale * site.costs.kl.removal
    reason = f"a removal patch is stored for {_count(site.change.lost)} that left"
    moved = standing.steps[0].model_copy(update={"kl": 0.0})
    applied = site.step(ApplyRemoval, "apply_removal", reason, kl, before=before, after=site.context)
    return Candidate((moved, applied))


def load(site: Site) -> Candidate | None:
    """Bring KV that was conditioned on exactly this context."""
    if not site.in_context(site.resident.conditioned):
        return None
    reason = f"exact KV is stored for the {_count(site.front)} in front"
    return Candidate((site.step(Load, "load", reason, row=site.row, context=site.context),))


def patch(site: Site) -> Candidate | None:
    """Canonical and the patch for exactly this context."""
    if not site.resident.canonical or not site.in_context(site.resident.patches):
        return None
    kl = site.weight * site.costs.kl.patch
    reason = f"a patch is stored for the {_count(site.front)} in front"
    applied = site.step(ApplyPatch, "apply_patch", reason, kl, context=site.context)
    return Candidate((_placed(site, "base of the patch"), applied))


def orbit(site: Site) -> Candidate | None:
    """Canonical and the patch that serves every order of these antecedents."""
    if not site.resident.canonical or not site.resident.orbits:
        return None
    key = set_key(site.front)
    if key not in site.resident.orbits:
        return None
    kl = site.weight * site.costs.kl.orbit
    reason = f"a patch is stored for the {_count(site.front)} in front, in any order"
    applied = site.step(ApplyOrbit, "apply_orbit", reason, kl, antecedent_set=key)
    return Candidate((_placed(site, "base of the orbit patch"), applied))


def canonical(site: Site) -> Candidate | None:
    """Canonical alone. Charged at the front as well: the sink it was computed behind is missing there."""
    if not site.resident.canonical or site.was_clean:
        return None  # a clean view that ends asked for its context back
    reason = f"the canonical is stored, no patch for {_count(site.front)} in front"
    return Candidate((_placed(site, reason, site.weight * site.costs.kl.canonical),))


def prefill(site: Site) -> Candidate:
    """Compute the chunk where it stands. Always possible."""
    reason = f"computed behind {_count(site.front)}" if site.front else "computed at the front"
    return Candidate((site.step(Prefill, "prefill", reason, row=site.row),))


def clean_view(site: Site) -> Candidate:
    """The canonical, because a clean view was asked for; formed first where the store lacks it."""
    placed = _placed(site, "a clean view was asked for")
    if site.resident.canonical:
        return Candidate((placed,))
    formed = site.step(FormCanonical, "form_canonical", "the clean view needs a canonical and none is stored")
    return Candidate((formed, placed))


RULES: tuple[Rule, ...] = (keep, rotate, removal, load, patch, orbit, canonical, prefill)
CLEAN_RULES: tuple[Rule, ...] = (keep, rotate, clean_view)


def candidates(site: Site) -> list[Candidate]:
    """Every way to fill the site, never none. Exact KV that stands already leaves nothing to choose."""
    standing = keep(site)
    if standing is not None and standing.kl == 0:
        return [standing]
    rules = CLEAN_RULES if site.wanted.clean else RULES
    return [found for rule in rules if (found := rule(site)) is not None]


def _placed(site: Site, reason: str, kl: float = 0.0) -> PlaceCanonical:
    return site.step(PlaceCanonical, "place_canonical", reason, kl, row=site.row)


def _standing(site: Site) -> str:
    """What happened in front of a chunk that stands or moves."""
    if site.change.kind == "kept":
        return "same antecedents in front"
    if site.bare:
        return f"conditioned on nothing, {_count(site.front)} in front"
    parts = [
        f"{_count(site.change.lost)} left" if site.change.lost else "",
        f"{_count(site.change.gained)} came" if site.change.gained else "",
        "the order changed" if site.change.reordered else "",
    ]
    return "in front: " + ", ".join(part for part in parts if part)


def _count(chunk_ids: tuple[str, ...]) -> str:
    return f"{len(chunk_ids)} chunk{'' if len(chunk_ids) == 1 else 's'}"
