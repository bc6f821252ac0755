"""A window: what an agent's model sees, as chunks that can leave, come back and change places.

Edits are noted at once and carried out together, by one plan, when the window is next used (`commit`,
`generate`, `stream`, `audit`, ...). A call that is refused changes nothing; a plan that fails is rolled
back to the last commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from agentkv_orchestrator.bring_back import with_bring_back
from agentkv_orchestrator.explain import Format, explain
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.window import WindowGraph

from agentkv.audit import Audit, audit
from agentkv.cache import Run
from agentkv.committing import carry_out, frame, held, planned
from agentkv.decode import Timing, answer
from agentkv.disposal import Disposal, disposable
from agentkv.edits import Edits
from agentkv.errors import InvalidInput, OutOfMemory, TooLong
from agentkv.executor import Outcome
from agentkv.export import export
from agentkv.forward import out_of_memory
from agentkv.handles import Content, Handle
from agentkv.inputs import Ids, Marks
from agentkv.learn import learn_orders, learn_removal, settle
from agentkv.page import window_html
from agentkv.queries import Relation, names, related, stats
from agentkv.sampling import Guide, Sampling
from agentkv.saving import save
from agentkv.showing import Message
from agentkv.undo import Past, opened, recorded, stale, step
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
        self.past = opened()
        self.usage = Usage()
        self.timing = Timing()
        self.last_plan: Plan | None = None
        self.last_outcome = Outcome()
        self.last_answer: Handle | None = None

    def plan(self, headroom: int = 0) -> Plan:
        """What `commit` would do now; nothing is carried out. Its evictions say what it would take to
        take them back at once.

        headroom: rows to leave free behind the window. Raises TooLong when it does not fit.
        """
        holding = held(self)
        plan, wanted = planned(self, holding, headroom)
        rows = self.engine.layout.max_positions
        return with_bring_back(plan, self.graph, wanted, holding, self.engine.costs, self.policy, rows)

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
                plan, outcome, graph, content = carry_out(self, headroom, keep)
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
            self.past = recorded(self, self.past, content, self.committed)
            self.content = self.committed = content.remembering(self.engine.config.remembered)
            self.last_plan, self.last_outcome = plan, outcome
            self.usage = self.usage.plus(plan, (time.perf_counter() - start) * 1e3)
            return plan

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
            return settle(self, ms)

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

    def undo(self, steps: int = 1) -> Plan:
        """Ask for what the window held ``steps`` revisions ago, messages, pins and clean views, and commit
        that. Edits that are noted and not committed count as the newest revision.

        KV that was stored when it was lost comes back as it was where the store still has it; the rest is up
        to the policy. What was appended since stays known, as evicted. Raises InvalidInput when the history
        is shorter, and what `commit` raises.
        """
        with self.editing():
            return step(self, steps, back=True)

    def redo(self, steps: int = 1) -> Plan:
        """The reverse of `undo`, until the next edit is committed."""
        with self.editing():
            return step(self, steps, back=False)

    def history(self) -> Past:
        """What was committed, revision by revision, the live one last, and what `redo` goes to; prints."""
        self.require_open()
        return self.past

    def stale(self, since: int | None = None) -> list[Handle]:
        """Committed messages whose KV was conditioned on something else than what stands in front now.

        since: only those that were not at this revision of `history`: what edits have made stale since.
        """
        self.require_open()
        return stale(self, since)

    def related(self, handle: Handle, how: Relation = "dependents") -> list[Handle]:
        """Committed messages that ``handle`` was computed behind (antecedents), that were computed behind it
        (dependents), or that a change of it reaches (cascade)."""
        self.require_open()
        return related(self, handle, how)

    def fork(self) -> Window:
        """A second window with the same content, handles and history; it shares rows until one changes. In
        the middle of an answer: what stands in front of the answer."""
        with self._lock:  # no edit and no answer begins meanwhile; an answer may go on or end
            front = self.unanswered
            if front is None:
                with self.editing():
                    self.commit()
                    return self._twin()
            self.require_open()
            twin = self._twin()  # an answer writes behind the rows of `front`, and nowhere else
        twin.graph, twin.content, twin.past, twin.kv.end = front
        twin.committed, twin.unanswered = twin.content, None
        return twin

    def _twin(self) -> Window:
        twin = Window.__new__(Window)
        twin.__dict__.update(self.__dict__)
        twin.kv, twin.usage, twin._lock = self.kv.fork(), Usage(), threading.RLock()
        return self.engine.adopt(twin)

    def save(self, name: str | None = None) -> str:
        """Put this window into its engine's store, for `Engine.open` in another process; returns its name.

        name: an older window of this name is replaced; None takes a fresh one. A saved window stays until it
        is dropped from the store; its rows may make room for others, and are computed again then. Raises
        InvalidInput, BadStore when the store did not keep it.
        """
        with self.editing():
            self.commit()
            return save(self, name)

    def generate(self, prompt: str | Sequence[Message] | None = None, **sampling: Any) -> str:
        """The model's answer to ``prompt``, or to the window as it is. A text is appended as a user message;
        a list is what the window then holds, as by `show`.

        sampling: fields of `Sampling` (max_new_tokens, temperature, top_p, seed). The answer becomes a
        message of the window; `last_answer` is its handle.
        """
        return "".join(self.stream(prompt, **sampling))

    def stream(
        self,
        prompt: str | Sequence[Message] | None = None,
        *,
        marks: Marks | None = None,
        guide: Guide | None = None,
        **sampling: Any,
    ) -> Generator[str, None, None]:
        """As `generate`, piece by piece. Closing the generator early keeps what was said so far.

        marks: what opens and ends the answer, in place of what the model's template writes. guide: what may
        be said (`agentkv.sampling.Guide`).
        """
        return answer(self, prompt, Sampling(**sampling), marks, guide)

    async def astream(
        self, prompt: str | Sequence[Message] | None = None, **sampling: Any
    ) -> AsyncIterator[str]:
        """`stream` on the engine's worker thread."""
        run, pieces = asyncio.get_running_loop().run_in_executor, self.stream(prompt, **sampling)
        try:
            while (piece := await run(self.engine.worker, next, pieces, None)) is not None:
                yield piece
        finally:
            await run(self.engine.worker, pieces.close)

    async def agenerate(self, prompt: str | Sequence[Message] | None = None, **sampling: Any) -> str:
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

    def disposable(
        self,
        handle: Handle,
        question: Handle | None = None,
        policy: str | Policy | None = None,
        threshold: float | None = None,
        new_tokens: int = 8,
    ) -> Disposal:
        """Whether the answer to a question changes when ``handle`` leaves; the window is not changed.

        question: as for `audit`. policy: how it would leave (the window's; "exact" is the truth and takes a
        prefill). threshold: KL up to which it can go (the KL budget). new_tokens: of the answer.
        """
        with self.editing():
            self.commit()
            leaving = self.policy if policy is None else Policy.parse(policy)
            return disposable(self, handle, question, leaving, threshold, new_tokens)

    def explain(self, fmt: Format = "text") -> str:
        """Why the last commit did what it did, and why it was slow. fmt: text, json, mermaid or html. Raises
        InvalidInput before any commit."""
        self.require_open()
        if self.last_plan is None:
            raise InvalidInput(
                got="a window that was never committed", expected="a plan", do="call commit() first"
            )
        return explain(self.last_plan, fmt, names(self), self.last_outcome.ms)

    def export(self, folder: str | Path) -> str:
        """Write what `plan` plans from to JSON files in ``folder``; returns the command that makes the same
        plan from them, without a model. Raises InvalidInput where that cannot be written."""
        with self.editing():
            return export(self, Path(folder))

    def stats(self) -> dict[str, Any]:
        """Sizes and totals, all in tokens, bytes or milliseconds."""
        self.require_open()
        return stats(self)

    def ids(self) -> Ids:
        """int64 ids ``[T]`` of the committed window, in order: what a re-prefill would run over."""
        self.require_open()
        parts = [self.engine.chunks.ids(p.chunk.id) for p in self.graph.placements]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def runs(self, upto: int | None = None) -> list[Run]:
        """What a re-prefill of the committed window would run, from row and position 0 on, ``upto`` a row of
        the window."""
        stands, found = frame(self), list[Run]()
        for p in self.graph.placements:
            if upto is None or p.row < upto:
                ids, media = self.engine.tokens(p.chunk.id)
                found.append(Run(p.row - stands.start, ids, p.position - stands.position, media))
        return found

    def close(self) -> None:
        """Give rows and images back. Closing twice is fine; any other call afterwards raises ClosedError."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self.kv.release()
                self.content = self.committed = Content()
                self.past = opened()
                self.engine.forget(self)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Tokens wanted, noted edits included."""
        return self.content.tokens

    def __repr__(self) -> str:
        size = f"{self.content.tokens} of {self.max_tokens} tokens"
        return f"<Window: {size}, {len(self.content.order)} messages>"

    def _repr_html_(self) -> str:
        return window_html(self)
