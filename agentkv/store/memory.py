"""The store in this process's memory; an evictor says which entries make room for others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from typing import Literal

import torch
from agentkv_orchestrator.eviction import EVICTORS, LRU, Evictor, Item

from agentkv.kv import KVBlock
from agentkv.patches import Patch
from agentkv.store.base import PLAIN, Entry, Found, Key, Note, Origin, Stats, Stored
from agentkv.store.key import SAVED
from agentkv.store.share import Shares

Price = Callable[[Key, Entry, Note], float]
"""Milliseconds that an entry saves when its chunk comes back."""


By = Literal["lru", "benefit"]
"""Who leaves a full store: the least recently used entry, or the one that saves least by its bytes."""


def by_size(key: Key, entry: Entry, note: Note) -> float:
    """Every byte saves as much: an evictor by benefit then goes by reuse alone."""
    return float(entry.nbytes)


class MemoryStore:
    """A map inside a byte budget.

    budget: bytes of tensors it may hold. tenant_bytes: of one tenant at most (None: all of the budget); a
    full store takes from the tenant that holds most. evictor: makes one for each tenant that says who of its
    entries leaves, the least recently used by default. price: what an evictor is told an entry is worth
    (`agentkv.store.price.price_by`). device: where KV and patches are moved to (None: they stay where they
    were computed). tier: "host" or "device". Raises InvalidInput for a budget below 1.
    """

    def __init__(
        self,
        budget: int = 2 << 30,
        tenant_bytes: int | None = None,
        evictor: Callable[[], Evictor[Key]] = LRU,
        price: Price = by_size,
        *,
        device: torch.device | str | None = None,
        tier: str = "host",
    ) -> None:
        self._shares, self.budget = Shares(budget, tenant_bytes), budget
        self.device, self.tier = device, tier
        self.on_evict: Callable[[Key, Stored], None] | None = None
        """Told what made room for something else, while the store is locked: it must not call back."""
        self._entries: OrderedDict[Key, Stored] = OrderedDict()
        self._by_chunk: dict[tuple[str, str], dict[Key, None]] = {}
        self._new_evictor, self._price = evictor, price
        self._evictors: dict[str, Evictor[Key]] = {}
        self._pinned: set[Key] = set()
        self._stats = Stats(self.tier, budget)
        self._lock = threading.Lock()

    def evict_by(self, by: By, price: Price) -> None:
        """Who leaves from now on, and what entries are worth. What was read before counts as not read."""
        with self._lock:
            self._new_evictor, self._price = EVICTORS[by], price
            self._evictors.clear()
            for key in self._entries:
                self._tell(key, key in self._pinned)

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        size = entry.nbytes
        # A view would pin (and share) the whole window it was cut from.
        kept = entry.clone() if isinstance(entry, KVBlock) and not entry.owned else entry
        if self.device is not None and isinstance(kept, KVBlock | Patch):
            kept = kept.to(self.device)
        with self._lock:
            leaving = self._room(key, size)
            if leaving is None:
                self._stats.refused["budget"] += 1
                return False
            pinned = key in self._pinned
            self._remove(key)
            for victim in leaving:
                self._evict(victim)
            self._entries[key] = Stored(kept, note, origin)
            self._by_chunk.setdefault((key.tenant, key.chunk), {})[key] = None
            self._shares.add(key.tenant, size)
            self._tell(key, pinned)
        return True

    def pin(self, key: Key, on: bool = True) -> bool:
        """Keep the entry whatever room others need, or no longer; whether there is one. `drop` works on."""
        with self._lock:
            if key not in self._entries:
                return False
            self._tell(key, on)
            return True

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        with self._lock:
            stored = self._entries.get(key)
            if stored is None:
                self._stats.misses["absent"] += 1
                return None
            self._entries.move_to_end(key)
            self._evictors[key.tenant].use(key)
            self._stats.hits += 1
            return stored

    def peek(self, key: Key) -> Stored | None:
        """As `get`, but it counts as no use and no look-up."""
        with self._lock:
            return self._entries.get(key)

    def drop(self, key: Key) -> bool:
        with self._lock:
            return self._remove(key)

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        with self._lock:
            return tuple(key for key in self._entries if tenant is None or key.tenant == tenant)

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        with self._lock:
            found = {key: self._entries[key].origin for key in keys if key in self._entries}
        return {key: origin for key, origin in found.items() if origin is not None}

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        with self._lock:
            found = (key for chunk in chunks for key in self._by_chunk.get((tenant, chunk), ()))
            return {
                key: Found(self._entries[key].note, self._entries[key].entry.nbytes, self.tier)
                for key in found
            }

    @property
    def nbytes(self) -> int:
        return self._shares.total

    def stats(self) -> Stats:
        with self._lock:
            return replace(
                self._stats,
                entries=len(self._entries),
                nbytes=self._shares.total,
                misses=self._stats.misses.copy(),
                refused=self._stats.refused.copy(),
                tenants=dict(self._shares.held),
            )

    def flush(self) -> None:
        """Nothing is written later."""

    def close(self) -> None:
        """Nothing to let go of; the entries stay as long as the store."""

    def _room(self, key: Key, size: int) -> list[Key] | None:
        """Who leaves for ``key``; None when it does not fit whoever leaves."""
        if not self._shares.possible(size):
            return None
        trial, leaving = self._shares.copy(), dict[str, list[Key]]()
        trial.add(key.tenant, -self._size(key))
        while (tenant := trial.pays(key.tenant, size)) is not None:
            freed = sum(map(self._size, leaving.get(tenant, ())))
            found = self._evictors[tenant].victims(freed + 1, key)
            if found is None:
                return None
            trial.add(tenant, freed - sum(map(self._size, found)))
            leaving[tenant] = found
        return list(chain.from_iterable(leaving.values()))

    def _size(self, key: Key) -> int:
        return self._entries[key].entry.nbytes if key in self._entries else 0

    def _tell(self, key: Key, pinned: bool) -> None:
        """What the evictor has to know of an entry that came, or was pinned."""
        entry, note, _ = self._entries[key]
        (self._pinned.add if pinned else self._pinned.discard)(key)
        evictor = self._evictors.setdefault(key.tenant, self._new_evictor())
        stays = pinned or key.kind in SAVED
        evictor.put(key, Item(entry.nbytes, key.kind, self._price(key, entry, note), stays))

    def _evict(self, key: Key) -> None:
        stored = self._entries[key]
        self._remove(key)
        self._stats.evicted += 1
        if self.on_evict is not None:
            self.on_evict(key, stored)

    def _remove(self, key: Key) -> bool:
        stored = self._entries.pop(key, None)
        if stored is None:
            return False
        self._evictors[key.tenant].drop(key)
        self._pinned.discard(key)
        self._shares.add(key.tenant, -stored.entry.nbytes)
        siblings = self._by_chunk[key.tenant, key.chunk]
        del siblings[key]
        if not siblings:
            del self._by_chunk[key.tenant, key.chunk]
        return True
