"""Pictures with a known content: coloured shapes, lines of text, and screenshots made of both.

Everything is drawn from a seeded random.Random, with the fonts that matplotlib ships, so that the same
seed gives the same pixels wherever the same versions are installed.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (205, 30, 35),
    "green": (30, 145, 55),
    "blue": (35, 70, 205),
    "yellow": (240, 210, 35),
    "orange": (245, 130, 20),
    "purple": (125, 40, 160),
    "pink": (245, 125, 180),
    "brown": (120, 72, 30),
}
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")
UNSEEN_FONT = "STIXGeneral"
GAP = 26  # px between an icon and its text; wider than any space inside a line
INK = (40, 40, 45)

Point = tuple[float, float]


def _star(corners: int, inner: float = 1.0) -> list[Point]:
    """Corners around the unit circle from the top on, every second one at radius `inner`."""
    turns = [2 * math.pi * index / corners for index in range(corners)]
    radii = [inner if index % 2 else 1.0 for index in range(corners)]
    return [(math.sin(t) * r, -math.cos(t) * r) for t, r in zip(turns, radii, strict=True)]


def _cross(t: float) -> list[Point]:
    """A plus with arms 2t wide."""
    quarter = [(-t, -1.0), (t, -1.0), (t, -t)]
    turned = [quarter]
    for _ in range(3):
        turned.append([(-y, x) for x, y in turned[-1]])
    return [point for points in turned for point in points]


def _heart() -> list[Point]:
    turns = [2 * math.pi * index / 40 for index in range(40)]
    return [
        (math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t)) / 17)
        for t in turns
    ]


SHAPES: dict[str, list[Point]] = {
    "circle": _star(60),
    "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
    "triangle": [(0, -0.9), (0.95, 0.8), (-0.95, 0.8)],
    "star": _star(10, 0.42),
    "heart": _heart(),
    "diamond": [(0, -1), (0.62, 0), (0, 1), (-0.62, 0)],
    "cross": _cross(0.33),
    "arrow": [(1, 0), (0.1, -0.8), (0.1, -0.3), (-1, -0.3), (-1, 0.3), (0.1, 0.3), (0.1, 0.8)],
}


@dataclass(frozen=True)
class Icon:
    """One of COLOURS and one of SHAPES; its words are what a projector should say."""

    colour: str
    shape: str

    @property
    def words(self) -> str:
        return f" {self.colour} {self.shape}"


@dataclass(frozen=True)
class Row:
    """A line of a screenshot: a text, an icon, or a text and then an icon."""

    text: str = ""
    icon: Icon | None = None


def icons() -> list[Icon]:
    """Every colour with every shape."""
    return [Icon(colour, shape) for colour in COLOURS for shape in SHAPES]


def draw_icon(icon: Icon, rng: random.Random, size: int) -> Image.Image:
    """RGBA [size, size]: the shape with its own scale, tilt, stretch and shade."""
    scale = 4  # drawn large and reduced: PIL does not smooth polygons
    shade = [rng.gauss(0, 9) for _ in range(3)]
    fill = tuple(max(0, min(255, round(c + s))) for c, s in zip(COLOURS[icon.colour], shade, strict=True))
    tilt, radius = rng.uniform(-0.2, 0.2), size * scale * rng.uniform(0.40, 0.48)
    stretch = rng.uniform(0.9, 1.1)
    points = []
    for x, y in SHAPES[icon.shape]:
        x, y = x * math.cos(tilt) - y * math.sin(tilt), x * math.sin(tilt) + y * math.cos(tilt)
        points.append((size * scale / 2 + x * radius * stretch, size * scale / 2 + y * radius / stretch))
    image = Image.new("RGBA", (size * scale, size * scale), (*fill, 0))
    ImageDraw.Draw(image).polygon(points, fill=(*fill, 255))
    return image.resize((size, size), Image.Resampling.LANCZOS)


def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of matplotlib's, `size` px high."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)


def screenshot(rows: Sequence[Row], rng: random.Random, face: str = FONTS[0], size: int = 26) -> Image.Image:
    """RGB: `rows` under each other on a light ground, icons right of their text.

    size: px of the font. Rows are a full font size apart, so that they can be told apart again.
    """
    written = font(face, size)
    side = round(size * 1.6)
    width = max(round(written.getlength(row.text)) + (side + GAP) * bool(row.icon) for row in rows) + 2 * size
    ground = tuple(rng.randint(235, 255) for _ in range(3))
    image = Image.new("RGB", (width, (side + size) * len(rows) + size), ground)
    pen = ImageDraw.Draw(image)
    for index, row in enumerate(rows):
        left, middle = size, size + (side + size) * index + side // 2
        pen.text((left, middle), row.text, INK, written, anchor="lm")
        if row.icon:
            left += (round(written.getlength(row.text)) + GAP) * bool(row.text)
            drawn = draw_icon(row.icon, rng, side)
            image.paste(drawn, (left, middle - side // 2), drawn)
    return image
