"""Runs of a prompt, and what a registry knows of them."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

Found = Literal["prefix", "chunk", "part", "new"]


class Span(NamedTuple):
    """Tokens start:stop of a prompt, and what they are.

    found: "prefix" (a known chunk, as is all in front of it), "chunk" (a known chunk), "part" (they stand in
    a known chunk from `offset` on) or "new" (nobody knows them; chunk is empty).
    """

    start: int
    stop: int
    found: Found = "new"
    chunk: str = ""
    offset: int = 0

    def carved(self, sink: int, shortest: int) -> list["Span"]:
        """A hit among the first `sink` tokens of a sequence begins behind them, if `shortest` are left."""
        if self.start >= sink or self.found in ("prefix", "new"):
            return [self]
        if self.stop - sink < shortest:
            return [Span(self.start, self.stop)]
        rest = Span(sink, self.stop, "part", self.chunk, self.offset + sink - self.start)
        return [Span(self.start, sink), rest]


def tokens_by(spans: Iterable[Span]) -> Counter[Found]:
    """How many tokens were found as what."""
    found: Counter[Found] = Counter()
    for span in spans:
        found[span.found] += span.stop - span.start
    return found
