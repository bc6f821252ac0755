"""What ops on the chunks of one plan take, and what errors of these weigh: worked out for all at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .cost import CostTable, Timed
from .diff import Wanted

Floats = npt.NDArray[np.float64]


class Figures:
    """By place in the wanted window."""

    def __init__(
        self, costs: CostTable, wanted: Sequence[Wanted], fronts: Sequence[int], window: int
    ) -> None:
        """fronts: tokens in front of each chunk. window: of the whole window, without what is asked at its
        end."""
        tokens, before = np.array([w.chunk.length for w in wanted], dtype=np.float64), np.array(fronts, float)
        self.weights = costs.kl.weights([w.chunk.kind for w in wanted], tokens, before, window)
        """Share of the window's KL that an error of the chunk makes."""
        self.ms = _Milliseconds(costs, tokens, before)


class _Milliseconds(dict[Timed, list[float]]):
    """Of each op on each chunk, worked out when it is asked for first. All prefills run as one forward: its
    start, charged once where the choice is made, is not in them. Raises PlanError when the cost table lacks
    the op."""

    def __init__(self, costs: CostTable, tokens: Floats, fronts: Floats) -> None:
        self._costs, self._tokens, self._fronts = costs, tokens, fronts
        self._ranks = np.minimum(costs.rank, tokens)

    def __missing__(self, op: Timed) -> list[float]:
        time = self._costs.of(op)
        prefill = op == "prefill"  # nothing else attends the window
        ms = time.more(self._tokens, self._fronts) if prefill else time.of(self._tokens, rank=self._ranks)
        found = self[op] = np.round(ms, 4).tolist()
        return found
