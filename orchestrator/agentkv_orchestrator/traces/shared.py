"""Many agents that read the same documents."""

from ..trace import Message, Trace, Turn
from .parts import Parts, zipf

AGENTS, DOCUMENTS, MOST = 8, 40, 8
"""Windows, documents that all may read, and messages of an agent's history."""


def shared(turns: int, seed: int) -> Trace:
    """Every agent has a task of its own in front and reads popular documents, one a turn, in any order."""
    parts = Parts("shared", seed)
    documents = [parts.message("document", 500, name=f"document-{i}") for i in range(DOCUMENTS)]
    heads = [parts.message("system", 200, name=f"task-{i}", pin=True) for i in range(AGENTS)]
    histories = [list[Message]() for _ in range(AGENTS)]
    played = []
    for turn in range(turns):
        agent = turn % AGENTS
        history = histories[agent]
        unread = [document for document in documents if document not in history]
        (document,) = parts.draw.choices(unread, zipf(len(unread)))
        history.append(document)
        del history[:-MOST]
        played.append(Turn(messages=(heads[agent], *history), answer=parts.answer(), window=f"agent-{agent}"))
        history.append(played[-1].answer or history[-1])
    return parts.trace(played, "many agents that share documents")
