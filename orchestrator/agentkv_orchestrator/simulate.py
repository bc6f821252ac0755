"""Simulation: a trace through planner and residency, without tensors, beside what others would do with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from .cost import CostTable
from .errors import PolicyError
from .eviction import Evictor, Foresight, evictor
from .match import match
from .policy import Policy
from .simulation.account import Account
from .simulation.future import Future, bound
from .simulation.rivals import PrefixCache, Reprefill, deletions
from .simulation.session import Matching, Session
from .simulation.shape import Shape
from .simulation.shelf import Key, Shelf
from .trace import Trace, Turn


@dataclass(frozen=True)
class Options:
    """What a trace is replayed with.

    store_bytes: of the store that all windows share. kl_budget: of balanced, and of the clairvoyant. evictor:
    of the agentkv arms. place: whether order-free messages are placed. settle: whether there is time for that
    between turns.
    """

    costs: CostTable = field(default_factory=CostTable.shipped)
    shape: Shape = field(default_factory=Shape.shipped)
    store_bytes: int = 2 << 30
    kl_budget: float = Policy().kl_budget
    evictor: str = "benefit"
    place: bool = True
    settle: bool = True


class ArmReport(BaseModel):
    """Totals of one arm. Times are predicted milliseconds, KL is predicted, in nats a turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    hit_rate: float
    """Share of the tokens that were not computed again."""
    reused_tokens: int
    rotated_tokens: int
    brought_tokens: int
    recomputed_tokens: int
    ms: float
    idle_ms: float
    kl_mean: float
    kl_max: float
    store_peak_bytes: int
    store_written_bytes: int
    store_evictions: int
    regret: float | None
    """(ms - the clairvoyant's) / the clairvoyant's; None where that arm did not run."""
    seconds: float
    """What the simulation itself took."""


class Report(BaseModel):
    """What `simulate` found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace: str
    turns: int
    windows: int
    chunk_events: int
    tokens: int
    store_bytes: int
    kl_budget: float
    evictor: str
    costs: str
    bound_ms: float
    """No plan takes less, whatever its store and its KL."""
    arms: tuple[ArmReport, ...]


class _Arm(Protocol):
    def step(self, turn: Turn) -> object: ...


class _Planned:
    """One session a window, over one shelf."""

    def __init__(
        self,
        trace: Trace,
        options: Options,
        policy: Policy,
        account: Account,
        choice: Evictor[Key],
        matching: Matching = match,
        place: bool = True,
        future: Future | None = None,
    ) -> None:
        self.shelf = Shelf(options.store_bytes, choice, options.costs, options.shape)
        self._account, self._future = account, future
        self._sessions: dict[str, Session] = {}
        self._session = partial(
            Session,
            self.shelf,
            options.costs,
            policy,
            2 * max(turn.tokens + (turn.answer.tokens if turn.answer else 0) for turn in trace.turns),
            account,
            matching=matching,
            place=place and options.place,
            settle=options.settle and policy.stash and policy.name != "exact",  # which uses no patch
            worth=future.returns if future else None,
        )

    def step(self, turn: Turn) -> None:
        session = self._sessions.get(turn.window)
        if session is None:
            session = self._sessions[turn.window] = self._session()
        session.step(turn)
        if self._future is not None:
            for m in turn.messages:
                self.shelf.touch(m.id)  # what came back some other way is needed at another time now
            self._future.now += 1
        self._account.peak_bytes = self.shelf.peak
        self._account.written_bytes, self._account.evicted = self.shelf.written, self.shelf.evicted


def _reprefill(trace: Trace, options: Options, account: Account) -> _Arm:
    return Reprefill(options.costs, account)


def _prefix(trace: Trace, options: Options, account: Account) -> _Arm:
    return PrefixCache(options.costs, options.shape, options.store_bytes, account)


def _llamacpp(trace: Trace, options: Options, account: Account) -> _Arm:
    policy = Policy(name="fast", stash=False)
    return _Planned(trace, options, policy, account, evictor("lru"), deletions, place=False)


def _agentkv(name: str, trace: Trace, options: Options, account: Account) -> _Arm:
    policy = Policy.model_validate({"name": name, "kl_budget": options.kl_budget})
    return _Planned(trace, options, policy, account, evictor(options.evictor))


def _clairvoyant(trace: Trace, options: Options, account: Account) -> _Arm:
    future = Future(trace)

    def next_use(key: Key) -> float:
        return future.next_return(key.chunk)

    policy = Policy(kl_budget=options.kl_budget)
    return _Planned(trace, options, policy, account, Foresight(next_use), future=future)


CLAIRVOYANT = "clairvoyant"
ARMS: dict[str, Callable[[Trace, Options, Account], _Arm]] = {
    "re-prefill": _reprefill,
    "prefix cache": _prefix,
    "llama.cpp": _llamacpp,
    "agentkv exact": partial(_agentkv, "exact"),
    "agentkv balanced": partial(_agentkv, "balanced"),
    "agentkv fast": partial(_agentkv, "fast"),
    CLAIRVOYANT: _clairvoyant,
}
"""Every way to serve a trace. The clairvoyant is agentkv balanced, and knows which chunks come back and when:
it pays for storing these only, and its store drops what is needed latest."""


def simulate(
    trace: Trace,
    options: Options | None = None,
    arms: Sequence[str] = tuple(ARMS),
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Replay a trace through each of these arms. progress: is told the name of each arm before it starts.

    Raises PolicyError for an unknown arm or evictor, PlanError when the cost table lacks an op.
    """
    options = options or Options()
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown:
        raise PolicyError(f"arm {unknown[0]!r}", f"one of {', '.join(ARMS)}", "pick one of them")
    played: dict[str, tuple[Account, float]] = {}
    for name in arms:
        if progress is not None:
            progress(name)
        played[name] = _played(name, trace, options)
    best = played[CLAIRVOYANT][0].ms if CLAIRVOYANT in played else inf
    return Report(
        trace=trace.header.name,
        turns=len(trace.turns),
        windows=len({turn.window for turn in trace.turns}),
        chunk_events=trace.events,
        tokens=sum(turn.tokens for turn in trace.turns),
        store_bytes=options.store_bytes,
        kl_budget=options.kl_budget,
        evictor=options.evictor,
        costs=options.costs.model,
        bound_ms=round(bound(trace, options.costs), 4),
        arms=tuple(_report(name, *played[name], best) for name in arms),
    )


def _played(name: str, trace: Trace, options: Options) -> tuple[Account, float]:
    account, since = Account(), time.perf_counter()
    arm = ARMS[name](trace, options, account)
    for turn in trace.turns:
        arm.step(turn)
    return account, time.perf_counter() - since


def _report(name: str, account: Account, seconds: float, best: float) -> ArmReport:
    return ArmReport(
        arm=name,
        hit_rate=round(1 - account.recomputed / account.tokens, 6),
        reused_tokens=account.reused,
        rotated_tokens=account.rotated,
        brought_tokens=account.brought,
        recomputed_tokens=account.recomputed,
        ms=round(account.ms, 4),
        idle_ms=round(account.idle_ms, 4),
        kl_mean=round(sum(account.kl) / len(account.kl), 6),
        kl_max=round(max(account.kl), 6),
        store_peak_bytes=account.peak_bytes,
        store_written_bytes=account.written_bytes,
        store_evictions=account.evicted,
        regret=round(account.ms / best - 1, 6) if best < inf and best else None,
        seconds=round(seconds, 3),
    )
