"""Notes as text, for stores that keep them apart from their entries, and those that were read lately."""

from __future__ import annotations

import json
import threading

from agentkv_orchestrator.lineage import EMPTY, Lineage
from agentkv_orchestrator.residency import Context

from agentkv.store.key import PLAIN, Note

TEXTS = 1 << 20
"""Characters of the texts whose notes are remembered; with their notes they take about seven times as many
bytes of memory, less where contexts begin alike."""


def note_text(note: Note) -> str:
    """A note as text; "" for one that says nothing."""
    told: dict[str, object] = {"hearsay": note.hearsay} if note.hearsay else {}
    if note.context is not None:
        told |= {"antecedents": list(note.context.chunks), "tokens": note.context.tokens}
    return json.dumps(told) if told else ""


def note_of(text: str, like: Lineage = EMPTY) -> Note:
    """Inverse of `note_text`. like: antecedents with which those of the note share their links as far as the
    two begin alike. Raises ValueError, KeyError, TypeError or AttributeError for any other text."""
    if not text:
        return PLAIN
    told = json.loads(text)
    chunks = told.get("antecedents")
    context = None if chunks is None else Context(chunks=like.alike(chunks), tokens=told["tokens"])
    return Note(float(told.get("hearsay", 0.0)), context)


class Notes:
    """The notes of texts: long, and the same for many entries, so each is read once while there is room.
    Threads may share it. texts: characters that are remembered."""

    def __init__(self, texts: int = TEXTS) -> None:
        self.texts, self.size = texts, 0
        self._known: dict[str, Note] = {}
        self._last = EMPTY
        """The contexts of one window begin alike, and are asked for together."""
        self._lock = threading.Lock()

    def of(self, text: str) -> Note:
        """Raises what `note_of` raises."""
        with self._lock:
            note = self._known.get(text)
            if note is None:
                note = note_of(text, self._last)
                if self.size + len(text) > self.texts:
                    self._known.clear()
                    self.size = 0
                if len(text) <= self.texts:
                    self._known[text] = note
                    self.size += len(text)
                if note.context is not None:
                    self._last = note.context.chunks
            return note
