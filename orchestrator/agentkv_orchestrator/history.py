"""What a window was asked to hold, revision by revision, and what undo and redo go to.

An immutable value, so that a fork shares the past with its twin and each goes on alone. It holds what was
wanted, never KV: how an earlier revision comes back is for a plan to say.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .errors import WindowError

C = TypeVar("C")

DEPTH = 64
"""Revisions that are kept; the oldest ones are forgotten first."""


@dataclass(frozen=True)
class Revision(Generic[C]):
    """One state of a window.

    number: revision of the window graph when it was last live; None if it was noted and never committed.
    edit: what led here, in words. content: what was wanted, in order. stale: what was stale then, by
    whatever name the content goes by.
    """

    number: int | None
    edit: str
    content: C
    stale: frozenset[int] = frozenset()

    def __str__(self) -> str:
        number = "noted" if self.number is None else str(self.number)
        return f"{number:>5}  {self.edit}" + f"  ({len(self.stale)} stale)" * bool(self.stale)


@dataclass(frozen=True)
class History(Generic[C]):
    """Revisions up to now, the last one live, and those that redo goes to, the next one first."""

    past: tuple[Revision[C], ...]
    future: tuple[Revision[C], ...] = ()

    @property
    def now(self) -> Revision[C]:
        return self.past[-1]

    def then(self, revision: Revision[C]) -> "History[C]":
        """An edit: what could be redone is gone."""
        return History((*self.past, revision)[-DEPTH:])

    def amended(self, revision: Revision[C]) -> "History[C]":
        """The same history with another account of what is live."""
        return replace(self, past=(*self.past[:-1], revision))

    def back(self, steps: int) -> "History[C]":
        """`steps` revisions earlier. Raises WindowError when there are not so many."""
        _require(steps, len(self.past) - 1, "undo")
        return History(self.past[:-steps], self.past[-steps:] + self.future)

    def forward(self, steps: int) -> "History[C]":
        """`steps` undone revisions later. Raises WindowError when there are not so many."""
        _require(steps, len(self.future), "redo")
        return History(self.past + self.future[:steps], self.future[steps:])

    def rewritten(self, content: Callable[[C], C]) -> "History[C]":
        """Every content told in other words, such as a chunk by its parts."""
        past, future = (
            tuple(replace(r, content=content(r.content)) for r in revisions)
            for revisions in (self.past, self.future)
        )
        return History(past, future)

    def __str__(self) -> str:
        """One line a revision, the live one marked, what can be redone below it."""
        lines = [f"  {r}" for r in self.past[:-1]]
        return "\n".join([*lines, f"> {self.now}", *(f"  {r}  (undone)" for r in self.future)])


def _require(steps: int, most: int, verb: str) -> None:
    if not 1 <= steps <= most:
        raise WindowError(
            f"{verb} of {steps} steps", f"1 to {most}" if most else f"nothing to {verb}", "see history()"
        )
