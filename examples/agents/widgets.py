"""A screen of a small desktop app: what is on it, and how it is drawn.

Everything stands on one grid of lines and columns, text is dark, icons have colours, and boxes are lighter
than what a reader takes for ink. So it looks like an app, and the small encoder of `bench.models.vlm`
can cut it apart again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

from bench.models import drawing
from bench.models.drawing import Icon

FACE = "DejaVuSerif"
"""The font that the encoder reads best: in the others I and l are alike."""
WIDTH, LINE, FONT, ICON = 640, 36, 20, 26
"""px: of the window, of a line, of the font, of the side of an icon."""
COLUMNS = (72, 240, 400, 540)
"""px from the left at which texts begin; the icon of a line stands in front of the first."""
GROUND, BAR, BUTTON, FIELD = (250, 250, 252), (228, 233, 243), (219, 227, 240), (238, 240, 244)
GAP = 34
"""px between two texts of a line, at least."""

Kind = Literal["text", "button", "entry", "field"]


@dataclass(frozen=True)
class Widget:
    """One text of a line. Buttons and entries of lists may be clicked, fields typed into."""

    label: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Line:
    """An icon, or none, and the widgets behind it."""

    widgets: tuple[Widget, ...]
    icon: Icon | None = None


@dataclass(frozen=True)
class Screen:
    """title: in the bar, with a button for each way out of the screen."""

    title: str
    lines: tuple[Line, ...]
    bar: tuple[str, ...] = ()

    @property
    def clickable(self) -> tuple[str, ...]:
        """Labels that a click may name, from the top; no two are the same."""
        inside = (w.label for line in self.lines for w in line.widgets if w.kind in ("button", "entry"))
        return (*self.bar, *inside)

    @property
    def field(self) -> bool:
        """Whether there is something to type into."""
        return any(w.kind == "field" for line in self.lines for w in line.widgets)

    @property
    def text(self) -> str:
        """Everything that is written on it, line by line: the truth for whoever reads the screenshot."""
        lines = [" ".join((self.title, *self.bar))]
        for line in self.lines:
            shown = [w.label for w in line.widgets if w.label]
            lines.append((line.icon.words.strip() + " " if line.icon else "") + " ".join(shown))
        return "\n".join(line for line in lines if line)


def draw(screen: Screen, lines: int) -> Image.Image:
    """RGB, as high as a bar and ``lines`` lines. Equal screens give equal pixels."""
    image = Image.new("RGB", (WIDTH, LINE * (lines + 1) + LINE // 2), GROUND)
    ink = ImageDraw.Draw(image)
    ink.rectangle((0, 0, WIDTH, LINE), fill=BAR)
    bar = (Widget(screen.title), *(Widget(label, "button") for label in screen.bar))
    _line(image, ink, Line(bar), 0)
    for number, line in enumerate(screen.lines, 1):
        _line(image, ink, line, number)
    return image


def _line(image: Image.Image, ink: ImageDraw.ImageDraw, line: Line, number: int) -> None:
    top = number * LINE + (LINE // 4 if number else 0)
    if line.icon is not None:
        drawn = drawing.draw_icon(line.icon, random.Random(line.icon.words), ICON)
        image.paste(drawn, (COLUMNS[0] - GAP - ICON, top + (LINE - ICON) // 2), drawn)
    font = drawing.font(FACE, FONT)
    left = 0
    for widget, column in zip(line.widgets, COLUMNS, strict=False):
        left = max(left, column if number or column > COLUMNS[0] else GAP)
        right = left + max(round(font.getlength(widget.label)), LINE if widget.kind == "field" else 0)
        box = (left - 10, top + 3, (WIDTH - GAP if widget.kind == "field" else right) + 10, top + LINE - 3)
        if widget.kind in ("button", "field"):
            ink.rounded_rectangle(box, 6, fill=BUTTON if widget.kind == "button" else FIELD)
        ink.text((left, top + LINE // 2), widget.label, drawing.INK, font, anchor="lm")
        left = right + GAP
