"""What an entry is worth to a store that is full, by a cost table."""

from __future__ import annotations

from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.eviction import BROUGHT, saved

from agentkv.kv import KVBlock
from agentkv.media import Media
from agentkv.patches import Patch
from agentkv.store.base import Document, Entry, Key, Note
from agentkv.store.memory import Price


def price_by(costs: CostTable) -> Price:
    """Milliseconds that bringing a chunk back takes less than computing it behind as many rows as it was."""

    def price(key: Key, entry: Entry, note: Note) -> float:
        if isinstance(entry, Media):  # the table does not know the tower: as long as a prefill, at least
            return costs.time("prefill", len(entry.placeholders))
        if isinstance(entry, Document) or key.kind not in BROUGHT:
            return 0.0
        rows = note.context.tokens if note.context is not None else 0
        return saved(costs, key.kind, _tokens(entry), rows)

    return price


def _tokens(entry: KVBlock | Patch) -> int:
    if isinstance(entry, KVBlock):
        return entry.tokens
    return max((len(f.left) for f in entry.factors if f is not None), default=0)
