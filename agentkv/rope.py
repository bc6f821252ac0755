"""R(δ): what it takes to move rotary keys from one position to another.

R(δ) R(p) = R(p + δ) holds as long as the frequency table is fixed, so a cached key is moved by
rotating it once more. A key in the cache already carries the `attention_scaling` of YaRN, so the
tables here hold plain cosines and sines of the *unscaled* inverse frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from agentkv_kernels.types import Rope
from torch import Tensor

from agentkv.errors import InvalidInput

Style = Literal["half", "interleaved"]


@dataclass(frozen=True, eq=False)
class RopeSpec:
    """One frequency table and the band of a head it turns.

    inv_freq: fp64 [R/2] on the CPU, radians per position, without attention scaling.
    style: "half" pairs dims (i, i + R/2) of the band, "interleaved" pairs (2i, 2i + 1).
    width: R, dims of a head that rotate. start: first of them inside the head dim D.
    """

    inv_freq: Tensor
    style: Style
    width: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.inv_freq.shape != (self.width // 2,) or self.inv_freq.dtype != torch.float64:
            raise InvalidInput(
                got=f"inv_freq {self.inv_freq.dtype} {list(self.inv_freq.shape)}, band of {self.width} dims",
                expected=f"torch.float64 [{self.width // 2}]",
                do="convert the model's frequencies with .double() and pass width = 2 * len(inv_freq)",
            )


@dataclass(frozen=True, eq=False)
class LayerRopes:
    """The rope band of one cache slot, layer by layer.

    specs: the distinct tables, all of one style, width and start (gemma3 has two).
    of_layer: for each of the L layers an index into `specs`, or -1 for a layer without positions.
    """

    specs: tuple[RopeSpec, ...]
    of_layer: tuple[int, ...]

    def __post_init__(self) -> None:
        bands = {(spec.style, spec.width, spec.start) for spec in self.specs}
        if len(bands) != 1 or not all(-1 <= index < len(self.specs) for index in self.of_layer):
            raise InvalidInput(
                got=f"bands {sorted(bands)} and layer indices {sorted(set(self.of_layer))}",
                expected=f"one band shared by all tables, indices from -1 to {len(self.specs) - 1}",
                do="give slots with different bands a LayerRopes each",
            )

    @property
    def style(self) -> Style:
        return self.specs[0].style

    @property
    def width(self) -> int:
        return self.specs[0].width

    @property
    def start(self) -> int:
        return self.specs[0].start


def tables(
    specs: tuple[RopeSpec, ...], delta: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosines and sines that move T tokens by `delta` positions each.

    delta: int64 [T], in position ids (an image spans fewer positions than it has tokens).
    Returns (cos, sin), each `dtype` [S, T, R/2] on delta's device. The angle is taken in fp64 and the
    result rounded once: in fp32 an angle of 20000 radians is off by up to 1e-3.
    Raises InvalidInput for a delta that is not a vector of integers.
    """
    if delta.dim() != 1 or delta.is_floating_point() or delta.dtype == torch.bool:
        raise InvalidInput(
            got=f"delta {delta.dtype} {list(delta.shape)}",
            expected="torch.int64 [T]",
            do="pass one whole number of positions per token",
        )
    inv_freq = torch.stack([spec.inv_freq for spec in specs]).to(delta.device)  # [S, R/2]
    angles = delta.double()[None, :, None] * inv_freq[:, None, :]  # [S, T, R/2]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def build(ropes: LayerRopes, delta: Tensor, dtype: torch.dtype = torch.float32) -> Rope:
    """The kernels' Rope that moves T tokens of a slot by `delta` (int64 [T]), on delta's device.

    dtype: fp32 for every cache dtype up to fp32, fp64 for an fp64 cache.
    """
    cos, sin = tables(ropes.specs, delta, dtype)
    spec_of_layer = torch.tensor(ropes.of_layer, dtype=torch.int32, device=delta.device)
    return Rope(cos, sin, spec_of_layer, ropes.style, ropes.start)
