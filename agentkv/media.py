"""What a chunk is besides its token ids: pixels read by a vision tower, and where its tokens stand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from agentkv.inputs import Ids

Modality = Literal["image", "video", "audio"]


@dataclass(frozen=True, eq=False)
class Features:
    """What a vision encoder made of one chunk, for the tokens that stand for it, in their order.

    pooled: ``[n, hidden]`` of the language model. deep: per deepstack layer one more ``[n, hidden]``.
    listed: whether the model takes the pooled outputs of several chunks as a list or as one tensor.
    """

    pooled: Tensor
    deep: tuple[Tensor, ...] = ()
    listed: bool = False

    def to(self, device: torch.device | str) -> Features:
        """The same on ``device``."""
        return Features(self.pooled.to(device), tuple(x.to(device) for x in self.deep), self.listed)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.pooled, *self.deep))


@dataclass(frozen=True, eq=False)
class Media:
    """An image or a frame, as the model's own processor and vision tower see it.

    digest: of the pixels in full and of the processor's configuration; it enters the chunk's identity.
    offsets: int64 ``[A, T]``, position ids of the chunk's T tokens relative to its first, one row per axis of
    the model's positions (1, or 3 for t, h, w). span: position ids the whole chunk takes.
    placeholders: bool ``[T]``, the tokens that stand for features. features: a
    `Features`, held so that no recall runs the vision tower again.
    both_ways: token ranges ``[a, b)`` that attend to each other in both directions.
    """

    modality: Modality
    digest: bytes
    offsets: Tensor
    span: int
    placeholders: Tensor
    features: Any
    both_ways: tuple[tuple[int, int], ...] = ()

    def to(self, device: torch.device | str) -> Media:
        """The same with its features on ``device``."""
        return replace(self, features=self.features.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of its features, nearly all that it takes."""
        return int(self.features.nbytes)


class Tokens(NamedTuple):
    """What a chunk's id stands for: int64 ids ``[T]``, and the image behind them where there is one."""

    ids: Ids
    media: Media | None = None
