"""Windows by thread: which one goes on, which one is forked, and which ones are given up.

A thread may have several windows, one for each branch of its history. Every answer gives its window a new
handle, a short string that travels in the message; the last handle in a message list says which window, and
which state of it, the list goes on from. Nothing else of a window leaves the process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

from agentkv_orchestrator.policy import Policy

from agentkv.engine import Engine
from agentkv.errors import ClosedError
from agentkv.showing import Message
from agentkv.window import Window

HANDLES = 4096
"""So many handles of one window are remembered: what a branch may go back to."""

MOST = 0.5
"""Share that tells the same conversation from another one that begins alike."""


@dataclass(eq=False)
class Seat:
    """A window of a thread. owner: who calls the model there. head: its newest handle. passed: the older
    ones, oldest first."""

    window: Window
    thread: str
    owner: str = ""
    head: str = ""
    passed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    taken: bool = False

    def moved(self, handle: str) -> None:
        """Another answer is in the window."""
        if self.head:
            self.passed[self.head] = None
        while len(self.passed) > HANDLES:
            self.passed.popitem(last=False)
        self.head = handle


@dataclass(frozen=True)
class Lease:
    """A window that nobody else uses meanwhile, and in words how it came to be."""

    seat: Seat
    how: str

    @property
    def window(self) -> Window:
        return self.seat.window


class Told(NamedTuple):
    """A window that a list goes on from, itself or a fork of it, and why."""

    seat: Seat
    fork: bool
    how: str


class Threads:
    """The windows of one engine's threads.

    limit: how many are kept while nobody uses them; the one unused for longest is closed first.
    """

    def __init__(self, engine: Engine, limit: int, window_tokens: int | None) -> None:
        self.engine, self.limit, self.window_tokens = engine, limit, window_tokens
        self._seats: OrderedDict[int, Seat] = OrderedDict()  # the one used last is the last
        self._lock = threading.Lock()
        self._model = engine.loaded.fingerprint[:8]

    def __len__(self) -> int:
        return len(self._seats)

    def handles(self, thread: str) -> list[str]:
        """The newest handle of each window of a thread."""
        return [seat.head for seat in self._of(thread)]

    def at(self, handle: str) -> Window | None:
        """The window whose newest handle this is."""
        seats = list(self._seats.values())
        return next((seat.window for seat in seats if handle and seat.head == handle), None)

    @contextmanager
    def lease(
        self,
        thread: str,
        owner: str,
        handles: Sequence[str],
        messages: Sequence[Message],
        policy: Policy,
    ) -> Iterator[Lease]:
        """A window for this message list. owner: the agent that calls, where a thread has several. handles:
        those in the list, oldest first."""
        lease = self._take(thread, owner, handles, messages, policy)
        try:
            lease.window.policy = policy
            yield lease
        finally:
            self._give_back(lease.seat)

    def name(self, thread: str) -> str:
        """A fresh handle."""
        return f"{self._model}:{thread}:{uuid4().hex[:16]}"

    def drop(self, thread: str, handles: Collection[str] | None = None) -> int:
        """Close windows of a thread, all or those whose newest handle is one of these; how many. One that
        is in use is closed when it is given back."""
        with self._lock:
            gone = [s for s in self._of(thread) if handles is None or s.head in handles]
            for seat in gone:
                del self._seats[id(seat)]
        for seat in gone:
            if not seat.taken:
                seat.window.close()
        return len(gone)

    def keep(self, thread: str, handles: Collection[str]) -> int:
        """Close the windows of a thread that none of these handles leads to, but for those in use; how
        many."""
        wanted = set(handles)
        seats = (seat for seat in self._of(thread) if not seat.taken and seat.head not in wanted)
        return self.drop(thread, {seat.head for seat in seats if wanted.isdisjoint(seat.passed)})

    def close(self) -> None:
        for thread in {seat.thread for seat in list(self._seats.values())}:
            self.drop(thread)

    def _of(self, thread: str) -> list[Seat]:
        return [seat for seat in list(self._seats.values()) if seat.thread == thread]

    def _take(
        self,
        thread: str,
        owner: str,
        handles: Sequence[str],
        messages: Sequence[Message],
        policy: Policy,
    ) -> Lease:
        last = handles[-1] if handles else ""
        with self._lock:
            told = self._told(thread, last) or self._alike(thread, owner, messages)
            seat, fork, how = told if told is not None else (None, False, "opened")
            if seat is not None and not fork:
                seat.taken = True
                self._seats.move_to_end(id(seat))
                return Lease(seat, how)
        if seat is not None:
            try:
                fresh = Seat(seat.window.fork(), thread, owner, seat.head, seat.passed.copy(), taken=True)
            except ClosedError:  # given up in between
                seat = None
        if seat is None:
            fresh = Seat(self.engine.bare_window(policy, self.window_tokens), thread, owner, taken=True)
            if last:
                other = not last.startswith(f"{self._model}:")
                how = f"opened: the thread's window {'belongs to another model' if other else 'is gone'}"
        with self._lock:
            self._seats[id(fresh)] = fresh
        return Lease(fresh, how)

    def _told(self, thread: str, last: str) -> Told | None:
        """The window that wrote the last answer of the list: itself where nothing came since, else a fork."""
        for seat in self._of(thread):
            if last and seat.head == last:
                return Told(seat, seat.taken, "forked: the window is in use" if seat.taken else "went on")
            if last in seat.passed:
                return Told(seat, True, "forked: the window went on since")
        return None

    def _alike(self, thread: str, owner: str, messages: Sequence[Message]) -> Told | None:
        """For a list without a known handle: the caller's own window where little of that would leave, or a
        fork of one that holds most of the list, whoever's it is."""
        common = {id(seat): overlap(seat.window, messages) for seat in self._of(thread)}
        seats = sorted(self._of(thread), key=lambda seat: common[id(seat)], reverse=True)
        for seat in seats:
            own = seat.owner == owner and not seat.taken
            if own and common[id(seat)] >= max(1, MOST * len(seat.window)):
                return Told(seat, False, "went on: most of it is in the list")
        wanted = max(1, MOST * sum(message.tokens for message in messages))
        if seats and common[id(seats[0])] >= wanted:
            return Told(seats[0], True, "forked: most of the list is in it")
        return None

    def _give_back(self, seat: Seat) -> None:
        """Close what was dropped meanwhile, and what was unused for longest while there are too many."""
        with self._lock:
            seat.taken = False
            if not len(seat.window):  # its first call was refused
                self._seats.pop(id(seat), None)
            gone = [] if id(seat) in self._seats else [seat]
            for key, other in list(self._seats.items()):
                if len(self._seats) > self.limit and not other.taken:
                    gone.append(self._seats.pop(key))
        for other in gone:
            other.window.close()


def overlap(window: Window, messages: Sequence[Message]) -> int:
    """Tokens of these messages that the window holds."""
    live = {window.said[i][0] for i in window.content.order if i in window.said}
    return sum(message.tokens for message in messages if message.key in live)
