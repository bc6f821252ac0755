"""From the live window to the wanted one: what each chunk's KV has lost and gained in front of it.

A lineage becomes a set of places in the wanted window, kept as the bits of one integer: 250 bytes for 2,000
chunks, and intersections cost next to nothing. A lineage that continues another adds one bit to its set.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from .chunks import Chunk
from .errors import WindowError
from .lineage import EMPTY, Lineage
from .residency import FrozenResidency, Residency
from .window import Placement, WindowGraph

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


def live_under(graph: WindowGraph, wanted: Sequence[Wanted]) -> list[Placement | None]:
    """What is live under each wanted uid.

    Raises WindowError when a uid is asked for twice or names another chunk than the live one.
    """
    uids = [w.uid for w in wanted]
    if len(set(uids)) < len(uids):
        (uid, _), *_ = Counter(uids).most_common(1)
        raise WindowError(f"uid {uid} twice", "each uid once", "place a copy under a fresh uid")
    found = graph.get_all(uids)
    for w, live in zip(wanted, found, strict=True):
        if live is not None and live.chunk is not w.chunk and live.chunk.id != w.chunk.id:
            got = f"chunk {w.chunk.id} for uid {w.uid}"
            raise WindowError(got, f"chunk {live.chunk.id}", "give edited content a fresh uid")
    return found


def diff(graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency | None = None) -> list[Change]:
    """One Change per wanted chunk, in order, then one per dropped placement. Raises WindowError."""
    asked = {w.uid for w in wanted}
    gone = (p for p in graph.placements if p.uid not in asked)
    changes = Comparison(graph, wanted).changes(residency or FrozenResidency())
    return changes + [Change(uid=p.uid, chunk=p.chunk, kind="dropped") for p in gone]


_Seen = tuple[int, int, int, bool, bool]
"""A lineage by places of the wanted window, plain as there is one for every link. Of several copies of a
chunk the first ones count as seen.

places: bit p has seen what will stand at place p. tokens: of what stands at these places. lost: antecedents
that stand nowhere any more. hole: one of these was behind one that still stands. ordered: seen in the order
of the places.
"""


class Comparison:
    """The live window held against the wanted one, for one plan. Raises WindowError when they contradict."""

    def __init__(self, graph: WindowGraph, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted
        self.live = live_under(graph, wanted)
        """By place: what is live under the wanted uid."""
        self._lengths = [w.chunk.length for w in wanted]
        self.tokens_in_front = list(accumulate(self._lengths, initial=0))
        """By place; the last one is the whole window."""
        ids = [w.chunk.id for w in wanted]
        self.fronts = list(accumulate(ids, Lineage, initial=EMPTY))
        """By place: what will stand in front; the last one is the whole window."""
        self._places: dict[str, int] = {}
        """By chunk: a bit for each place where it will stand."""
        for place, chunk in enumerate(ids):
            self._places[chunk] = self._places.get(chunk, 0) | 1 << place
        self._known: dict[str, _Seen] = {EMPTY.key: (0, 0, 0, False, True)}

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
        places, seen, lost, hole, ordered = self._seen(antecedents)
        in_front = 0 if w.clean else (1 << at) - 1
        still = places & in_front
        elsewhere = places ^ still
        turned = elsewhere >> at + 1 << at + 1
        gone = elsewhere ^ turned  # in front of a clean view, or the chunk's own other copy
        unseen = in_front ^ still
        # Whatever changed sides is a matter of order: each of the two has been read with the other in view.
        turned_in_front = unseen & self._seen_by[at] if unseen & self._live_places else 0
        came = unseen ^ turned_in_front
        reordered = bool(turned or turned_in_front) or not ordered
        standing = seen - self._tokens(gone) if gone else seen
        return Change(
            w.uid,
            w.chunk,
            "reordered" if reordered else "survivor",
            context,
            lost + gone.bit_count(),
            tokens - standing,
            came.bit_count(),
            self._tokens(came),
            reordered,
            hole,
        )

    def _seen(self, lineage: Lineage) -> _Seen:
        """As `Lineage.fold`, which would call a function for every link: most time of a plan is spent here
        where every chunk of a window was computed behind another one."""
        known, where, link = self._known, self._places, lineage
        links: list[Lineage] = []
        while (seen := known.get(link.key)) is None and link.parent is not None:
            links.append(link)
            link = link.parent
        assert seen is not None  # the empty one is known
        places, tokens, lost, hole, ordered = seen
        for link in reversed(links):
            free = where.get(link.chunk, 0) & ~places
            if free:
                first = free & -free
                ordered = ordered and places < first
                places |= first
                tokens += self._lengths[first.bit_length() - 1]
            else:  # leaving from the front shifts everyone alike; from behind a survivor it tears a hole
                lost += 1
                hole = hole or places > 0
            known[link.key] = seen = places, tokens, lost, hole, ordered
        return seen

    @cached_property
    def _live_places(self) -> int:
        """Places of what is live already."""
        return _places([live is not None for live in self.live])

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
            added = self._known[key][0] ^ self._known[front][0]
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
        found = enumerate(map(_places, np.array(self._lengths) >> bits[:, None] & 1))
        return [(bit, chunks) for bit, chunks in found if chunks]


def _places(there: npt.ArrayLike) -> int:
    """Bit p: whether there is something at place p. there: [places]"""
    return int.from_bytes(np.packbits(np.asarray(there), bitorder="little").tobytes(), "little")
