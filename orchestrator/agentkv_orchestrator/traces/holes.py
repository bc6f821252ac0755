"""Messages that leave from the middle."""

from ..trace import Message, Trace, Turn
from .parts import Parts

MOST = 30
"""Messages of history; one from the middle leaves beyond that."""


def holes(turns: int, seed: int) -> Trace:
    """A tool result is deleted once it has been dealt with, wherever it stands; its call and answer stay."""
    parts = Parts("holes", seed)
    rules, history = parts.system(), list[Message]()
    played = []
    for _ in range(turns):
        history.append(parts.message("tool result", 300))
        results = [m for m in history if m.kind == "tool result"]
        if len(history) > MOST and len(results) > 1:
            history.remove(parts.draw.choice(results[:-1]))
        if len(history) > 2 * MOST:
            del history[0]
        played.append(Turn(messages=(rules, *history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "holes in the middle of the window")
