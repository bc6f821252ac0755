"""How well a model reads the screens of the office and the frames of the clip, and how long it takes.

    python examples/agents/reading.py                     # the closed-form model
    python examples/agents/reading.py --model tiny
    python examples/agents/reading.py --model Qwen/Qwen2.5-VL-3B-Instruct

Of a closed-form model it prints what the encoder says. Of every model, how often its answer to a question
about one picture holds the right word; and the same with all that the picture shows written as text, which is
what the pictures can cost at most.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose bench.models the examples use

from agentkv import Engine
from agentkv.metrics import interval
from examples.agents import vision
from examples.agents.clip import Clip
from examples.agents.desktop import App, Click, Scroll
from examples.agents.office_tasks import tasks

SYSTEM = "You read screenshots of an app."


@dataclass(frozen=True)
class Shown:
    """A picture and all that it shows as text. labels: the words to be found in it."""

    image: Image.Image
    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """about: what kind of question it is. answer: the word that a right answer holds."""

    about: str
    shown: Shown
    question: str
    answer: str


def screens(seed: int) -> list[Shown]:
    """Every screen on the ways to the tasks of a seed, once."""
    found: dict[str, Shown] = {}
    for task in tasks(App(seed)):
        app = App(seed)
        for action in task.solution:
            _see(app, found)
            app.do(action)
        _see(app, found)
    return list(found.values())


def _see(app: App, found: dict[str, Shown]) -> None:
    screen = app.screen()
    found.setdefault(screen.text, Shown(app.screenshot(), screen.text, screen.clickable))


def frames(seed: int) -> list[Shown]:
    """Frames of a clip, ten seconds apart."""
    return [_frame(Clip(seed), second) for second in range(0, 300, 10)]


def _frame(clip: Clip, second: int) -> Shown:
    stage = " ".join(icon.words.strip() for icon in clip.stage(second))
    lines = (*clip.text(second), *([stage] if stage else []))
    return Shown(clip.frame(second), "\n".join(lines), tuple(lines))


def questions(seed: int) -> Iterator[Asked]:
    """Two about a list, two about a mail, two about a frame."""
    app = App(seed)
    app.do(Click("Invoices"))
    shown = Shown(app.screenshot(), app.screen().text, ())
    invoice = app.office.invoices[seed % 6]
    yield Asked("amount", shown, f"What is the amount of {invoice.supplier}?", invoice.amount.split()[0])
    yield Asked("number", shown, f"What is the number of the invoice of {invoice.supplier}?", invoice.number)
    app, mail = App(seed), [mail for mail in App(seed).office.mails if mail.asks == "note"][seed % 2]
    app.do(Click("Mail"))
    if mail.sender not in app.screen().clickable:
        app.do(Scroll())
    app.do(Click(mail.sender))
    shown = Shown(app.screenshot(), app.screen().text, ())
    yield Asked("code", shown, "What is the code?", mail.about)
    yield Asked("sender", shown, "Who is the mail from?", mail.sender)
    clip = Clip(seed, 120)
    for asked in clip.questions()[2 * seed : 2 * seed + 2]:
        about = asked.text.split()[0] + " (clip)"
        yield Asked(about, _frame(clip, asked.shown[len(asked.shown) // 2]), asked.text, asked.answer)


def answers(eyes: Engine, what: Any, asked: Asked) -> bool:
    """Whether the answer holds the right word. what: the picture, or its text."""
    with eyes.window() as window:
        window.append(SYSTEM, kind="system", pin=True)
        window.append(what)
        return asked.answer.lower() in window.generate(asked.question, max_new_tokens=24).lower()


def _flat(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def print_spelled(eyes: Engine, name: str, shown: list[Shown]) -> None:
    """What the encoder says of pictures."""
    start, tokens = time.process_time(), 0
    for one in shown:
        tokens += len(eyes.tower.adapter.encode(one.image))  # type: ignore[attr-defined]
    each = (time.process_time() - start) / len(shown)
    said = [_flat(vision.spelled(eyes, one.image)) for one in shown]
    whole = sum(a == _flat(one.text) for a, one in zip(said, shown, strict=True))
    labels = [label in a for a, one in zip(said, shown, strict=True) for label in one.labels]
    print(
        f"{name}: {len(shown)} pictures, {each * 1e3:.0f} CPU ms and {tokens / len(shown):.1f} tokens each; "
        f"read without an error {whole}; labels {sum(labels)} of {len(labels)}"
    )


def main() -> None:
    """All of it, a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    with vision.engine(args.model) as eyes:
        print(f"{eyes.loaded.name}: loaded in {time.perf_counter() - start:.1f} s")
        if args.model in (None, vision.TINY):
            print_spelled(eyes, "screens", [one for seed in range(args.seeds) for one in screens(seed)])
            print_spelled(eyes, "frames", [one for seed in range(args.seeds) for one in frames(seed)])
        hits: dict[str, list[tuple[bool, bool]]] = {}
        for asked in (one for seed in range(args.seeds) for one in questions(seed)):
            both = answers(eyes, asked.shown.image, asked), answers(eyes, asked.shown.text, asked)
            hits.setdefault(asked.about, []).append(both)
        for about, pairs in hits.items():
            seen, written = ([*map(bool, column)] for column in zip(*pairs, strict=True))
            print(f"{about}: {sum(seen)} of {len(pairs)} from pictures, {sum(written)} from text")
        every = [pair for pairs in hits.values() for pair in pairs]
        for place, name in enumerate(("pictures", "text")):
            mean, low, high = interval([pair[place] for pair in every])
            print(f"from {name}: {mean:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
