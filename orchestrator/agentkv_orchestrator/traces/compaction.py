"""A coding agent whose history is summarised when it grows too long."""

from ..trace import Message, Trace, Turn
from .parts import Parts

LIMIT = 40_000
"""Tokens of history that trigger a summary."""


def compaction(turns: int, seed: int) -> Trace:
    """History grows by tool results; at the limit a summary takes the place of all of it."""
    parts = Parts("compaction", seed)
    rules, history = parts.system(2000), list[Message]()
    played = []
    for _ in range(turns):
        history.append(parts.message("tool result", 500))
        if sum(m.tokens for m in history) > LIMIT:
            history = [parts.message("summary", 600), history[-1]]
        played.append(Turn(messages=(rules, *history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "compaction: a summary in place of all but the last message")
