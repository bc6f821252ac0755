"""Retrieval: documents in front of a question, in the order a retriever gave."""

from ..trace import Message, Trace, Turn
from .parts import Parts, zipf

DOCUMENTS, SHOWN, TOKENS = 16, 4, 512
"""In the collection, in a window, and tokens of one."""
STAYS = 0.7
"""A follow-up question finds a document again with this probability."""


def retrieval(turns: int, seed: int) -> Trace:
    """Questions that have nothing to do with each other: documents by popularity (Zipf), in any order."""
    return _played(Parts("retrieval", seed), turns, 0.0, "independent questions; random order")


def rerank(turns: int, seed: int) -> Trace:
    """Questions that follow up: most documents are found again, and ranked anew."""
    return _played(Parts("rerank", seed), turns, STAYS, "follow-up questions; the same documents ranked anew")


def _played(parts: Parts, turns: int, stays: float, note: str) -> Trace:
    rules = parts.system(60)
    documents = [
        parts.message("document", TOKENS, name=f"document-{i}", fixed=True, order_free=True)
        for i in range(DOCUMENTS)
    ]
    found: list[Message] = []
    played = []
    for _ in range(turns):
        found = [document for document in found if parts.draw.random() < stays]
        while len(found) < SHOWN:
            (document,) = parts.draw.choices(documents, zipf(DOCUMENTS))
            found += [document] if document not in found else []
        parts.draw.shuffle(found)
        played.append(Turn(messages=(rules, *found, parts.message("user", 24, fixed=True))))
    return parts.trace(played, note)
