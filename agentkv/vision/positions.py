"""Position ids inside a chunk, and which of its tokens belong to which frame. Integers only.

A text token takes one position on every axis. An image of t x h x w merged patches takes a block: its
tokens stand at (t, h, w) of their patch, and what follows stands max(h, w) further on, however many
tokens the image has (Qwen2-VL's M-RoPE). With one axis every token takes one position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentkv.errors import InvalidInput


def stretches(marked: Tensor) -> list[tuple[int, int]]:
    """The ranges [a, b) of consecutive True in bool [T]."""
    edges = torch.diff(marked.int(), prepend=torch.zeros(1), append=torch.zeros(1))
    return list(zip((edges > 0).nonzero()[:, 0].tolist(), (edges < 0).nonzero()[:, 0].tolist(), strict=True))


def offsets_of(
    placeholders: Tensor, axes: int, grids: Tensor | None = None, merge: int = 1, interval: float = 1.0
) -> tuple[Tensor, int]:
    """Position ids int64 [axes, T] relative to the chunk's first, and how many positions it takes.

    placeholders: bool [T]; each stretch of them is one image. grids: int64 [G, 3], patches (t, h, w) of
    each image or video, before ``merge`` patches a side become one token. interval: positions from one
    frame of a grid to the next. Raises InvalidInput when the grids do not fit the placeholders.
    """
    count = len(placeholders)
    if axes == 1:
        return torch.arange(count)[None], count
    spans = stretches(placeholders)
    blocks = _per_stretch(grids, len(spans))
    parts, token, position = [], 0, 0
    for (a, b), (t, h, w) in zip(spans, blocks, strict=True):
        parts.append(_text(a - token, position, axes))
        position += a - token
        parts.append(position + _block(t, h // merge, w // merge, interval))
        if parts[-1].shape[1] != b - a:
            raise _mismatch(f"{b - a} placeholders for a grid of {t} x {h} x {w} patches")
        position += max(h, w) // merge
        token = b
    parts.append(_text(count - token, position, axes))
    return torch.cat(parts, dim=1), position + count - token


def _per_stretch(grids: Tensor | None, count: int) -> list[list[int]]:
    rows = [] if grids is None else grids.tolist()
    if len(rows) != count:  # a model that writes times between frames gives one grid for all of them
        rows = [[1, h, w] for t, h, w in rows for _ in range(t)]
    if len(rows) != count:
        raise _mismatch(f"{count} stretches of placeholders for {len(rows)} grids")
    return rows


def _mismatch(got: str) -> InvalidInput:
    return InvalidInput(
        got=got, expected="one grid an image, of as many tokens", do="use the processor of this very model"
    )


def _text(count: int, position: int, axes: int) -> Tensor:
    return (position + torch.arange(count)).expand(axes, count)


def _block(t: int, h: int, w: int, interval: float) -> Tensor:
    # transformers multiplies in fp32 and cuts off, and so must this, for the same ids.
    times = (torch.arange(t) * interval).long()
    axes = torch.meshgrid(times, torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack(axes).reshape(3, -1)  # [3, t * h * w]


def frame_ranges(placeholders: Tensor, frames: int, time_behind: bool) -> list[tuple[int, int]]:
    """Cut a video's tokens into ``frames`` ranges [a, b), each with its own markers and time.

    placeholders: bool [T]; every frame has as many, what is left over belongs to the last. time_behind:
    the time stands behind the frame, so the next frame starts at its begin marker; otherwise it starts
    behind the one end marker of the frame before. Tokens in front of the first range introduce the video:
    the first frame has no longer a lead than the second.
    """
    places = placeholders.nonzero()[:, 0].tolist()
    each = len(places) // frames
    cuts = [0]
    for frame in range(1, frames):
        behind, ahead = places[frame * each - 1] + 1, places[frame * each]
        cuts.append(max(behind, ahead - 1) if time_behind else min(behind + 1, ahead))
    if frames > 1:
        cuts[0] = max(0, places[0] - (places[each] - cuts[1]))
    return list(zip(cuts, [*cuts[1:], len(placeholders)], strict=True))
