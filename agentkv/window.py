"""A window: what an agent's model sees, as chunks that can leave, come back and change places.

Edits are noted at once and carried out together, by one plan, when the window is next used (`commit`,
`generate`, `stream`, `audit`, ...). A call that is refused changes nothing; a plan that fails is rolled
back to the last commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from agentkv_orchestrator.check import check
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.errors import CapacityError
from agentkv_orchestrator.explain import explain
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.plan import Plan, Stash
from agentkv_orchestrator.planner import after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import Context, FrozenResidency
from agentkv_orchestrator.settle import plan_refresh, plan_settle
from agentkv_orchestrator.window import Frame, WindowGraph

from agentkv.audit import Audit, audit
from agentkv.cache import Run
from agentkv.decode import Sampling, Timing, answer
from agentkv.edits import Edits
from agentkv.errors import InvalidInput, NothingStored, OutOfMemory, TooLong
from agentkv.executor import Outcome
from agentkv.forward import out_of_memory
from agentkv.handles import Content, Handle
from agentkv.inputs import Ids
from agentkv.learn import learn_orders, learn_removal
from agentkv.page import window_html
from agentkv.store.base import Key, Note, residency
from agentkv.usage import Usage

if TYPE_CHECKING:
    from agentkv.engine import Engine


class Window(Edits):
    """Built by `Engine.window`. Other windows of the engine never see its edits; threads take turns."""

    def __init__(self, engine: Engine, policy: Policy, max_tokens: int) -> None:
        super().__init__()
        if not 0 < max_tokens <= engine.layout.max_positions:
            raise TooLong(
                got=f"max_tokens={max_tokens}",
                expected=f"1 to {engine.layout.max_positions}, the positions of this model",
                do="open a shorter window",
            )
        self.engine, self.policy, self.max_tokens = engine, policy, max_tokens
        self.kv = engine.backend.new_kv(min(engine.config.first_rows, engine.layout.max_positions))
        self.graph = WindowGraph()
        self.committed = Content()
        self.usage = Usage()
        self.timing = Timing()
        self.last_plan: Plan | None = None
        self.last_outcome = Outcome()
        self.last_answer: Handle | None = None

    def plan(self, headroom: int = 0) -> Plan:
        """What `commit` would do now; nothing is carried out.

        headroom: rows to leave free behind the window. Raises TooLong when it does not fit.
        """
        return self._plan(self._held(), headroom)[0]

    def _plan(self, held: FrozenResidency, headroom: int) -> tuple[Plan, list[Wanted]]:
        """A plan, and the window that it is for: order-free messages stand where they cost least."""
        self.require_open()
        rows = self.engine.layout.max_positions
        given = (held, self.engine.costs, self.policy, self._frame(), rows, headroom)
        try:
            wanted = arranged(self.graph, self.content.wanted(), *given)
            return make_plan(self.graph, wanted, *given), wanted
        except CapacityError as error:
            raise TooLong(error.got, error.expected, error.do) from error

    def _frame(self) -> Frame:
        first = self.graph.placements[0] if self.graph.placements else None
        position = first.position if first else self.kv.start
        return Frame(start=self.kv.start, capacity=self.kv.capacity, position=position)

    def commit(self, headroom: int = 0, keep: int = 0) -> Plan:
        """Carry out all noted edits. On failure the window is as it was at the last commit, and the error
        is raised.

        headroom: rows to leave free for an answer. keep: of how many last tokens logits are wanted
        (``last_outcome.logits``, None when nothing was prefilled). Raises TooLong, NothingStored,
        OutOfMemory, NonFinite.
        """
        with self.editing():
            start = time.perf_counter()
            try:
                plan, outcome, graph, content = self._carry_out(headroom, keep)
            except BaseException as error:
                self.content = self.committed
                if out_of_memory(error) and not isinstance(error, OutOfMemory):
                    raise OutOfMemory(
                        got=f"no memory for an edit ({str(error)[:80]})",
                        expected="memory for a copy of the rows that change",
                        do="evict chunks or close windows; the edit was rolled back",
                    ) from error
                raise
            self.graph = graph
            self.content = self.committed = content
            self.last_plan, self.last_outcome = plan, outcome
            self.usage = self.usage.plus(plan, (time.perf_counter() - start) * 1e3)
            return plan

    def _carry_out(self, headroom: int, keep: int) -> tuple[Plan, Outcome, WindowGraph, Content]:
        missing = set[Key]()
        while True:
            since, held = time.perf_counter(), self._held(missing)
            plan, wanted = self._plan(held, headroom)
            check(plan, self.graph, wanted, held, self.engine.layout.max_positions)
            planning = (time.perf_counter() - since) * 1e3
            try:
                outcome = self.engine.executor.execute(plan, self.kv, keep, self._notes(plan))
            except NothingStored as error:
                # Dropped since the plan was made, or not to be read: the next plan does without.
                if missing.issuperset(error.keys):
                    raise
                missing.update(error.keys)
                continue
            outcome.ms["plan"] = planning
            graph = after(self.graph, plan, wanted, held)
            return plan, outcome, graph, self.content.as_placed(wanted)

    def _held(self, without: Collection[Key] = frozenset()) -> FrozenResidency:
        """What the store has for the chunks that stand here or are wanted. without: keys found missing."""
        chunks = {chunk.id: chunk.length for e in self.content.live() for _, chunk in e.parts}
        chunks |= {p.chunk.id: p.chunk.length for p in self.graph.placements}
        return residency(self.engine.store, chunks, without)

    def _notes(self, plan: Plan) -> dict[int, Note]:
        """By uid, what to keep beside the KV that ``plan`` stashes."""
        stashed = (self.graph.get(op.uid) for op in plan.ops if isinstance(op, Stash))
        return {
            p.uid: Note(p.hearsay, Context(chunks=p.antecedents, tokens=p.antecedent_tokens))
            for p in stashed
            if p is not None
        }

    def error_in_front(self, row: int) -> float:
        """Predicted KL of the rows in front of ``row``, as the last commit left them: hearsay for what is
        computed behind."""
        ops = self.last_plan.ops if self.last_plan else ()
        uids = {p.uid for p in self.graph.placements if p.row < row}
        return sum(op.kl for op in ops if op.uid in uids)

    def settle(self, ms: float | None = None) -> Plan:
        """Idle work: turn stored conditioned KV into canonicals and patches, at a fraction of the bytes.

        ms: how long this may take, as predicted. Given, what is off in the window is computed again first,
        most KL a millisecond first; called at every pause, that spreads an error over several turns. None:
        the store alone, as long as it takes. Worth calling while the agent waits for a tool. Returns the
        plan that was carried out. Raises what `commit` raises; the window is then as it was.
        """
        with self.editing():
            start = time.perf_counter()
            refreshed = None if ms is None else self._refresh(ms)
            left = None if ms is None else ms - (refreshed.predicted_ms if refreshed else 0.0)
            plan = plan_settle(self.graph, self.engine.residency(), self.policy, self.engine.costs, left)
            for op in plan.ops:
                with suppress(NothingStored):  # gone since the plan was made: nothing left to do for it
                    self.engine.executor.idle(op, self.kv)
            self.usage = replace(self.usage, idle_ms=self.usage.idle_ms + (time.perf_counter() - start) * 1e3)
            return refreshed.and_then(plan) if refreshed else plan

    def _refresh(self, ms: float) -> Plan | None:
        """Carry out the refresh that is worth most within ``ms``."""
        wanted, held, rows = self.committed.wanted(), self._held(), self.engine.layout.max_positions
        costs, frame = self.engine.costs, self._frame()
        plan = plan_refresh(self.graph, wanted, held, costs, self.policy, frame, rows, ms)
        if plan is None:
            return None
        check(plan, self.graph, wanted, held, rows)
        self.engine.executor.execute(plan, self.kv, 0, self._notes(plan))
        self.graph, self.last_plan = after(self.graph, plan, wanted, held), plan
        return plan

    def learn_orders(self, handles: Sequence[Handle], orders: int = 6, seed: int = 0) -> int:
        """Idle work: form orbit patches for these neighbouring messages, so that any order of them is a
        patch away.

        orders: how many permutations are run through the model (all, when there are no more). Returns the
        number of patches stored. See Kamera §5 and docs/concepts.md.
        """
        with self.editing():
            self.commit()
            return learn_orders(self, handles, orders, seed)

    def learn_removal(self, handle: Handle) -> int:
        """Idle work: form removal patches for everything behind ``handle``, for the day it leaves; returns
        how many."""
        with self.editing():
            self.commit()
            return learn_removal(self, handle)

    def fork(self) -> Window:
        """A second window with the same content and handles; rows are shared until one of the two changes."""
        with self.editing():
            self.commit()
            twin = Window.__new__(Window)
            twin.__dict__.update(self.__dict__)
            twin.kv, twin.usage, twin._lock = self.kv.fork(), Usage(), threading.RLock()
            return self.engine.adopt(twin)

    def generate(self, prompt: str | None = None, **sampling: Any) -> str:
        """The model's answer to ``prompt`` (appended as a user message), or to the window as it is.

        sampling: fields of `Sampling` (max_new_tokens, temperature, top_p, seed). The answer becomes a
        message of the window; `last_answer` is its handle.
        """
        return "".join(self.stream(prompt, **sampling))

    def stream(self, prompt: str | None = None, **sampling: Any) -> Generator[str, None, None]:
        """As `generate`, piece by piece. Closing the generator early keeps what was said so far."""
        return answer(self, prompt, Sampling(**sampling))

    async def astream(self, prompt: str | None = None, **sampling: Any) -> AsyncIterator[str]:
        """`stream` on the engine's worker thread."""
        run, pieces = asyncio.get_running_loop().run_in_executor, self.stream(prompt, **sampling)
        try:
            while (piece := await run(self.engine.worker, next, pieces, None)) is not None:
                yield piece
        finally:
            await run(self.engine.worker, pieces.close)

    async def agenerate(self, prompt: str | None = None, **sampling: Any) -> str:
        """`generate` on the engine's worker thread."""
        return "".join([piece async for piece in self.astream(prompt, **sampling)])

    def audit(self, question: Handle | None = None, new_tokens: int = 16, attribute: bool = True) -> Audit:
        """Re-prefill this window from nothing and compare: KL(re-prefill ‖ window) per token, greedy
        agreement.

        question: the message over whose tokens, and the head of an answer to it, the two are compared
        (default: the last one that is no answer). attribute: also find which messages carry the error. The
        window is not changed.
        """
        with self.editing():
            self.commit()
            return audit(self, question, new_tokens, attribute)

    def explain(self, fmt: Literal["text", "json", "mermaid"] = "text") -> str:
        """Why the last commit did what it did. fmt: text, json or mermaid. Raises InvalidInput before any
        commit."""
        self.require_open()
        if self.last_plan is None:
            raise InvalidInput(
                got="a window that was never committed", expected="a plan", do="call commit() first"
            )
        return explain(self.last_plan, fmt, self.committed.names())

    def stats(self) -> dict[str, Any]:
        """Sizes and totals, all in tokens, bytes or milliseconds."""
        self.require_open()
        return {
            "tokens": self.graph.tokens,
            "chunks": len(self.graph.placements),
            "stale_chunks": len(self.graph.stale()),
            "max_tokens": self.max_tokens,
            "rows": {"start": self.kv.start, "end": self.kv.end, "capacity": self.kv.capacity},
            "kv_bytes": self.kv.nbytes,
            "store_bytes": self.engine.store.nbytes,
            "policy": self.policy.name,
            "last_answer": asdict(self.timing),
            **asdict(self.usage),
        }

    def ids(self) -> Ids:
        """int64 ids ``[T]`` of the committed window, in order: what a re-prefill would run over."""
        self.require_open()
        parts = [self.engine.chunks.ids(p.chunk.id) for p in self.graph.placements]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def runs(self, upto: int | None = None) -> list[Run]:
        """What a re-prefill of the committed window would run, from row and position 0 on.

        upto: stop in front of this row of the window.
        """
        frame, found = self._frame(), []
        for p in self.graph.placements:
            if upto is None or p.row < upto:
                ids, media = self.engine.tokens(p.chunk.id)
                found.append(Run(p.row - frame.start, ids, p.position - frame.position, media))
        return found

    def close(self) -> None:
        """Give rows and images back. Closing twice is fine; any other call afterwards raises ClosedError."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self.kv.release()
                self.content = self.committed = Content()
                self.engine.forget(self)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Tokens wanted in the window, noted edits included."""
        return self.content.tokens

    def __repr__(self) -> str:
        return (
            f"<Window: {self.content.tokens} of {self.max_tokens} tokens, {len(self.content.order)} messages>"
        )

    def _repr_html_(self) -> str:
        return window_html(self)
