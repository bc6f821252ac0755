"""Text that is passed on as it comes, but for what ends an answer and what begins a call."""

from __future__ import annotations

from collections.abc import Sequence


class Until:
    """Follows an answer piece by piece.

    stops: texts that end it and are no part of it. triggers: texts behind which everything is held back, to
    be read as a whole. first: whether a trigger counts only where the answer begins with it.
    """

    def __init__(self, stops: Sequence[str], triggers: Sequence[str], first: bool = False) -> None:
        self.stops, self.triggers = [s for s in stops if s], [t for t in triggers if t]
        self.first = first
        self.raw = ""
        """All that was said, a stop and what the model said behind it left out."""
        self._passed = 0
        self.stopped = self.held = False

    def push(self, piece: str) -> str:
        """What of the answer can be passed on now."""
        since = len(self.raw)
        self.raw += piece
        self._stop(since)
        if self.held:
            return ""
        found = min((i for t in self.triggers if (i := self.raw.find(t, self._passed)) >= 0), default=-1)
        if found >= 0 and self.first and self.raw[:found].strip():
            self.triggers, found = [], -1  # the answer began with something else
        if found >= 0:
            self.held = True
            return self._upto(found)
        return self._upto(len(self.raw) - (0 if self.stopped else self._open()))

    def rest(self) -> str:
        """What was not passed on."""
        return self._upto(len(self.raw))

    def _stop(self, since: int) -> None:
        longest = max(map(len, self.stops), default=0)
        first = max(0, since - longest + 1)
        found = min((i for stop in self.stops if (i := self.raw.find(stop, first)) >= 0), default=-1)
        if found >= 0:
            self.raw, self.stopped = self.raw[:found], True

    def _open(self) -> int:
        """How many last characters may be the beginning of a stop or a trigger."""
        tail = self.raw[self._passed :]
        for size in range(min(len(tail), max(map(len, [*self.stops, *self.triggers]), default=0)), 0, -1):
            if any(mark.startswith(tail[-size:]) for mark in [*self.stops, *self.triggers]):
                return size
        return 0

    def _upto(self, place: int) -> str:
        text = self.raw[self._passed : place]
        self._passed = max(self._passed, place)
        return text
