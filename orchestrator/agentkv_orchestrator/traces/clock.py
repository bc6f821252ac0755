"""A timestamp in the head of the prompt."""

from ..trace import Message, Trace, Turn
from .parts import Parts

MOST = 60
"""Messages of history; the oldest leave beyond that."""


def clock(turns: int, seed: int) -> Trace:
    """The time of day stands in front of everything and is another one every turn."""
    parts = Parts("clock", seed)
    rules, history = parts.system(), list[Message]()
    played = []
    for _ in range(turns):
        now = parts.message("system", 12, fixed=True)
        history = [*history[1 - MOST :], parts.message("user", 80)]
        played.append(Turn(messages=(now, rules, *history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "a timestamp early in the prompt")
