"""What the media tests share: a mixed prompt as transformers builds it, and as chunks."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from agentkv.media import Media
from agentkv.models.media_inputs import inputs_for
from agentkv.vision import VisionTower, prepare, tower_of
from tests.vlm_models import CONFIGS, picture, vlm
from tests.vlm_processors import processor

FAMILIES = tuple(CONFIGS)
GRIDDED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "glm4v_moe")
"""Those with a position for each of time, height and width."""

WIDE, TALL = picture(40, 24, seed=1), picture(16, 56, seed=2)


HIDDEN = 72


class Patches:
    """An adapter: one embedding a row of eight pixels, from a fixed projection."""

    placeholder_id = 96

    def __init__(self, hidden: int = HIDDEN) -> None:
        self.projection = torch.randn(
            3, hidden, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )

    def encode(self, image: Image.Image) -> Tensor:
        rows = torch.tensor(list(image.get_flattened_data()), dtype=torch.float64).reshape(
            -1, 8 * image.width, 3
        )
        return rows.mean(1) / 255 @ self.projection

    def digest(self) -> bytes:
        return b"patches"


class Piece(NamedTuple):
    """A chunk of a prompt: what `inputs_for` takes as a run, and where it stands."""

    ids: Tensor
    media: Media | None
    position: int

    @property
    def span(self) -> int:
        return self.media.span if self.media else len(self.ids)


class Rig(NamedTuple):
    model: Any
    processor: Any
    tower: VisionTower


def rig(family: str, dtype: torch.dtype = torch.float64) -> Rig:
    """A tiny model with its processor; the tower's counter goes on from test to test."""
    return _rig(family, dtype)


@cache
def _rig(family: str, dtype: torch.dtype) -> Rig:
    model, own = vlm(family, dtype), processor(family)
    return Rig(model, own, tower_of(model, own))


def tokens(own: Any, text: str) -> Tensor:
    return torch.tensor(own.tokenizer(text, add_special_tokens=False)["input_ids"])


def laid_out(rig: Rig, parts: list[Any], start: int = 0, **settings: Any) -> list[Piece]:
    """Texts, images and videos one behind the other; each chunk stands where the one in front ends."""
    found, position = [], start
    for part in parts:
        chunks = (
            [(tokens(rig.processor, part), None)]
            if isinstance(part, str)
            else prepare(part, rig.tower, **settings)
        )
        for ids, media in chunks:
            found.append(Piece(torch.as_tensor(ids), media, position))
            position += found[-1].span
    return found


def all_ids(pieces: list[Piece]) -> Tensor:
    return torch.cat([piece.ids for piece in pieces])


def position_ids(pieces: list[Piece], axes: int) -> Tensor:
    """int64 [axes, 1, T], or [1, T] for one axis."""
    offsets = [
        piece.position
        + (piece.media.offsets if piece.media else torch.arange(len(piece.ids)).expand(axes, -1))
        for piece in pieces
    ]
    joined = torch.cat(offsets, dim=1)
    return joined[:, None] if axes > 1 else joined


def axes_of(family: str) -> int:
    return 3 if family in GRIDDED else 1


def our_logits(rig: Rig, family: str, pieces: list[Piece], **more: Any) -> Tensor:
    """[T, vocab] of one transformers forward with our positions and stored features."""
    inputs = inputs_for(rig.model, all_ids(pieces), pieces)
    with torch.inference_mode():
        return rig.model(**inputs, position_ids=position_ids(pieces, axes_of(family)), **more).logits[0]


def block_ids(pieces: list[Piece]) -> dict[str, Tensor]:
    """gemma3's token_type_ids [1, T] as our both-ways ranges say it; nothing where there are none."""
    kinds, first = torch.zeros(len(all_ids(pieces)), dtype=torch.int64), 0
    for piece in pieces:
        for a, b in piece.media.both_ways if piece.media else ():
            kinds[first + a : first + b] = 1
        first += len(piece.ids)
    return {"token_type_ids": kinds[None]} if kinds.any() else {}
