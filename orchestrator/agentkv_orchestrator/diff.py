"""From the live window to the wanted one: what each chunk's KV has lost and gained in front of it.

A lineage becomes a set of places in the wanted window, kept as the bits of one integer: 250 bytes for 2,000
chunks, and intersections cost next to nothing. A lineage that continues another adds one bit to its set.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from .chunks import Chunk
from .errors import WindowError
from .lineage import EMPTY, Lineage
from .residency import FrozenResidency, Residency
from .window import WindowGraph

Kind = Literal["kept", "survivor", "reordered", "recalled", "new", "dropped"]


class Wanted(BaseModel):
    """A chunk of the window to come; a uid that is live already asks for that placement again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uid: int
    chunk: Chunk
    clean: bool = False
    pinned: bool = False
    order_free: int | None = None
    """Number of the message this chunk is part of, where its place among its neighbours is free; see
    `placement`. None where the place was chosen."""


class Change(NamedTuple):
    """What happens to one placement's context: what is in its tensor against what will stand in front."""

    uid: int
    chunk: Chunk
    kind: Kind
    context: str = ""
    """Key of the stored context that is compared; empty for a live chunk."""
    lost: int = 0
    """Antecedents in the tensor that are in the window no more."""
    lost_tokens: int = 0
    gained: int = 0
    """Chunks that came to stand in front and that the tensor has not seen."""
    gained_tokens: int = 0
    reordered: bool = False
    """Antecedents stand in another order, or behind the chunk, or something computed behind it in front."""
    hole: bool = False
    """An antecedent left from behind one that stayed."""


def require_wanted(graph: WindowGraph, wanted: Sequence[Wanted]) -> None:
    """Raises WindowError when a uid is asked for twice or names another chunk than the live one."""
    seen: set[int] = set()
    for w in wanted:
        live = graph.get(w.uid)
        if w.uid in seen:
            raise WindowError(f"uid {w.uid} twice", "each uid once", "place a copy under a fresh uid")
        if live is not None and live.chunk.id != w.chunk.id:
            got = f"chunk {w.chunk.id} for uid {w.uid}"
            raise WindowError(got, f"chunk {live.chunk.id}", "give edited content a fresh uid")
        seen.add(w.uid)


def diff(graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency | None = None) -> list[Change]:
    """One Change per wanted chunk, in order, then one per dropped placement. Raises WindowError."""
    asked = {w.uid for w in wanted}
    gone = (p for p in graph.placements if p.uid not in asked)
    changes = Comparison(graph, wanted).changes(residency or FrozenResidency())
    return changes + [Change(uid=p.uid, chunk=p.chunk, kind="dropped") for p in gone]


class _Seen(NamedTuple):
    """A lineage by places of the wanted window. Of several copies of a chunk the first ones count as seen."""

    places: int = 0
    """Bit p: has seen what will stand at place p."""
    tokens: int = 0
    """Of what stands at these places."""
    lost: int = 0
    """Antecedents that stand nowhere any more."""
    hole: bool = False
    """One of these was behind one that still stands."""
    ordered: bool = True
    """Seen in the order of the places."""


