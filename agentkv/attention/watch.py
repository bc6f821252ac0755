"""How much the last tokens of a forward attend every row in front of them (RelaxKV, step 1 of query-guided
repair)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from agentkv.attention.runs import Rule


class Watch:
    """Attention to rows, averaged over heads and queries and scaled to [0, 1] in every layer, then averaged
    over the layers: one layer's sharp peaks do not drown the others.

    queries: how many of the last tokens are watched.
    """

    def __init__(self, queries: int) -> None:
        self.queries = queries
        self._sum: Tensor | None = None
        self._layers = 0

    def see(self, q: Tensor, k: Tensor, rule: Rule) -> None:
        """One layer: q ``[1, Hq, T, D]`` are the last T of the keys k ``[1, H, N, D]``."""
        q = q[:, :, -self.queries :]
        heads, count, rows = k.shape[1], q.shape[2], k.shape[2]
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q.reshape(heads, -1, count, q.shape[-1]).to(wide) @ k[0, :, None].to(wide).mT * rule.scale
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        ahead = torch.arange(rows - count, rows, device=q.device)[:, None] - torch.arange(
            rows, device=q.device
        )
        hidden = ahead < 0 if rule.window is None else (ahead < 0) | (ahead >= rule.window)
        mean = scores.masked_fill(hidden, -math.inf).softmax(-1).mean((0, 1, 2))  # [N]
        mean = mean - mean.min()
        scaled = mean / mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
        self._sum = scaled if self._sum is None else self._sum + scaled
        self._layers += 1

    @property
    def attention(self) -> Tensor:
        """``[N]``, fp32 or fp64, on the CPU; empty before a forward."""
        return torch.empty(0) if self._sum is None else (self._sum / self._layers).cpu()


_WATCH: ContextVar[Watch | None] = ContextVar("agentkv_watch", default=None)


def watching() -> Watch | None:
    """Who watches the forward of this thread."""
    return _WATCH.get()


@contextmanager
def watched(queries: int) -> Iterator[Watch]:
    """Watch the last ``queries`` tokens of the forward inside the block."""
    watch = Watch(queries)
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)
