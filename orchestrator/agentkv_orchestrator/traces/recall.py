"""An agent with a recall tool: old results leave, and are asked for again."""

from ..trace import Message, Trace, Turn
from .parts import Parts, zipf

LIMIT, OFTEN = 6_000, 0.4
"""Tokens of history, and how often something that left is recalled."""


def recall(turns: int, seed: int) -> Trace:
    """The oldest results leave at the limit; what left last is recalled most often, and stands at the end."""
    parts = Parts("recall", seed)
    rules, history, left = parts.system(), list[Message](), list[Message]()
    played = []
    for _ in range(turns):
        if left and parts.draw.random() < OFTEN:
            (back,) = parts.draw.choices(left, zipf(len(left)))
            left.remove(back)
            history.append(back)
        else:
            history.append(parts.message("document", 400))
        while sum(m.tokens for m in history) > LIMIT:
            gone = history.pop(0)
            if gone.kind == "document":
                left.insert(0, gone)
        played.append(Turn(messages=(rules, *history), answer=parts.answer()))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "a recall tool over what slid out of the window")
