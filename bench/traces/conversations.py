"""A conversation, and the prompts that its model is sent: one for each answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple


class Message(NamedTuple):
    """kind: user, assistant or tool."""

    kind: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """system: instructions. tools: one schema each, which stand in the system message behind them."""

    name: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]

    def prompts(self) -> Iterator[tuple[Message, ...]]:
        """What stands in front of each answer, but for the system message."""
        for i, message in enumerate(self.messages):
            if message.kind == "assistant":
                yield self.messages[:i]


def save(conversations: list[Conversation], path: Path) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(asdict(c)) + "\n" for c in conversations))


def load(path: Path) -> list[Conversation]:
    """Inverse of save."""
    found = []
    for line in path.read_text().splitlines():
        data = json.loads(line)
        messages = tuple(Message(*m) for m in data["messages"])
        found.append(Conversation(data["name"], data["system"], tuple(data["tools"]), messages))
    return found
