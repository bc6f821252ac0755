"""Placement: the order of messages whose order means nothing, such as retrieved documents.

KV that is exact belongs to an order: a document's is worth something behind the documents it was computed
behind, and little elsewhere. So among neighbours that are all order-free those go first that are exact where
they then stand (live or stored), as far as that reaches; then survivors, in the order they have; then what
has to be computed, the most often met first, since what stands in front most often should stand in front
always. From there single messages change places as long as the planner says that it saves time. Messages that
all stand next to each other already keep the order they have.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from .cost import CostTable
from .diff import Wanted
from .lineage import EMPTY, Lineage
from .plan import Plan
from .planner import Draft, draft
from .policy import Policy
from .residency import Residency
from .window import Frame, WindowGraph

_EFFORT = 256
"""Chunks that are planned over to find an order: a long window gets fewer tries than a short one."""
_WORTH = 0.01
"""Share of a plan's time that a change of places has to save; less is a matter of which rows attend which."""
_LOOKS = 512
"""Continuations of exact KV that are looked at for one run of messages."""

Unit = tuple[Wanted, ...]
"""The chunks of one message."""
Order = tuple[Unit, ...]
_Settings = tuple[Residency, CostTable, Policy, Frame, int, int]
"""What plans are made with besides the two windows."""


class _Run(NamedTuple):
    """Neighbours that may change places: the messages of wanted[first:stop]."""

    first: int
    stop: int
    units: Order

    def window(self, wanted: Sequence[Wanted], order: Order) -> list[Wanted]:
        return [*wanted[: self.first], *_flat(order), *wanted[self.stop :]]


class _Priced(NamedTuple):
    ms: float
    order: Order
    draft: Draft


