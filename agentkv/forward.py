"""One forward of the model over a live window: the only place that calls the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentkv.attention import NAME, Span, attention_function, seeing
from agentkv.cache import LiveCache, Overlay, Run
from agentkv.errors import NonFinite, OutOfMemory
from agentkv.linear import routable_linears, routed
from agentkv.models.layouts import body_of
from agentkv.models.media_inputs import inputs_for


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Give ``model`` our attention inside the block and its own back afterwards, also after an error.

    The interface registers names process-wide; ours is registered once and selected only here.
    """
    if NAME not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(NAME, attention_function)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
"""One per model, not per engine: what is switched during a forward belongs to the model."""
_LOCKS_LOCK = threading.Lock()


def _lock_of(model: Any) -> threading.RLock:
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(model, threading.RLock())


class Runner:
    """Forwards of one model, one at a time (``lock``): several windows and threads share it."""

    def __init__(self, model: Any, axes: int = 1) -> None:
        self.model, self.axes = model, axes
        self.lock = _lock_of(model)
        self._linears = routable_linears(model)
        self.forwards = 0
        self.tokens = 0

    def run(self, runs: Sequence[Run], cache: LiveCache | Overlay, keep: int) -> Tensor:
        """Run tokens over ``cache`` in one forward; each run sees the rows in front of it (`attend_runs`).

        keep: of how many last tokens logits are wanted; returns fp32 or fp64 logits ``[keep, vocab]``
        (empty when keep is 0: then the head is not run). Raises NonFinite when the model returns NaN or
        inf, OutOfMemory when memory ran out; what the runs' rows hold is then void.
        """
        device = self.model.get_input_embeddings().weight.device
        ids = torch.tensor(np.concatenate([np.asarray(run.ids) for run in runs]), device=device)
        positions = torch.cat([run.positions(self.axes) for run in runs], dim=1).to(device)  # [axes, ΣT]
        inputs: dict[str, Any] = {
            **inputs_for(self.model, ids, runs),
            "position_ids": positions if self.axes == 1 else positions[:, None],
            "cache": cache,
            "use_cache": True,
        }
        with self.lock, torch.inference_mode(), own_attention(self.model), routed(self._linears):
            spans = [Span(*stretch) for stretch in cache.expect(runs)]
            try:
                with seeing(spans):
                    if keep:
                        out = self.model(**inputs, logits_to_keep=keep).logits[0]
                    else:
                        out = body_of(self.model)(**inputs).last_hidden_state[0, -1:]
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                raise OutOfMemory(
                    got=f"no memory for a forward of {len(ids)} tokens ({str(error)[:80]})",
                    expected="enough memory for one forward",
                    do="evict chunks or append in smaller pieces; the edit was rolled back",
                ) from error
            self.forwards += 1
            self.tokens += len(ids)
            if not torch.isfinite(out).all():
                raise NonFinite(
                    got=f"NaN or inf from the model over {len(ids)} tokens at row {runs[0].row}",
                    expected="finite activations",
                    do="load the model in float32 and check its weights; the edit was rolled back",
                )
        return (out if out.dtype == torch.float64 else out.float()) if keep else out.new_empty(0, 0)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out. torch's CPU allocator raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
