"""Prompts that shift: a header of changing length in front of a conversation or of retrieved documents.

A prompt is a list of segments. Each is a message or a tool schema, and its edges are boundaries (S2).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.traces.conversations import Conversation


class Prompt(NamedTuple):
    """session: which conversation it is of. segments: texts, in order."""

    session: str
    segments: tuple[str, ...]


def header(rng: random.Random, session: str, turn: int) -> str:
    """Metadata as an agent's harness writes it: another length each time, and never the same text twice."""
    day, hour, minute = rng.randint(1, 28), rng.randint(0, 23), rng.randint(0, 59)
    folders = rng.choices(["home", "srv", "projects", "tmp", "notes", "a"], k=rng.randint(1, 6))
    fields: dict[str, object] = {
        "session": session + "-" + "".join(rng.choices("0123456789abcdef", k=12)),
        "turn": turn,
        "time": f"2026-03-{day:02} {hour}:{minute:02}:{rng.random() * 60:.3f}",
        "user": rng.choice(["anna", "b.okafor", "chen.li", "dimitri_v", "e"]),
        "workspace": "/" + "/".join(folders),
    }
    if rng.random() < 0.5:
        fields["flags"] = rng.sample(["search", "memory", "images", "code", "voice"], rng.randint(0, 5))
    return json.dumps(fields) + "\n"


def under_headers(conversations: Sequence[Conversation], seed: int = 0) -> Iterator[Prompt]:
    """Every prompt of these conversations, each under a header of its own in the system message."""
    rng = random.Random(seed)
    for conversation in conversations:
        for turn, messages in enumerate(conversation.prompts()):
            front = header(rng, conversation.name, turn)
            tools = [f"\n{tool}" for tool in conversation.tools]
            said = [f"\n<{m.kind}>\n{m.text}" for m in messages]
            yield Prompt(conversation.name, (front, conversation.system, *tools, *said))


def retrieval(
    documents: Sequence[str], sessions: int, turns: int, shown: int = 4, seed: int = 0
) -> Iterator[Prompt]:
    """Agents that share documents: each turn a header, some of the documents in any order, and what was said
    before, of which the oldest leaves."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(documents))]
    words = [word for document in documents for word in document.split()]
    for session in range(sessions):
        said: list[str] = []
        for turn in range(turns):
            found = dict.fromkeys(rng.choices(range(len(documents)), weights, k=3 * shown))
            chosen = rng.sample(list(found)[:shown], min(shown, len(found)))
            said.append("\n<user>\n" + " ".join(rng.choices(words, k=rng.randint(8, 60))))
            front = header(rng, f"agent{session}", turn)
            yield Prompt(
                f"agent{session}", (front, *(f"\n<document>\n{documents[i]}" for i in chosen), *said[-6:])
            )
            said.append("\n<assistant>\n" + " ".join(rng.choices(words, k=rng.randint(20, 120))))