def arranged(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
) -> tuple[Plan, list[Wanted]]:
    """`wanted` with its order-free messages in the order whose plan takes least time, behind that plan.

    A message changes places with order-free neighbours only: nothing passes a message whose place was chosen,
    nor a pinned one. The plan takes no longer than that of `wanted` as it came. The other arguments, and the
    errors, are those of `make_plan`.
    """
    found = list(wanted)
    drafted: Draft | None = None
    settings = (residency, costs, policy, frame, max_rows, headroom)
    for run in _runs(wanted):
        front = EMPTY.extended(w.chunk.id for w in found[: run.first])
        look = _Look(graph, residency, costs, policy)
        standing = _standing(graph, run.units)
        orders = (standing, run.units) if standing else look.orders(front, run.units)
        best, drafted = orders[0], None
        if not look.settled(front, best):
            drafts = partial(_draft, graph, found, run, settings)
            best, drafted = _climbed(orders, drafts, 0 if standing else _EFFORT // len(wanted))
        found = run.window(found, best)
    drafted = drafted or draft(graph, found, *settings)
    return drafted.plan(), found


def _standing(graph: WindowGraph, units: Order) -> Order | None:
    """The order these messages have in the live window, if they stand there next to each other."""
    live = [graph.get(w.uid) for w in _flat(units)]
    rows = sorted((p.row, p.stop) for p in live if p is not None)
    if len(rows) < len(live) or any(stop != row for (_, stop), (row, _) in pairwise(rows)):
        return None
    first = {w.uid: p.row for w, p in zip(_flat(units), live, strict=True) if p is not None}
    return tuple(sorted(units, key=lambda unit: first[unit[0].uid]))


def _draft(
    graph: WindowGraph, wanted: Sequence[Wanted], run: _Run, settings: _Settings, order: Order
) -> _Priced:
    """The plan for the window with the messages of `run` in this order, unwritten, and its milliseconds."""
    found = draft(graph, run.window(wanted, order), *settings)
    return _Priced(found.ms, order, found)


def _climbed(
    orders: Iterable[Order], drafts: Callable[[Order], _Priced], tries: int
) -> tuple[Order, Draft | None]:
    """The cheapest of some orders, then better ones that differ in the place of one message.

    tries: how many plans are made at most; the given orders are tried whatever it is.
    """
    given = list(dict.fromkeys(orders))
    if len(given) == 1 and tries <= 1:
        return given[0], None
    known = set(given)
    best = min(map(drafts, given), key=attrgetter("ms"))
    while better := _better(best, known, drafts, tries):
        best = better
    return best.order, best.draft


def _better(
    best: _Priced, known: set[Order], drafts: Callable[[Order], _Priced], tries: int
) -> _Priced | None:
    """An order that differs in the place of one message and is worth the change; `known` learns what was
    tried."""
    for order in _moves(best.order):
        if order in known:
            continue
        if len(known) >= tries:
            return None
        known.add(order)
        found = drafts(order)
        if found.ms < best.ms * (1 - _WORTH):
            return found
    return None


def _moves(order: Order) -> Iterator[Order]:
    """One message in another place."""
    for i, unit in enumerate(order):
        rest = (*order[:i], *order[i + 1 :])
        for j in range(len(order)):
            if j != i:
                yield (*rest[:j], unit, *rest[j:])


def _runs(wanted: Sequence[Wanted]) -> Iterator[_Run]:
    """All that have something to choose."""
    at = 0
    for free, members in groupby(wanted, key=lambda w: w.order_free is not None and not w.pinned):
        chunks = list(members)
        units = tuple(tuple(unit) for _, unit in groupby(chunks, key=attrgetter("order_free")))
        if free and len(units) > 1:
            yield _Run(at, at + len(chunks), units)
        at += len(chunks)


def _flat(units: Sequence[Unit]) -> Unit:
    return tuple(w for unit in units for w in unit)


class _Look:
    """What is exact where, by the live window and the store."""

    def __init__(self, graph: WindowGraph, residency: Residency, costs: CostTable, policy: Policy) -> None:
        self._graph, self._residency, self._costs = graph, residency, costs
        self._stored = policy.name != "exact"
        self._left = 0

    def settled(self, front: Lineage, units: Sequence[Unit]) -> bool:
        """All of it stands as it would stand."""
        return all(
            (live := self._graph.get(w.uid)) is not None and live.antecedents == link
            for w, link in _walk(front, _flat(units))
        )

    def orders(self, front: Lineage, units: Order) -> tuple[Order, ...]:
        """Orders worth a plan, the preferred one first, the one that was asked for last."""
        self._left = _LOOKS
        path = self._longest(front, units)[1]
        rest = [unit for unit in units if unit not in path]
        met = self._met(front, units)
        often = sorted(rest, key=lambda unit: (-met[unit[0].chunk.id], unit[0].chunk.id))
        rows = {p.uid: p.row for p in self._graph.placements}
        stay = sorted((u for u in often if u[0].uid in rows), key=lambda unit: rows[unit[0].uid])
        come = (unit for unit in often if unit[0].uid not in rows)
        return (*path, *stay, *come), (*path, *often), units

    def _longest(self, front: Lineage, units: Sequence[Unit]) -> tuple[float, list[Unit]]:
        """The order of some of these that are all exact where they stand, and the ms it saves; most first."""
        best: tuple[float, list[Unit]] = (0.0, [])
        for unit in units:
            if self._left <= 0:
                break
            self._left -= 1
            saved = self._saved(front, unit)
            if saved is None:
                continue
            behind = front.extended(w.chunk.id for w in unit)
            more, path = self._longest(behind, [u for u in units if u is not unit])
            if saved + more > best[0]:
                best = (saved + more, [unit, *path])
        return best

    def _saved(self, front: Lineage, unit: Unit) -> float | None:
        """Milliseconds of prefill that a message saves behind `front`; None where it has to be computed."""
        total = 0.0
        for w, link in _walk(front, unit):
            live, key = self._graph.get(w.uid), link.key
            held = self._residency.of(w.chunk.id)
            total += self._costs.of("prefill").more(w.chunk.length)
            if live is not None and live.antecedents == link and not live.clean:
                continue
            if self._stored and key in held.conditioned:
                total -= self._costs.time("load", w.chunk.length)
            elif self._stored and key in held.patches and held.canonical:
                total -= self._costs.time("place_canonical", w.chunk.length)
                total -= self._costs.time("apply_patch", w.chunk.length)
            else:
                return None
        return total

    def _met(self, front: Lineage, units: Sequence[Unit]) -> Counter[str]:
        """In how many stored contexts behind so much of a front each chunk stands."""
        found: Counter[str] = Counter()
        for chunk in {unit[0].chunk.id for unit in units}:
            held = self._residency.of(chunk)
            for key in held.conditioned | held.patches:
                context = self._residency.context(key)
                link = context.chunks if context is not None else EMPTY
                while link.parent is not None and link.length > front.length:
                    found[link.chunk] += 1
                    link = link.parent
        return found


def _walk(front: Lineage, chunks: Unit) -> Iterator[tuple[Wanted, Lineage]]:
    """Each chunk with what will stand in front of it."""
    for w in chunks:
        yield w, front
        front = front.then(w.chunk.id)
