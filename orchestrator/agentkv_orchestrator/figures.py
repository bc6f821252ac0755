"""What ops on the chunks of one plan take, and what errors of these weigh: worked out for all at once."""

from collections.abc import Sequence

import numpy as np

from .cost import CostTable, Timed
from .diff import Wanted


class Figures:
    """By place in the wanted window."""

    def __init__(
        self, costs: CostTable, wanted: Sequence[Wanted], fronts: Sequence[int], window: int
    ) -> None:
        """fronts: tokens in front of each chunk. window: of the whole window, without what is asked at its
        end."""
        self._costs = costs
        self._tokens = np.array([w.chunk.length for w in wanted], dtype=np.float64)
        self._fronts = np.array(fronts, dtype=np.float64)
        self._ms: dict[Timed, list[float]] = {}
        self.weights = costs.kl.weights([w.chunk.kind for w in wanted], self._tokens, self._fronts, window)
        """Share of the window's KL that an error of the chunk makes."""

    def ms(self, op: Timed) -> list[float]:
        """Milliseconds of this op on each chunk. All prefills run as one forward: its start, charged once
        where the choice is made, is not in them. Raises PlanError when the cost table lacks the op."""
        if op not in self._ms:
            time, rank = self._costs.of(op), np.minimum(self._costs.rank, self._tokens)
            prefill = op == "prefill"  # nothing else attends the window
            ms = time.more(self._tokens, self._fronts) if prefill else time.of(self._tokens, rank=rank)
            self._ms[op] = np.round(ms, 4).tolist()
        return self._ms[op]
