"""What the gates of every family share: the cases, made from the family table, and two independent truths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from agentkv import Engine, Window
from agentkv.cache import Run, WindowKV
from agentkv.forward import Runner
from agentkv.layout import Layout, SlotSpec
from agentkv.models.families import FAMILIES
from agentkv.models.layouts import layout_of
from tests.family_configs import VARIANTS
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime import cases
from tests.tolerances import LOGITS

SHIFT = 701
"""Odd, and the positions of all tests stay below every threshold of the tiny models."""

_EXACT: list[Any] = []


@dataclass(frozen=True)
class Case:
    """A family, in one of its settings."""

    model_type: str
    variant: str = ""
    overrides: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def name(self) -> str:
        return self.variant or self.model_type


ROWS = [Case(name) for name, row in FAMILIES.items() if row.status == "exact" and row.loads != "inside"]
OTHERS = [Case(kind, name, overrides) for name, (kind, overrides) in VARIANTS.items()]
_WIDE, _NARROW = torch.float64, torch.float32


def _params(cases_: list[Case], dtype: torch.dtype, *marks: Any) -> list[Any]:
    return [pytest.param(case, dtype, id=f"{case.name}-{str(dtype)[6:]}", marks=marks) for case in cases_]


CASES = [
    *_params(ROWS, _WIDE),
    *_params(OTHERS, _WIDE),
    *_params(ROWS, _NARROW),
    *_params(OTHERS, _NARROW, pytest.mark.slow),
]
"""(case, dtype) for tests of a few forwards."""

EDITS = [
    *_params(ROWS, _WIDE),
    *_params(OTHERS, _WIDE, pytest.mark.slow),
    *_params([*ROWS, *OTHERS], _NARROW, pytest.mark.slow),
]
"""(case, dtype) for tests of many."""


@cache
def model_of(case: Case, dtype: torch.dtype) -> Any:
    """One eager model for all tests, with rotary angles in fp64: never changed."""
    tiny = tiny_model(case.model_type, dtype, attention="eager", **case.overrides)
    exact = full_precision(tiny)
    exact.__enter__()
    _EXACT.append(exact)  # a generator that is let go runs its finally
    return tiny


@contextmanager
def engine_of(case: Case, dtype: torch.dtype) -> Iterator[Engine]:
    """An engine whose patches are of full rank and trusted."""
    settings: dict[str, Any] = {"patch_dtype": "model", "patch_rank": cases.FULL}
    with Engine.from_model(
        model_of(case, dtype), tiny_tokenizer(), costs=cases.trusting(), **settings
    ) as engine:
        yield engine


def tokens(count: int, seed: int = 0) -> Tensor:
    return torch.tensor(cases.ids(count, seed))


def stock(model: Any, ids: Tensor, first: int = 0, cache: Any = None) -> tuple[Tensor, DynamicCache]:
    """transformers' own eager forward of ids [T] at positions first.. behind a cache: logits [T, vocab],
    cache."""
    axes = layout_of(model).axes
    positions = torch.arange(first, first + len(ids)).expand(axes, 1, -1)
    cache = DynamicCache() if cache is None else cache
    with torch.inference_mode():
        out = model(
            ids[None], position_ids=positions if axes > 1 else positions[0], cache=cache, use_cache=True
        )
    return out.logits[0], cache


def slots_of(cache: DynamicCache) -> tuple[Tensor, Tensor]:
    """What a transformers cache holds, as agentkv lays it out: keys and values, each [L, T, H, D]."""
    keys = torch.stack([layer.keys[0].transpose(0, 1) for layer in cache.layers])
    return keys, torch.stack([layer.values[0].transpose(0, 1) for layer in cache.layers])


def ours(model: Any, kv: WindowKV, *runs: Run, keep: int = 0) -> Tensor:
    return Runner(model, layout_of(model).axes).run(list(runs), kv.live(), keep)


def rows(model: Any, capacity: int) -> WindowKV:
    """Rows filled with NaN, so that reading one too many cannot pass."""
    dtype = next(model.parameters()).dtype
    kv = WindowKV(layout_of(model), capacity, dtype, torch.device("cpu"))
    for slot in kv.slots:
        slot.fill_(torch.nan)
    return kv


def turned(x: Tensor, slot: SlotSpec, delta: int) -> Tensor:
    """x [L, T, H, D] moved by `delta`, with complex numbers: independent of the kernels."""
    if slot.rope is None:
        return x
    moved, width = x.clone(), slot.rope.width
    for layer, index in enumerate(slot.rope.of_layer):
        if index < 0:
            continue
        spec = slot.rope.specs[index]
        band = x[layer, ..., spec.start : spec.start + width].double()
        turn = torch.polar(torch.ones(width // 2, dtype=torch.float64), delta * spec.inv_freq)
        if spec.style == "half":
            z = torch.complex(band[..., : width // 2], band[..., width // 2 :]) * turn
            result = torch.cat((z.real, z.imag), -1)
        else:
            result = torch.view_as_real(
                torch.view_as_complex(band.unflatten(-1, (-1, 2)).contiguous()) * turn
            )
            result = result.flatten(-2)
        moved[layer, ..., spec.start : spec.start + width] = result.to(x.dtype)
    return moved


def moved(cache: DynamicCache, layout: Layout, delta: int) -> DynamicCache:
    """A copy of a transformers cache with every rope band turned by `delta`."""
    shifted = DynamicCache()
    slots = [turned(x, slot, delta) for x, slot in zip(slots_of(cache), layout.slots, strict=True)]
    for layer in range(layout.layers):
        keys, values = (x[layer].transpose(0, 1)[None] for x in slots)
        shifted.update(keys, values, layer)
    return shifted


def assert_reprefilled(window: Window, count: int = 9) -> None:
    """KV is that of our own prefill, logits of a question those of transformers' eager forward from
    nothing."""
    cases.assert_kv(cases.live(window), cases.reprefilled(window))
    asked = tokens(count, seed=77)
    every = torch.cat([torch.tensor(window.ids()), asked])
    wanted = stock(window.engine.loaded.model, every)[0][-count:]
    error = (cases.question_logits(window, count) - wanted).abs().max()
    assert float(error) <= LOGITS[window.kv.dtype]
