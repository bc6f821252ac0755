"""The ways to make one chunk's KV stand at its row: one rule, one op.

A rule looks at a Site and answers with a Candidate or None. None of them chooses.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from .chunks import set_key
from .plan import (
    ApplyOrbit,
    ApplyPatch,
    ApplyRemoval,
    EstimatePatch,
    FormCanonical,
    Keep,
    Load,
    PlaceCanonical,
    Prefill,
    Repair,
    Rotate,
)
from .residency import NOTHING, removal_key
from .site import Candidate, Site, Step, count, difference

Rule = Callable[[Site], Candidate | None]


def standing(site: Site) -> Candidate | None:
    """Stand still, or move along with the window."""
    live = site.placement
    if live is None or not site.may_stand:
        return None
    reason, kl = _standing(site), site.stale + site.heard
    if site.stands:
        return site.alone(site.step(Keep, None, reason, site.at, kl))
    fields = {**site.at, "from_row": live.row, "from_position": live.position}
    return site.alone(site.step(Rotate, "rotate", reason, fields, kl))


def removal(site: Site) -> Candidate | None:
    """Stand, and take out what the antecedents that left had put in."""
    change, live = site.change, site.placement
    if live is None or not change.lost or change.gained or change.reordered or not site.resident.removals:
        return None
    before = live.antecedents.key
    key = removal_key(before, site.context)
    if key not in site.resident.removals:
        return None
    base = standing(site)
    if base is None:
        return None
    left = site.stale * site.costs.kl.removal
    kl = left + site.heard + site.hearsay(key)
    reason = f"a removal patch is stored for {count(site.change.lost)} that left"
    moved = replace(base.steps[0], kl=0.0)
    fields = {"before": before, "after": site.context, "leaves": left / site.weight}
    applied = site.step(ApplyRemoval, "apply_removal", reason, fields, kl)
    return site.both(moved, applied)


def load(site: Site) -> Candidate | None:
    """Bring KV that was conditioned on this context, or on one that differs little."""
    found = site.closest(site.resident.conditioned)
    if found is None:
        return None
    context, kl, why = found
    step = site.step(Load, "load", f"KV is stored {why}", {**site.at, "context": context}, kl)
    return site.alone(site.fetched(step, "conditioned", context))


def patch(site: Site) -> Candidate | None:
    """Canonical and the patch for this context, or for one that differs little."""
    found = site.closest(site.resident.patches) if site.resident.canonical else None
    if found is None:
        return None
    context, kl, why = found
    left = site.costs.kl.patched(site.where)
    fields = {"context": context, "leaves": left / site.weight}
    applied = site.step(ApplyPatch, "apply_patch", f"a patch is stored {why}", fields, kl + left)
    return site.both(_placed(site, "base of the patch"), site.fetched(applied, "patch", context))


def orbit(site: Site) -> Candidate | None:
    """Canonical and the patch that serves every order of these antecedents."""
    if not site.resident.canonical or not site.resident.orbits:
        return None
    key = set_key(site.front)
    if key not in site.resident.orbits:
        return None
    left = site.costs.kl.orbited(site.where)
    kl = left + site.hearsay(key)
    reason = f"a patch is stored for the {count(site.front.length)} in front, in any order"
    fields = {"antecedent_set": key, "leaves": left / site.weight}
    applied = site.step(ApplyOrbit, "apply_orbit", reason, fields, kl)
    return site.both(_placed(site, "base of the orbit patch"), site.fetched(applied, "orbit", key))


def canonical(site: Site) -> Candidate | None:
    """Canonical alone. At the front it has an error as well: the sink it was computed behind is missing."""
    if not site.resident.canonical or (site.placement and site.placement.clean):
        return None  # a clean view that ends asked for its context back
    reason = f"the canonical is stored, no patch for {count(site.front.length)} in front"
    return site.alone(_placed(site, reason, site.costs.kl.bare(site.where)))


def estimated(site: Site) -> Candidate | None:
    """Canonical, and a patch that is estimated from a few rows computed in context."""
    known = site.costs.kl.estimated
    if known is None or not site.resident.canonical or site.wanted.clean or site.wanted.chunk.media:
        return None
    rows = ceil(known.share * site.wanted.chunk.length)
    kl = known.leaves * site.costs.kl.bare(site.where)
    reason = f"the canonical is stored, the patch is estimated from {rows} rows"
    applied = site.mend(EstimatePatch, rows, reason, kl, leaves=kl / site.weight)
    return site.both(_placed(site, "base of the patch"), applied)


def repair(site: Site) -> Candidate | None:
    """What stands, or the canonical, with the rows computed again that what is asked attends most."""
    known = site.costs.kl.repair
    if known is None or not site.scene.asked or site.wanted.clean or site.wanted.chunk.media:
        return None
    base = standing(site) or canonical(site)
    if base is None or base.kl == 0:
        return None
    rows = ceil(known.share * site.wanted.chunk.length)
    mended = site.mend(Repair, rows, f"{rows} rows are computed again", base.kl * known.leaves)
    return site.both(replace(base.steps[0], kl=0.0), mended)


def prefill(site: Site) -> Candidate:
    """Compute the chunk where it stands. Always possible."""
    reason = f"computed behind {count(site.front.length)}" if site.front.length else "computed at the front"
    return site.alone(site.step(Prefill, "prefill", reason, site.at))


def clean_view(site: Site) -> Candidate:
    """The canonical, because a clean view was asked for; formed first where the store lacks it."""
    placed = _placed(site, "a clean view was asked for")
    if site.resident.canonical:
        return site.alone(placed)
    reason = "the clean view needs a canonical and none is stored"
    formed = site.step(FormCanonical, "form_canonical", reason, {})
    return site.both(formed, placed)


STORED: tuple[Rule, ...] = (removal, load, patch, orbit, canonical, estimated)
"""These start from something that the store holds."""
OTHERS: tuple[Rule, ...] = (repair, prefill)
EVERY = STORED + OTHERS
CLEAN: tuple[Rule, ...] = (clean_view,)


def candidates(site: Site) -> list[Candidate]:
    """Every way to fill the site, never none. Exact KV that stands already leaves nothing to choose."""
    as_is = standing(site)
    if as_is is not None and as_is.kl == 0 and site.stands:
        return [as_is]
    rules = CLEAN if site.wanted.clean else OTHERS if site.resident is NOTHING else EVERY
    found = [] if as_is is None else [as_is]
    for rule in rules:
        made = rule(site)
        if made is not None:
            found.append(made)
    return found


def _placed(site: Site, reason: str, kl: float = 0.0) -> Step:
    step = site.step(PlaceCanonical, "place_canonical", reason, site.at, kl)
    return site.fetched(step, "canonical")


def _standing(site: Site) -> str:
    """What happened in front of a chunk that stands or moves."""
    if site.same:
        return "same antecedents in front"
    if site.outlived:
        return "in front: a clean view ended"
    if site.bare:
        return f"conditioned on nothing, {count(site.front.length)} in front"
    return f"in front: {difference(site.change)}"
