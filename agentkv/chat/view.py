"""A window in a terminal: one strip of blocks, coloured by what the last commit did with each message."""

from __future__ import annotations

from typing import Any

from agentkv_orchestrator.explain.html import OTHER, colour
from agentkv_orchestrator.plan import Placing
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentkv import Window
from agentkv.handles import Entry

WORDS = {
    "reused": "kept where it stood",
    "rotated": "moved",
    "patched": "brought from the store",
    "recomputed": "computed",
}


def strip(window: Window, cells: int) -> Text:
    """All messages from left to right, ``cells`` wide at most, each with its number where there is room."""
    ops = {op.uid: op for op in (window.last_plan.ops if window.last_plan else ()) if isinstance(op, Placing)}
    text, done, width = Text(no_wrap=True), 0, 0
    scale = max(window.content.tokens, 1) / max(cells, 1)
    for number, entry in enumerate(window.content.live(), 1):
        first = width
        for uid, chunk in entry.parts:
            done += chunk.length
            step = max(round(done / scale) - width, 0)
            op = ops.get(uid)
            text.append(
                _block(str(number) if width == first else "", step),
                style=f"white on {colour(op) if op else OTHER}",
            )
            width += step
    return text


def _block(name: str, width: int) -> str:
    return ("▏" + name)[:width].ljust(width) if name and width else " " * width


def numbers(window: Window) -> Text:
    """What the last commit did, in tokens and words."""
    if window.last_plan is None:
        return Text("nothing committed yet", style="dim")
    counts = window.last_plan.tokens()
    said = ", ".join(f"{counts[name]} {words}" for name, words in WORDS.items() if counts[name])
    kl = f"predicted KL {window.last_plan.predicted_kl:.3f} of {window.policy.allowance:.3f}"
    size = f"{window.content.tokens} of {window.max_tokens} tokens"
    return Text(
        f"{size}: {said or 'nothing'} · {window.timing.ttft_ms:.0f} ms to the first token · {kl}", "dim"
    )


def live(window: Window, answer: str, cells: int) -> RenderableType:
    """An answer under way, over its window."""
    return Group(Text(answer), strip(window, cells), numbers(window))


def listing(window: Window) -> Table:
    """Every message that the window holds or held, with the number that commands take."""
    table = Table(pad_edge=False)
    for name in ("", "message", "tokens", "state"):
        table.add_column(name, justify="right" if name == "tokens" else "left")
    for number, entry in enumerate(everything(window), 1):
        table.add_row(str(number), *map(Text, _row(window, entry)))
    return table


def _row(window: Window, entry: Entry) -> tuple[str, str, str]:
    live = entry.handle.id in window.content.order
    state = "evicted" if not live else "pinned" if entry.pinned else "there"
    return f"{entry.handle.kind}: {entry.handle.preview}", str(entry.handle.tokens), state


def everything(window: Window) -> list[Entry]:
    """Messages as commands number them: those in the window first, in order, then those that left."""
    live = window.content.live()
    held = {entry.handle.id for entry in live}
    return [*live, *(entry for entry in window.content.known() if entry.handle.id not in held)]


def facts(window: Window, said: str, answer: str) -> dict[str, Any]:
    """One turn for a program."""
    counts = window.last_plan.tokens() if window.last_plan else {}
    return {
        "said": said,
        "answer": answer,
        "ttft_ms": round(window.timing.ttft_ms, 3),
        "answer_tokens": window.timing.tokens,
        "window_tokens": window.content.tokens,
        **counts,
        "predicted_kl": window.last_plan.predicted_kl if window.last_plan else 0.0,
    }
