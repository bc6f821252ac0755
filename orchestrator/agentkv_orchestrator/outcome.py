"""The window that a plan leaves: what stands where, and what it was conditioned on."""

from collections.abc import Sequence
from typing import NamedTuple

from .diff import Wanted
from .errors import PlanError
from .lineage import EMPTY, Lineage
from .plan import (
    Applying,
    ApplyRemoval,
    Keep,
    Load,
    PlaceCanonical,
    Placing,
    Plan,
    Prefill,
    Repair,
    Rotate,
)
from .residency import Context, Residency
from .window import Placement, WindowGraph


class _Front(NamedTuple):
    """What stands before a chunk by the time its turn comes."""

    ids: Lineage = EMPTY
    tokens: int = 0
    kl: float = 0.0
    """Predicted, of all of it."""
    untouched: bool = True
    """This plan wrote none of it."""
    clean: tuple[str, ...] = ()
    """Those of it that are clean views."""

    def then(self, p: Placement, op: Placing, applied: Applying | None) -> "_Front":
        return _Front(
            ids=self.ids.shared(p.antecedents).then(p.chunk.id),
            tokens=self.tokens + p.chunk.length,
            kl=self.kl + op.kl + (applied.kl if applied else 0.0),
            untouched=self.untouched and isinstance(op, Keep) and applied is None,
            # Computed at the front it has seen nothing anyway, and shows the same clean or not.
            clean=(*self.clean, p.chunk.id) if p.clean and (self.ids.length or not p.exact) else self.clean,
        )


def after(graph: WindowGraph, plan: Plan, wanted: Sequence[Wanted], residency: Residency) -> WindowGraph:
    """The window once `plan` has run, one revision later. residency: the one that the plan was made with.

    Raises PlanError when the plan does not place a wanted chunk or keeps one that is not live.
    """
    placing = {op.uid: op for op in plan.ops if isinstance(op, Placing)}
    applying = {op.uid: op for op in plan.ops if isinstance(op, Applying)}
    front = _Front()
    placements: list[Placement] = []
    for w in wanted:
        op, applied, live = placing.get(w.uid), applying.get(w.uid), graph.get(w.uid)
        if op is None or (live is None and isinstance(op, Keep | Rotate)):
            raise PlanError(f"nothing that places uid {w.uid}", "one op for each wanted chunk", "plan again")
        if live is not None and isinstance(op, Keep | Rotate):
            changes = _stood(live, op, applied, front, graph.revision + 1)
        else:
            live = _written(w, op, _context(op, applied, front, residency), front, graph.revision + 1)
            changes = {"hearsay": _hearsay(w, op, applied, front, residency)}
            if isinstance(applied, Repair):
                changes |= {"exact": False, "mended": True}
        p = _changed(live, {**changes, "clean": w.clean, "pinned": w.pinned})
        placements.append(p)
        front = front.then(p, op, applied)
    return graph.revise(placements)


def _changed(p: Placement, changes: dict[str, object]) -> Placement:
    """With these fields; most of a window stays as it was."""
    new = {name: value for name, value in changes.items() if getattr(p, name) != value}
    return p.model_copy(update=new) if new else p


def _stood(
    live: Placement, op: Keep | Rotate, applied: Applying | None, front: _Front, revision: int
) -> dict[str, object]:
    """KV that was kept or moved has the antecedents it had, unless a removal patch took some out. So it has
    where some rows were repaired: they serve one question, and the next plan counts on none of them."""
    moved = isinstance(op, Rotate)
    if not moved and applied is None:
        same = live.antecedents == front.ids and front.untouched
        return {"verbatim": live.verbatim and same}
    written: dict[str, object] = {
        "row": op.row,
        "position": op.position,
        "roundings": live.roundings + 1,
        "verbatim": False,
        "revision": revision,
    }
    if isinstance(applied, ApplyRemoval):
        written |= {"antecedents": front.ids, "antecedent_tokens": front.tokens, "exact": False}
        written["hearsay"] = live.hearsay + applied.leaves
    if isinstance(applied, Repair):
        written |= {"exact": False, "mended": True}
    return written


def _context(op: Placing, applied: Applying | None, front: _Front, residency: Residency) -> Context:
    """What KV that was brought or computed has seen. A canonical without a patch has seen nothing that can be
    counted on, whatever rows of it were repaired."""
    if isinstance(op, PlaceCanonical) and (applied is None or isinstance(applied, Repair)):
        return Context(chunks=EMPTY, tokens=0)
    key = op.context if isinstance(op, Load) else getattr(applied, "context", "")
    stored = residency.context(key) if key and key != front.ids.key else None
    return stored or Context(chunks=front.ids, tokens=front.tokens)


def _hearsay(w: Wanted, op: Placing, applied: Applying | None, front: _Front, residency: Residency) -> float:
    """Computed KV inherits what is off in front of it; stored KV what was off when it was stored, and what a
    patch leaves."""
    if isinstance(op, Prefill):
        return front.kl
    key = (
        op.context
        if isinstance(op, Load)
        else getattr(applied, "context", getattr(applied, "antecedent_set", ""))
    )
    left = getattr(applied, "leaves", 0.0)
    return residency.of(w.chunk.id).hearsay.get(key, 0.0) + left


def _written(w: Wanted, op: Placing, seen: Context, front: _Front, revision: int) -> Placement:
    computed = isinstance(op, Prefill)
    return Placement(
        uid=w.uid,
        chunk=w.chunk,
        row=op.row,
        position=op.position,
        antecedents=seen.chunks,
        antecedent_tokens=seen.tokens,
        exact=not isinstance(op, PlaceCanonical) and not (computed and front.clean),
        verbatim=computed,
        clean_front=front.clean if computed else (),
        roundings=0 if computed else 1,
        revision=revision,
    )
