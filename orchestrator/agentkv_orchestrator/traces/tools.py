"""Tool schemas that arrive in another order, and a mode that has fewer of them."""

from ..trace import Message, Trace, Turn
from .parts import Parts

TOOLS, SWITCH, MOST = 12, 0.15, 40
"""Schemas, how often the mode is switched, and messages of history; the oldest leave beyond that."""


def tools(turns: int, seed: int) -> Trace:
    """The servers answer in any order; in read-only mode a third of the tools is not listed."""
    parts = Parts("tools", seed)
    rules, history = parts.system(), list[Message]()
    schemas = [parts.message("tool", 150, name=f"tool-{i}", order_free=True) for i in range(TOOLS)]
    played, writing = [], True
    for _ in range(turns):
        writing ^= parts.draw.random() < SWITCH
        listed = schemas if writing else schemas[: TOOLS * 2 // 3]
        history = [*history[1 - MOST :], parts.message("user", 80)]
        order = parts.draw.sample(listed, len(listed))
        played.append(Turn(messages=(rules, *order, *history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "tools in another order every turn; mode switches change the list")
