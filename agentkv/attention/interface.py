"""What transformers calls in every layer.

Our name is not among those that transformers makes masks for, so none is built; what its masks would say
comes from the arguments that a layer hands over here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from agentkv.attention.runs import Rule, Span, attend_runs
from agentkv.attention.watch import watching
from agentkv.errors import Busy, UnsupportedModel

NAME = "agentkv"

_RUNS: ContextVar[Sequence[tuple[int, int] | Span] | None] = ContextVar("agentkv_runs", default=None)


@contextmanager
def seeing(runs: Sequence[tuple[int, int] | Span]) -> Iterator[None]:
    """Let the forward inside the block attend as `attend_runs` says.

    Around the model and not among its keyword arguments, which some layers do not hand on to their attention
    (stablelm). It holds in this thread alone.
    """
    token = _RUNS.set(runs)
    try:
        yield
    finally:
        _RUNS.reset(token)


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The entry for transformers' attention interface; returns (``[1, T, Hq, Dv]``, None).

    query ``[1, Hq, T, D]``, key ``[1, H, N, D]``, value ``[1, H, N, Dv]``. s_aux: ``[Hq]``, learned sinks.
    Raises UnsupportedModel, and Busy for a forward that is not ours.
    """
    runs = _RUNS.get()
    if runs is None:
        raise Busy(
            got=f"a forward through {type(module).__name__} from elsewhere while agentkv runs the model",
            expected="one forward at a time",
            do="call the model yourself only while no window of it is at work",
        )
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            got=f"{type(module).__name__}, whose tokens all see each other in both directions",
            expected="causal attention",
            do="load a generative checkpoint, not an embedding model",
        )
    if attention_mask is not None or query.shape[0] != 1:
        raise UnsupportedModel(
            got="an attention mask or a batch above 1",
            expected="one window, no padding",
            do="run one window per forward",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rule = Rule(scale, sliding_window, softcap, s_aux)
    if watch := watching():
        watch.see(query, key, rule)
    return attend_runs(query, key, value, rule, runs).transpose(1, 2), None
