"""One window that is replayed through the planner, and the store it shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..chunks import Chunk
from ..cost import CostTable
from ..diff import Wanted
from ..match import match
from ..placement import arranged
from ..plan import Stash
from ..planner import after, make_plan
from ..policy import Policy
from ..residency import FrozenResidency
from ..settle import plan_settle
from ..trace import Message, Turn
from ..window import Frame, WindowGraph
from .account import Account
from .growth import Growth, goes_on, stands
from .shelf import Shelf

Matching = Callable[[Sequence[tuple[int, str]], Sequence[str], int], list[int]]
"""Which live placements a wanted list goes on with; see `match`."""


class Session:
    """A window without tensors. Every turn is planned, and the plan obeyed, as a runtime would.

    rows: positions of the model. worth: by chunk id, whether storing it is paid for; None pays for all of it.
    grow: take a short cut where a turn only appends; it changes no figure.
    """

    def __init__(
        self,
        shelf: Shelf,
        costs: CostTable,
        policy: Policy,
        rows: int,
        account: Account,
        *,
        matching: Matching = match,
        place: bool = True,
        settle: bool = True,
        worth: Callable[[str], bool] | None = None,
        grow: bool = True,
    ) -> None:
        self._shelf, self._costs, self._policy, self._rows = shelf, costs, policy, rows
        self._account, self._matching, self._place, self._settle = account, matching, place, settle
        self._worth = worth
        self.graph = WindowGraph()
        self._frame = Frame(start=0, capacity=rows, position=0)
        self._wanted: list[Wanted] = []
        self._grows = grow
        self._growth: Growth | None = None
        self._uid = 0

    def step(self, turn: Turn) -> None:
        """Make the window what the turn lists, then idle as long as the answer's tools take."""
        wanted = self._asked(turn.messages)
        kl = 0.0
        if self._growth is not None and self._fresh(wanted, turn.messages):
            self._grow(wanted)
        else:
            kl = self._edit(wanted)
        if turn.answer is not None:
            self._answered(turn.answer.chunk, kl)
        if self._settle:
            self._idle()

    def _fresh(self, wanted: Sequence[Wanted], messages: Sequence[Message]) -> bool:
        """Whether all that changes is that new content comes to the end."""
        live, rows = self._wanted, sum([w.chunk.length for w in wanted])
        return (
            goes_on(live, messages)
            and self._frame.start + rows <= self._rows
            and all(w.order_free is None and self._shelf.of(w.chunk.id).empty for w in wanted[len(live) :])
        )

    def _grow(self, wanted: list[Wanted]) -> None:
        assert self._growth is not None
        live = len(self._wanted)
        ms = self._growth.computed(wanted[live:], self._costs)
        self._account.grew(
            sum([w.chunk.length for w in self._wanted]), sum([w.chunk.length for w in wanted[live:]]), ms
        )
        self.graph, self._wanted = self._growth.graph, wanted

    def _edit(self, wanted: list[Wanted]) -> float:
        """Plan the turn and obey the plan; its KL."""
        if self._place:
            plan, wanted = arranged(self.graph, wanted, *self._given())
        else:
            plan = make_plan(self.graph, wanted, *self._given())
        before, self.graph = self.graph, after(self.graph, plan, wanted, self._shelf)
        self._shelf.obey(plan, before)
        self._account.add(plan)
        if self._worth is not None:
            spared = [op.ms for op in plan.ops if isinstance(op, Stash) and not self._worth(op.chunk)]
            self._account.ms -= sum(spared)
        self._wanted, self._frame = wanted, plan.frame
        self._growth = Growth(self.graph) if self._grows and stands(plan, self.graph) else None
        return plan.predicted_kl

    def _given(self) -> tuple[Shelf, CostTable, Policy, Frame, int]:
        """What plans are made with besides the windows."""
        return self._shelf, self._costs, self._policy, self._frame, self._rows

    def _asked(self, messages: Sequence[Message]) -> list[Wanted]:
        """The wanted list; what goes on unchanged at the front is not searched for."""
        live = self._wanted
        same = 0
        for w, m in zip(live, messages, strict=False):
            if w.chunk.id != m.id:
                break
            same += 1
        rest = [(w.uid, w.chunk.id) for w in live[same:]]
        uids = self._matching(rest, [m.id for m in messages[same:]], self._uid)
        by_uid = {w.uid: w for w in live[same:]}
        self._uid = max([self._uid, *(uid + 1 for uid in uids)])
        found = live[:same]
        for uid, m in zip(uids, messages[same:], strict=True):
            group = uid if m.order_free else None
            known = by_uid.get(uid)
            if known is not None and known.order_free == group and known.pinned == m.pin:
                found.append(known)
            else:
                found.append(Wanted(uid=uid, chunk=m.chunk, pinned=m.pin, order_free=group))
        return found

    def _answered(self, chunk: Chunk, kl: float) -> None:
        """The answer was decoded behind the window: it has seen all of it, and no arm pays for it."""
        growth = self._growth or Growth(self.graph)
        growth.decoded(self._uid, chunk, kl)
        self.graph = growth.graph
        self._wanted = [*self._wanted, Wanted(uid=self._uid, chunk=chunk)]
        self._uid += 1

    def _idle(self) -> None:
        fresh = {key.chunk for key in self._shelf.fresh}
        self._shelf.fresh.clear()
        if not fresh:
            return
        held = FrozenResidency({chunk: self._shelf.of(chunk) for chunk in fresh})
        plan = plan_settle(self.graph, held, self._policy, self._costs)
        self._shelf.obey(plan, self.graph)
        self._account.idle_ms += plan.predicted_ms