class Comparison:
    """The live window held against the wanted one, for one plan. Raises WindowError when they contradict."""

    def __init__(self, graph: WindowGraph, wanted: Sequence[Wanted]) -> None:
        require_wanted(graph, wanted)
        self._wanted = wanted
        self.live = [graph.get(w.uid) for w in wanted]
        """By place: what is live under the wanted uid."""
        self._lengths = [w.chunk.length for w in wanted]
        self.tokens_in_front = list(accumulate(self._lengths, initial=0))
        """By place; the last one is the whole window."""
        self.fronts = list(accumulate((w.chunk.id for w in wanted), Lineage.then, initial=EMPTY))
        """By place: what will stand in front; the last one is the whole window."""
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, w in enumerate(wanted):
            self._places[w.chunk.id].append(place)
        self._known = {EMPTY.key: _Seen()}

    def changes(self, residency: Residency) -> list[Change]:
        """One per wanted chunk, in order."""
        return [
            Change(w.uid, w.chunk, "new" if residency.of(w.chunk.id).empty else "recalled")
            if live is None
            else self.at(place, live.antecedents, live.antecedent_tokens)
            for place, (w, live) in enumerate(zip(self._wanted, self.live, strict=True))
        ]

    def at(self, at: int, antecedents: Lineage, tokens: int, context: str = "") -> Change:
        """What KV that has seen `antecedents` (`tokens` in all) would miss as the chunk wanted[at].

        context: the key it is stored under, empty for what is live.
        """
        w = self._wanted[at]
        front = EMPTY if w.clean else self.fronts[at]
        if antecedents.key == front.key:
            return Change(w.uid, w.chunk, "kept", context)
        seen = self._seen(antecedents)
        in_front = 0 if w.clean else (1 << at) - 1
        still = seen.places & in_front
        elsewhere = seen.places ^ still
        turned = elsewhere >> at + 1 << at + 1
        gone = elsewhere ^ turned  # in front of a clean view, or the chunk's own other copy
        unseen = in_front ^ still
        # Whatever changed sides is a matter of order: each of the two has been read with the other in view.
        turned_in_front = unseen & self._seen_by[at] if unseen else 0
        reordered = bool(turned or turned_in_front) or not seen.ordered
        standing = seen.tokens - self._tokens(gone) if gone else seen.tokens
        met = standing - self._tokens(turned) + self._tokens(turned_in_front) if reordered else standing
        return Change(
            w.uid,
            w.chunk,
            "reordered" if reordered else "survivor",
            context,
            seen.lost + gone.bit_count(),
            tokens - standing,
            (unseen ^ turned_in_front).bit_count(),
            (0 if w.clean else self.tokens_in_front[at]) - met,
            reordered,
            seen.hole,
        )

    def _seen(self, lineage: Lineage) -> _Seen:
        known = self._known.get(lineage.key)
        return lineage.fold(self._known, self._then) if known is None else known

    def _then(self, seen: _Seen, link: Lineage) -> _Seen:
        places, tokens, lost, hole, ordered = seen
        for place in self._places.get(link.chunk, ()):
            bit = 1 << place
            if not places & bit:
                return _Seen(
                    places | bit, tokens + self._lengths[place], lost, hole, ordered and places < bit
                )
        # Leaving from the front shifts everyone alike; leaving from behind a survivor tears a hole.
        return _Seen(places, tokens, lost + 1, hole or places > 0, ordered)

    @cached_property
    def _seen_by(self) -> list[int]:
        """By place: the places of the live chunks that have seen what will stand there."""
        below: dict[str, int] = defaultdict(int)
        """By lineage: places of the live chunks that continue it."""
        links: dict[str, tuple[int, str]] = {}
        """By lineage: its length, and the key of all but its last."""
        for place, live in enumerate(self.live):
            link = live.antecedents if live else EMPTY
            self._seen(link)
            below[link.key] |= 1 << place
            while link.parent is not None and link.key not in links:
                links[link.key] = link.length, link.parent.key
                link = link.parent
        found = [0] * len(self.live)
        for key, (_, front) in sorted(links.items(), key=itemgetter(1), reverse=True):
            below[front] |= below[key]
            added = self._known[key].places ^ self._known[front].places
            if added:
                found[added.bit_length() - 1] |= below[key]
        return found

    def _tokens(self, places: int) -> int:
        if not places & (places - 1):  # one place or none
            return self._lengths[places.bit_length() - 1] if places else 0
        return sum([(places & chunks).bit_count() << bit for bit, chunks in self._with_bit])

    @cached_property
    def _with_bit(self) -> list[tuple[int, int]]:
        """By bit of a number, the places of chunks whose length has it: what a set of places holds is counted
        by a few intersections, not by a loop over it."""
        bits = np.arange(max(self._lengths, default=0).bit_length())
        packed = np.packbits(np.array(self._lengths) >> bits[:, None] & 1, axis=1, bitorder="little")
        found = [(bit, int.from_bytes(places.tobytes(), "little")) for bit, places in enumerate(packed)]
        return [(bit, chunks) for bit, chunks in found if chunks]
