"""Where the wanted window stands: which chunks move, and by how much.

RoPE sees differences of positions only, so a window computes the same wherever it starts. Rows are positions
here, so when X leaves [S|X|B C D] the gap can be closed from either side: B C D rotate left by |X|, or S
rotates right by |X| and the window starts |X| rows later. The smaller side moves. A window that slides for
long walks to the end of its buffer this way and is then moved back to the start, once per buffer, not once
per step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .diff import Wanted
from .errors import CapacityError
from .window import Frame, WindowGraph

_GROWTH = 1.5
_ROUND = 256


@dataclass(frozen=True)
class Layout:
    """The frame to come, and the first row of every wanted uid."""

    frame: Frame
    rows: dict[int, int]


def lay_out(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
    frame_moves: bool = True,
) -> Layout:
    """Choose the start row that moves the fewest surviving tokens.

    Tried are, for each survivor, the start that leaves it where it stands, and row 0. The window and
    `headroom` rows behind it must fit. Where the best start runs past the end of the buffer, the window goes
    back to row 0 at once: the next best would leave it at the end, to move about as much again at every step
    to come. The buffer grows (a copy of everything) only where row 0 does not do either. With
    frame_moves=False the start stays as long as max_rows allow it, so that nothing in front of an edit moves.
    Raises CapacityError when max_rows are not enough.
    """
    offsets = list(accumulate((w.chunk.length for w in wanted), initial=0))
    need = offsets[-1] + headroom
    stay: Counter[int] = Counter()  # by start: tokens that would stand where they stand
    for w, offset in zip(wanted, offsets, strict=False):
        live = graph.get(w.uid)
        if live is not None:
            stay[live.row - offset] += live.chunk.length

    free = frame_moves or frame.start + need > max_rows
    starts = {0, *(start for start in stay if start >= 0)} if free else {frame.start}
    capacity = _grown(frame.capacity, min(starts) + need, max_rows)
    most = max(stay[start] for start in starts)
    best = (start for start in starts if stay[start] == most and start + need <= capacity)
    start = min(best, key=lambda start: (abs(start - frame.start), start), default=0)
    rows = {w.uid: start + offset for w, offset in zip(wanted, offsets, strict=False)}
    return Layout(Frame(start=start, capacity=capacity), rows)


def _grown(capacity: int, need: int, max_rows: int) -> int:
    """Capacity that holds `need` rows: as it is, or grown in steps that keep the copies rare."""
    if need > max_rows:
        raise CapacityError(
            f"{need} rows, the free rows for the answer among them",
            f"at most {max_rows}",
            "evict chunks, ask for less headroom or raise max_rows",
        )
    if need <= capacity:
        return capacity
    stepped = max(need, int(capacity * _GROWTH))
    return min(max_rows, -(-stepped // _ROUND) * _ROUND)
