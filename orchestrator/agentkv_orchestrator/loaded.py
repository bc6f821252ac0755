"""What must hold in a window that was read from outside, besides what every window is built to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import WindowError
from .lineage import EMPTY, Lineage

if TYPE_CHECKING:
    from .window import WindowGraph


def require_credible(graph: WindowGraph) -> None:
    """Raises WindowError when placements contradict each other or the revision of their window."""
    _one_size_a_chunk(graph)
    _nothing_from_the_future(graph)
    _tokens_fit_their_antecedents(graph)


def _one_size_a_chunk(graph: WindowGraph) -> None:
    sizes: dict[str, tuple[int, int]] = {}
    for p in graph.placements:
        size = (p.chunk.length, p.chunk.span)
        known = sizes.setdefault(p.chunk.id, size)
        if known != size:
            raise WindowError(
                f"chunk {p.chunk.id} of (tokens, positions) {size} for uid {p.uid}",
                f"{known} as for its other placement",
                "give other content another chunk id",
            )


def _nothing_from_the_future(graph: WindowGraph) -> None:
    for p in graph.placements:
        if p.revision > graph.revision:
            raise WindowError(
                f"uid {p.uid} written in revision {p.revision}",
                f"at most {graph.revision}, the revision of the window",
                "write it with to_json()",
            )


def _tokens_fit_their_antecedents(graph: WindowGraph) -> None:
    """Antecedents that stand in the window have a length; those that left had at least one token."""
    lengths = {p.chunk.id: p.chunk.length for p in graph.placements}
    known = {EMPTY.key: (0, 0)}

    def longer(so_far: tuple[int, int], link: Lineage) -> tuple[int, int]:
        here, gone = so_far
        length = lengths.get(link.chunk)
        return (here, gone + 1) if length is None else (here + length, gone)

    for p in graph.placements:
        here, gone = p.antecedents.fold(known, longer)
        if p.antecedent_tokens < here + gone or (not gone and p.antecedent_tokens != here):
            raise WindowError(
                f"{p.antecedent_tokens} antecedent tokens for uid {p.uid}",
                f"{here}{' and what left' * bool(gone)}, the tokens of its antecedents",
                "write it with to_json()",
            )
