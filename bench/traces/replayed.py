"""Real conversations as traces for the simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from agentkv_orchestrator.trace import Header, Message, Trace, Turn

from bench.traces.conversations import Conversation
from bench.traces.generated import header

Count = Callable[[str], int]
"""Tokens of a text."""


def replayed(
    conversations: Sequence[Conversation], count: Count, name: str, shifted: bool, seed: int = 0
) -> Trace:
    """One agent that has these conversations in turn, in one window; tool schemas are order-free.

    shifted: with session metadata in front, of another length at every turn.
    """
    draw = random.Random(seed)
    known: dict[tuple[str, str], Message] = {}

    def message(kind: str, text: str, **said: bool) -> Message:
        found = known.get((kind, text))
        if found is None:
            digest = blake2b(f"{kind}\0{text}".encode(), digest_size=16).hexdigest()
            found = known[kind, text] = Message(id=digest, kind=kind, tokens=max(1, count(text)), **said)
        return found

    def turns() -> Iterator[Turn]:
        for conversation in conversations:
            head = message("system", conversation.system)
            tools = [message("tool", schema, order_free=True) for schema in conversation.tools]
            for number, prompt in enumerate(conversation.prompts()):
                lead = [message("system", header(draw, conversation.name, number))] if shifted else []
                said = [message(m.kind, m.text) for m in prompt]
                answer = conversation.messages[len(prompt)]
                yield Turn(messages=(*lead, head, *tools, *said), answer=message(answer.kind, answer.text))

    return Trace(header=Header(name=name), turns=tuple(turns()))
