"""Entries in fewer bytes, at an error that docs/stores.md has a table of.

"bfloat16" rounds. "int8" and "fp8" keep one fp32 scale for each row: a row is one token's head (KV) or one
token's coefficients (patches), so that a large head or token costs its neighbours nothing. Patches keep their
directions as they are: coefficients are most of the bytes and bear rounding better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentkv.store.blob import Packed

Codec = Literal["none", "bfloat16", "int8", "fp8"]
_FP8_MAX = 448.0


@dataclass(frozen=True)
class Codecs:
    """kv: of canonical and conditioned KV. patch: of the coefficients of patches."""

    kv: Codec = "none"
    patch: Codec = "none"


RAW = Codecs()


def encode(
    entry: str, tensors: dict[str, Tensor], codecs: Codecs
) -> tuple[dict[str, Tensor], dict[str, Packed]]:
    """The tensors with those that a codec is for made smaller, and how to undo it."""
    codec, stem = {"kv": (codecs.kv, "slot"), "patch": (codecs.patch, "left")}.get(entry, ("none", ""))
    out: dict[str, Tensor] = {}
    packed: dict[str, Packed] = {}
    for name, x in tensors.items():
        narrow = codec == "bfloat16" and x.element_size() <= 2
        if codec == "none" or not name.startswith(stem) or narrow:
            out[name] = x
            continue
        packed[name] = Packed(codec=codec, dtype=str(x.dtype).removeprefix("torch."))
        if codec == "bfloat16":
            out[name] = x.to(torch.bfloat16)
        else:
            out[name], out[f"{name}.scale"] = _quantised(x, codec)
    return out, packed


def decode(tensors: dict[str, Tensor], packed: dict[str, Packed]) -> dict[str, Tensor]:
    """Inverse of `encode`, up to rounding. Raises KeyError or TypeError for a codec or dtype unknown here."""
    out = dict(tensors)
    for name, how in packed.items():
        dtype = _FLOATS[how.dtype]
        x = out[name]
        if how.codec == "bfloat16":
            out[name] = x.to(dtype)
        elif how.codec in ("int8", "fp8"):
            out[name] = (x.float() * out.pop(f"{name}.scale")).to(dtype)
        else:
            raise KeyError(how.codec)
    return out


_FLOATS = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


def _quantised(x: Tensor, codec: Codec) -> tuple[Tensor, Tensor]:
    """x [..., D] as one byte each, and fp32 scales [..., 1]."""
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(most > 0, most, torch.ones_like(most)) / (127.0 if codec == "int8" else _FP8_MAX)
    scaled = wide / scale
    small = scaled.round().to(torch.int8) if codec == "int8" else scaled.to(torch.float8_e4m3fn)
    return small, scale
