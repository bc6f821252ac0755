"""What an entry is worth to a store that is full, by a cost table."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.eviction import BROUGHT, saved

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.media import Media
from agentkv.patches import Patch
from agentkv.store.base import Document, Entry, Key, Note, Store
from agentkv.store.memory import By, Price


@runtime_checkable
class Evicting(Protocol):
    """A store that can be told who leaves it when it is full."""

    def evict_by(self, by: By, price: Price) -> None:
        """From now on."""
        ...


def told(store: Store) -> Evicting:
    """The store. Raises InvalidInput for one that cannot be told who leaves."""
    if not isinstance(store, Evicting):
        raise InvalidInput(
            got=f"an evictor for a {type(store).__name__}",
            expected="a MemoryStore, a DiskStore or tiers of these",
            do="leave `evictor` out: this store has a rule of its own",
        )
    return store


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
