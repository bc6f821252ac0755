"""What loops are built from."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from ..trace import Header, Message, Trace, Turn

SHORT, LONG = 0.5, 2.0
"""A length is drawn between these multiples of the usual one."""


class Parts:
    """Draws messages of about the usual lengths; equal seeds draw equal messages."""

    def __init__(self, name: str, seed: int) -> None:
        self.draw = Random(f"{name}:{seed}")
        self._name, self._number = name, 0

    def message(
        self, kind: str, tokens: int, *, name: str | None = None, fixed: bool = False, **said: Any
    ) -> Message:
        """A new message of about so many tokens, or of exactly so many where that is `fixed`."""
        self._number += 1
        length = tokens if fixed else max(1, round(tokens * self.draw.uniform(SHORT, LONG)))
        return Message(id=name or f"{kind}-{self._number}", kind=kind, tokens=length, **said)

    def system(self, tokens: int = 400) -> Message:
        return self.message("system", tokens, name="system", fixed=True, pin=True)

    def answer(self, tokens: int = 60) -> Message:
        return self.message("assistant", tokens)

    def trace(self, turns: Iterable[Turn], note: str) -> Trace:
        return Trace(header=Header(name=self._name, source="generated", note=note), turns=tuple(turns))


def zipf(count: int, exponent: float = 1.0) -> list[float]:
    """Weights 1/rank^exponent."""
    return [1 / (rank + 1) ** exponent for rank in range(count)]
