"""A long made-up recording with events at known times, and questions about its past.

Each frame has a caption, a clock, a counter and the coloured shapes that are on the stage. Shapes come and
go, captions change, the counter jumps, so what a question asks is in some frames and in no later one.

    clip = Clip(seed=1, seconds=300)
    for second in range(clip.seconds):
        image = clip.frame(second)
    for question in clip.questions(): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

from bench.models import drawing
from bench.models.drawing import Icon

FACE = "DejaVuSerif"
WIDTH, LINE, FONT, ICON, GAP = 480, 40, 22, 34, 34  # px
PLACES = ("kitchen", "garden", "harbour", "library", "market", "station", "museum", "workshop")
STAGE = 3
"""Shapes on the stage at once, at most."""


@dataclass(frozen=True)
class Event:
    """A stretch of seconds [start, stop) in which something is to be seen."""

    start: int
    stop: int

    def at(self, second: int) -> bool:
        """Whether it is to be seen then."""
        return self.start <= second < self.stop


@dataclass(frozen=True)
class Scene(Event):
    """place: what the caption says."""

    place: str


@dataclass(frozen=True)
class Visit(Event):
    """icon: what is on the stage; no two visits have a colour and a shape in common."""

    icon: Icon


@dataclass(frozen=True)
class Count(Event):
    """number: what the counter shows."""

    number: int


@dataclass(frozen=True)
class Question:
    """text: what is asked. answer: one of the options. shown: the seconds whose frames answer it; one is
    enough."""

    text: str
    answer: str
    options: tuple[str, ...]
    shown: range


class Clip:
    """seed: of what happens. seconds: how long it is, 60 at least, one frame a second."""

    def __init__(self, seed: int = 0, seconds: int = 300) -> None:
        if seconds < 60:
            raise ValueError(f"got {seconds} seconds; expected 60 or more")
        rng = random.Random(f"clip {seed}")
        self.seconds = seconds
        count = min(len(PLACES), seconds // 30)
        places = zip(_stretches(rng, seconds, count), rng.sample(PLACES, count), strict=True)
        self.scenes = [Scene(*stretch, place) for stretch, place in places]
        numbers = rng.sample(range(100, 999), count + 1)
        self.counts = [
            Count(*stretch, number)
            for stretch, number in zip(_stretches(rng, seconds, count + 1), numbers, strict=True)
        ]
        self.visits = [
            Visit(*stretch, icon) for stretch, icon in zip(_visits(rng, seconds), _icons(rng), strict=False)
        ]

    def frame(self, second: int) -> Image.Image:
        """RGB [160 x 480], the same for the same second. Raises IndexError outside the clip."""
        if not 0 <= second < self.seconds:
            raise IndexError(f"got second {second}; expected 0 to {self.seconds - 1}")
        image = Image.new("RGB", (WIDTH, 4 * LINE), (248, 249, 251))
        ink, font = ImageDraw.Draw(image), drawing.font(FACE, FONT)
        for number, text in enumerate(self.text(second)):
            ink.text((GAP, number * LINE + LINE // 2), text, drawing.INK, font, anchor="lm")
        for place, icon in enumerate(self.stage(second)):
            left = GAP + place * (ICON + 2 * GAP) + second % 4  # it sways
            drawn = drawing.draw_icon(icon, random.Random(icon.words), ICON)
            image.paste(drawn, (left, 3 * LINE), drawn)
        return image

    def text(self, second: int) -> tuple[str, str, str]:
        """What is written then: the caption, the clock and the counter."""
        place = next(scene.place for scene in self.scenes if scene.at(second))
        number = next(count.number for count in self.counts if count.at(second))
        return f"In the {place}", f"Time {second}", f"Counter {number}"

    def stage(self, second: int) -> list[Icon]:
        """The shapes on the stage then, in the order in which they came."""
        return [visit.icon for visit in self.visits if visit.at(second)]

    def questions(self) -> list[Question]:
        """About every visit, in the order in which they came: its colour, its place and the counter. Each has
        one right answer, and is about something that is over before the clip is."""
        return [question for visit in self.visits for question in self._about(visit)]

    def _about(self, visit: Visit) -> Iterator[Question]:
        shape, colour = visit.icon.shape, visit.icon.colour
        name, shown = f"{colour} {shape}", range(visit.start, visit.stop)
        if sum(other.icon.shape == shape for other in self.visits) == 1:
            yield Question(f"What colour was the {shape}?", colour, tuple(drawing.COLOURS), shown)
        for events, ask in (
            (self.scenes, "Where was the {}?"),
            (self.counts, "What was the counter when there was a {}?"),
        ):
            seen = {e: range(max(e.start, visit.start), min(e.stop, visit.stop)) for e in events}
            during = [event for event in events if seen[event]]
            if len(during) == 1:
                options = tuple(_said(event) for event in events)
                yield Question(ask.format(name), _said(during[0]), options, seen[during[0]])


def _said(event: Scene | Count) -> str:
    return event.place if isinstance(event, Scene) else str(event.number)


def _stretches(rng: random.Random, seconds: int, count: int) -> Iterator[tuple[int, int]]:
    """[0, seconds) in so many stretches of at least half the average each."""
    spare = seconds - count * (seconds // count // 2)
    cuts = sorted(rng.randrange(spare + 1) for _ in range(count - 1))
    ends = [cut + (number + 1) * (seconds // count // 2) for number, cut in enumerate(cuts)] + [seconds]
    yield from zip([0, *ends], ends, strict=False)


def _visits(rng: random.Random, seconds: int) -> Iterator[tuple[int, int]]:
    """Stretches, at most three at once, that end before the clip does: of 6 to 14 seconds, or more in a clip
    in which there would be more than there are kinds of icon."""
    starts, stops, pace = 2, list[int](), max(1, seconds // 300)
    while True:
        stop = starts + pace * rng.randint(6, 14)
        if stop > seconds - 10:
            return
        stops.append(stop)
        yield starts, stop
        busy = sorted(end for end in stops if end > starts)
        starts += pace * rng.randint(3, 9)
        if len(busy) >= STAGE:
            starts = max(starts, busy[-STAGE])


def _icons(rng: random.Random) -> list[Icon]:
    """Every kind of icon once, and no shape again before all of them were there."""
    shapes, colours = list(drawing.SHAPES), list(drawing.COLOURS)
    rng.shuffle(shapes)
    rng.shuffle(colours)
    turns = [(turn, place) for turn in range(len(colours)) for place in range(len(shapes))]
    return [Icon(colours[(place + turn) % len(colours)], shapes[place]) for turn, place in turns]
