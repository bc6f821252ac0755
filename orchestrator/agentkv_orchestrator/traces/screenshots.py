"""A computer-use agent that keeps its last screenshots and all of its text."""

from ..trace import Message, Trace, Turn
from .parts import Parts

KEPT, TOKENS, MOST = 3, 1024, 80
"""Screenshots in the window, tokens of one, and messages of history; the oldest leave beyond that."""


def screenshots(turns: int, seed: int) -> Trace:
    """Every turn adds a screenshot, and the oldest of the last few leaves; what was said about it stays."""
    parts = Parts("screenshots", seed)
    history: list[Message] = [parts.system(), parts.message("user", 60)]
    played = []
    for _ in range(turns):
        history.append(parts.message("image", TOKENS, fixed=True))
        del history[2:-MOST]
        shown = [i for i, m in enumerate(history) if m.kind == "image"]
        if len(shown) > KEPT:
            del history[shown[0]]
        played.append(Turn(messages=tuple(history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "keep the last screenshots, keep all text")
