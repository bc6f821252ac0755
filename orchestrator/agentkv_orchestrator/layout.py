"""Where the wanted window stands: which chunks move, and by how much.

RoPE sees differences of positions only, so a window computes the same wherever it starts. Every token has a
row, and a position id, which is the row's number until an image (more tokens than positions) makes the two
part. When X leaves [S|X|B C D] the gap can be closed from either side: B C D rotate left by |X|, or S
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
    """The frame to come, and where each wanted chunk stands in it: first row, and position id of the first
    token."""

    frame: Frame
    rows: list[int]
    positions: list[int]


_ORIGIN = 0, 0
"""Row and position where a window starts."""


def lay_out(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
    frame_moves: bool = True,
) -> Layout:
    """Choose the start that moves the fewest surviving tokens.

    Tried are, for each survivor, the start that leaves it where it stands, and row 0. The window and
    `headroom` rows behind it must fit, and neither rows nor positions go beyond max_rows. Where the best
    start runs past the end of the buffer, the window goes back to row 0 at once: the next best would leave it
    at the end, to move about as much again at every step to come. The buffer grows (a copy of everything)
    only where row 0 does not do either. With frame_moves=False the start stays as long as max_rows allow it,
    so that nothing in front of an edit moves.
    Raises CapacityError when max_rows are not enough.
    """
    rows = list(accumulate([w.chunk.length for w in wanted], initial=0))
    positions = list(accumulate([w.chunk.span for w in wanted], initial=0))
    need = rows[-1] + headroom, positions[-1] + headroom
    stay: Counter[tuple[int, int]] = Counter()  # by start: tokens that would stand where they stand
    live = graph.get_all(w.uid for w in wanted)
    for w, p, row, position in zip(wanted, live, rows, positions, strict=False):
        if p is not None:
            stay[p.row - row, p.position - position] += w.chunk.length

    now = frame.start, frame.position
    free = frame_moves or max(now[0] + need[0], now[1] + need[1]) > max_rows
    starts = {_ORIGIN, *(start for start in stay if min(start) >= 0)} if free else {now}
    capacity = _grown(frame.capacity, min(starts)[0] + need[0], max(need), max_rows)
    most = max([stay[start] for start in starts])
    best = [start for start in starts if stay[start] == most]
    fit = [at for at in best if at[0] + need[0] <= capacity and at[1] + need[1] <= max_rows]
    row, position = min(fit, key=lambda start: (abs(start[0] - now[0]), start), default=_ORIGIN)
    return Layout(
        Frame(start=row, capacity=capacity, position=position),
        [row + first for first in rows[:-1]],
        [position + first for first in positions[:-1]],
    )


def _grown(capacity: int, need: int, longest: int, max_rows: int) -> int:
    """Capacity that holds `need` rows: as it is, or grown in steps that keep the copies rare.

    longest: what the window takes from row and position 0 on, in rows or in positions.
    """
    if max(need, longest) > max_rows:
        what = f"{need} rows" if need >= longest else f"{longest} positions"
        raise CapacityError(
            f"{what}, the free rows for the answer among them",
            f"at most {max_rows}",
            "evict chunks, ask for less headroom or raise max_rows",
        )
    if need <= capacity:
        return capacity
    stepped = max(need, int(capacity * _GROWTH))
    return min(max_rows, -(-stepped // _ROUND) * _ROUND)
