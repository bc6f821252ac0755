"""Dividing a placement: an edit inside a chunk keeps what stands before and behind it."""

from collections.abc import Sequence

from .chunks import Chunk
from .errors import WindowError
from .lineage import EMPTY, Lineage
from .window import Placement, WindowGraph


def split(graph: WindowGraph, uid: int, parts: Sequence[tuple[int, Chunk]]) -> WindowGraph:
    """The same window with placement `uid` said to be several: bookkeeping only, no tensor changes.

    parts: (uid, chunk) in order; together they hold the tokens of the placement. Whoever was conditioned on
    the chunk was conditioned on its parts. Raises WindowError when lengths do not add up, or when the chunk
    is placed twice (then nobody can say whose antecedent it was).
    """
    whole = graph.get(uid)
    sizes = [(chunk.length, chunk.span) for _, chunk in parts]
    if whole is None or (sum(n for n, _ in sizes), sum(s for _, s in sizes)) != (
        whole.chunk.length,
        whole.chunk.span,
    ):
        raise WindowError(
            f"parts of (tokens, positions) {sizes} for uid {uid}",
            f"parts of {whole.chunk.length} tokens over {whole.chunk.span}" if whole else "a live uid",
            "cut the live chunk's own tokens; an image is not divided",
        )
    if sum(p.chunk.id == whole.chunk.id for p in graph.placements) > 1:
        raise WindowError(
            f"chunk {whole.chunk.id} placed twice", "a chunk placed once", "replace it as a whole"
        )
    ids = [chunk.id for _, chunk in parts]
    known = {EMPTY.key: EMPTY}

    def divided(seen: Lineage, link: Lineage) -> Lineage:
        if link.chunk == whole.chunk.id and seen == link.parent:  # the first time it is met
            return seen.extended(ids)
        return link if seen == link.parent else seen.then(link.chunk)

    placements: list[Placement] = []
    for p in graph.placements:
        if p.uid == uid:
            placements += _divided(p, parts)
            continue
        seen = p.antecedents.fold(known, divided)
        clean = [part for c in p.clean_front for part in (ids if c == whole.chunk.id else [c])]
        update = {"antecedents": seen, "clean_front": tuple(clean)}
        placements.append(p if seen == p.antecedents else p.model_copy(update=update))
    return graph.revise(placements)


def _divided(whole: Placement, parts: Sequence[tuple[int, Chunk]]) -> list[Placement]:
    """Every part was conditioned on the parts before it as well."""
    found: list[Placement] = []
    seen, tokens, row, position = whole.antecedents, whole.antecedent_tokens, whole.row, whole.position
    for uid, chunk in parts:
        update = {"uid": uid, "chunk": chunk, "antecedents": seen, "antecedent_tokens": tokens}
        found.append(whole.model_copy(update={**update, "row": row, "position": position}))
        seen, tokens = seen.then(chunk.id), tokens + chunk.length
        row, position = row + chunk.length, position + chunk.span
    return found
