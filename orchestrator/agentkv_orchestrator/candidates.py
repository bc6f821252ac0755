"""The ways to make one chunk's KV stand at its row: one rule, one op.

A rule looks at a Site and answers with a Candidate or None. None of them chooses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from .chunks import context_key, set_key
from .cost import CostTable, Timed
from .diff import Change, Wanted, count, in_words
from .layout import Place
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
    place: Place
    rows_in_front: int
    front: tuple[str, ...]
    clean_front: frozenset[str]
    """Those in front that are wanted as clean views."""
    window_tokens: int
    costs: CostTable
    nearest: Callable[[frozenset[str]], Change | None]
    """What KV conditioned on the closest of these contexts would miss; `Change.context` is its key."""
    forward_runs: bool
    """Some chunk has to be computed anyway, and one forward computes all."""

    @cached_property
    def context(self) -> str:
        return context_key(self.front)

    @property
    def at(self) -> dict[str, int]:
        """Where the chunk will stand, as fields of an op."""
        return self.place._asdict()

    @property
    def stands(self) -> bool:
        """The live KV is where it has to be, in rows and in positions."""
        live = self.placement
        return live is not None and self.place == (live.row, live.position)

    def closest(self, keys: frozenset[str]) -> tuple[str, float, str] | None:
        """The key of the closest context that something is held for, the KL of the difference, and words.

        Most chunks hold nothing, and then nothing is hashed.
        """
        if not keys or self.wanted.clean:
            return None
        if self.context in keys:
            return self.context, self.hearsay(self.context), f"for the {count(self.front)} in front"
        change = self.nearest(keys)
        if change is None:
            return None
        kl = self.weight * self.costs.stale(change, self.window_tokens) + self.hearsay(change.context)
        return change.context, kl, f"for a context like this; {in_words(change)}"

    def hearsay(self, key: str) -> float:
        """KL of second hand in what is stored under a key."""
        return self.weight * self.resident.hearsay.get(key, 0.0)

    @property
    def bare(self) -> bool:
        """The live KV is the canonical, which has seen nothing. At the front, only if not computed there."""
        live = self.placement
        return live is not None and not live.antecedents and (bool(self.front) or not live.exact)

    @property
    def same(self) -> bool:
        """The live KV has seen what it would see now."""
        return self.change.kind == "kept" and (self.wanted.clean or not (self.bare or self.outlived))

    @property
    def outlived(self) -> bool:
        """The live KV was computed behind a clean view that has ended: the same ids, and other KV."""
        return self.placement is not None and self.placement.outlives(self.clean_front)

    @property
    def may_stand(self) -> bool:
        """The live KV can serve. It cannot begin or end a clean view, unless that changes nothing."""
        live = self.placement
        return live is not None and (self.same or not (self.wanted.clean or live.clean))

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
        """KL of leaving the live KV as it is, for what has changed in front since it was computed."""
        if self.same:
            return 0.0
        bare = self.bare or self.outlived
        whole = self.costs.kl.canonical if bare else self.costs.stale(self.change, self.window_tokens)
        return self.weight * whole

    @property
    def heard(self) -> float:
        """KL of leaving the live KV as it is, for what was off in front already when it was computed."""
        return self.weight * self.placement.hearsay if self.placement else 0.0

    def time(self, timed: Timed) -> float:
        """Milliseconds of one op here; a forward that runs anyway costs this chunk its tokens only."""
        tokens = self.wanted.chunk.length
        if timed != "prefill":
            return self.costs.time(timed, tokens)  # nothing else attends the window
        base = self.costs.ms[timed].base if self.forward_runs else 0.0
        return self.costs.time(timed, tokens, self.rows_in_front) - base

    def step(self, kind: type[_S], timed: Timed | None, reason: str, kl: float = 0.0, **fields: Any) -> _S:
        """A priced op for this chunk."""
        tokens = self.wanted.chunk.length
        ms = self.time(timed) if timed else 0.0
        same = {"uid": self.wanted.uid, "chunk": self.wanted.chunk.id, "tokens": tokens, "reason": reason}
        return kind.model_validate({**same, "ms": round(ms, 4), "kl": round(kl, 6), **fields})


Rule = Callable[[Site], Candidate | None]


def keep(site: Site) -> Candidate | None:
    """Stand still."""
    if not site.may_stand or not site.stands:
        return None
    return Candidate((site.step(Keep, None, _standing(site), site.stale + site.heard, **site.at),))


def rotate(site: Site) -> Candidate | None:
    """Move along with the window."""
    if not site.may_stand or site.placement is None or site.stands:
        return None
    origin = {"from_row": site.placement.row, "from_position": site.placement.position}
    kl = site.stale + site.heard
    return Candidate((site.step(Rotate, "rotate", _standing(site), kl, **site.at, **origin),))


def removal(site: Site) -> Candidate | None:
    """Stand, and take out what the antecedents that left had put in."""
    change, live = site.change, site.placement
    if live is None or not change.lost or change.gained or change.reordered or not site.resident.removals:
        return None
    before = context_key(live.antecedents)
    key = removal_key(before, site.context)
    if key not in site.resident.removals:
        return None
    standing = keep(site) or rotate(site)
    if standing is None:
        return None
    kl = site.stale * site.costs.kl.removal + site.heard + site.hearsay(key)
    reason = f"a removal patch is stored for {count(site.change.lost)} that left"
    moved = standing.steps[0].model_copy(update={"kl": 0.0})
    left = site.stale * site.costs.kl.removal / site.weight
    fields = {"before": before, "after": site.context, "leaves": left}
    applied = site.step(ApplyRemoval, "apply_removal", reason, kl, **fields)
    return Candidate((moved, applied))


def load(site: Site) -> Candidate | None:
    """Bring KV that was conditioned on this context, or on one that differs little."""
    found = site.closest(site.resident.conditioned)
    if found is None:
        return None
    context, kl, why = found
    return Candidate((site.step(Load, "load", f"KV is stored {why}", kl, **site.at, context=context),))


def patch(site: Site) -> Candidate | None:
    """Canonical and the patch for this context, or for one that differs little."""
    found = site.closest(site.resident.patches) if site.resident.canonical else None
    if found is None:
        return None
    context, kl, why = found
    kl += site.weight * site.costs.kl.patch
    left = site.costs.kl.patch
    applied = site.step(
        ApplyPatch, "apply_patch", f"a patch is stored {why}", kl, context=context, leaves=left
    )
    return Candidate((_placed(site, "base of the patch"), applied))


def orbit(site: Site) -> Candidate | None:
    """Canonical and the patch that serves every order of these antecedents."""
    if not site.resident.canonical or not site.resident.orbits:
        return None
    key = set_key(site.front)
    if key not in site.resident.orbits:
        return None
    kl = site.weight * site.costs.kl.orbit + site.hearsay(key)
    reason = f"a patch is stored for the {count(site.front)} in front, in any order"
    left = site.costs.kl.orbit
    applied = site.step(ApplyOrbit, "apply_orbit", reason, kl, antecedent_set=key, leaves=left)
    return Candidate((_placed(site, "base of the orbit patch"), applied))


def canonical(site: Site) -> Candidate | None:
    """Canonical alone, charged in full: it may be what is asked about. At the front as well, where the sink
    it was computed behind is missing."""
    if not site.resident.canonical or (site.placement and site.placement.clean):
        return None  # a clean view that ends asked for its context back
    reason = f"the canonical is stored, no patch for {count(site.front)} in front"
    return Candidate((_placed(site, reason, site.costs.kl.canonical),))


def prefill(site: Site) -> Candidate:
    """Compute the chunk where it stands. Always possible."""
    reason = f"computed behind {count(site.front)}" if site.front else "computed at the front"
    return Candidate((site.step(Prefill, "prefill", reason, **site.at),))


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
    return site.step(PlaceCanonical, "place_canonical", reason, kl, **site.at)


def _standing(site: Site) -> str:
    """What happened in front of a chunk that stands or moves."""
    if site.same:
        return "same antecedents in front"
    if site.outlived:
        return "in front: a clean view ended"
    if site.bare:
        return f"conditioned on nothing, {count(site.front)} in front"
    return f"in front: {in_words(site.change)}"
