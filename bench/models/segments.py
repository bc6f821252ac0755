"""Cut a clean screenshot into rows, and rows into icons and pieces of text, by its empty stripes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from agentkv.errors import InvalidInput

CONTRAST = 40  # of 255, in any channel: less than this from the ground is ground
COLOURFUL = 45  # of 255 between the largest and the smallest channel of a coloured pixel
ROW_GAP, COLUMN_GAP = 6, 20  # px of ground that part rows, and parts of a row
MARGIN = 4  # px of ground around what is cut out


@dataclass(frozen=True, eq=False)
class Segment:
    """What one recogniser reads. coloured: most of its ink has a colour, so it is an icon."""

    image: Image.Image
    coloured: bool


def rows(image: Image.Image) -> list[list[Segment]]:
    """The segments of each row, in reading order. Raises InvalidInput for a picture of one colour."""
    pixels = np.asarray(image.convert("RGB"), dtype=np.int16)  # [H, W, 3]
    ground = np.median(pixels.reshape(-1, 3), axis=0)
    ink = np.abs(pixels - ground).max(2) > CONTRAST  # [H, W]
    if not ink.any():
        raise InvalidInput(
            got=f"an image {image.size} of one colour",
            expected="dark text or coloured icons on a plain ground",
            do="leave it out",
        )
    return [
        [_segment(pixels, ink, top, bottom, *span) for span in _runs(ink[top:bottom].any(0), COLUMN_GAP)]
        for top, bottom in _runs(ink.any(1), ROW_GAP)
    ]


def _runs(used: NDArray[np.bool_], gap: int) -> Iterator[tuple[int, int]]:
    """[first, last) of each stretch of True, joined across fewer than `gap` False."""
    where = np.flatnonzero(used)
    breaks = np.flatnonzero(np.diff(where) > gap)
    for first, last in zip([0, *(breaks + 1)], [*breaks, len(where) - 1], strict=True):
        yield int(where[first]), int(where[last]) + 1


def _segment(
    pixels: NDArray[np.int16], ink: NDArray[np.bool_], top: int, bottom: int, left: int, right: int
) -> Segment:
    inside = pixels[top:bottom, left:right][ink[top:bottom, left:right]]  # [n, 3]
    coloured = np.ptp(inside, axis=1) > COLOURFUL
    part = pixels[max(top - MARGIN, 0) : bottom + MARGIN, max(left - MARGIN, 0) : right + MARGIN]
    return Segment(Image.fromarray(part.astype(np.uint8)), bool(coloured.mean() > 0.5))
