"""One tenant's part of a store that others use too.

Every key that goes through a `TenantStore` carries the tenant's scope, a digest of its name: what was stored
under one scope is not found under another, whatever the chunk. Canonicals depend on nothing but their chunk
and the model, so tenants that agree to it share them; anything that was conditioned on a window never is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from agentkv.kv import KVBlock
from agentkv.store.base import PLAIN, Entry, Found, Key, Miss, Note, Origin, Stats, Store, Stored
from agentkv.store.key import scope_of
from agentkv.store.tiers import Prefetching

SHARED = "shared"
"""The scope of canonicals that their tenants share. No digest reads like this."""


def of_tenant(store: Store, tenant: str, share_canonicals: bool) -> Store:
    """The store as this tenant sees it; itself where it is not divided."""
    return TenantStore(store, tenant, share_canonicals) if tenant or share_canonicals else store


class TenantStore:
    """A store that holds one tenant's entries; keys go in and come out without a tenant.

    share_canonicals: canonicals are those of all tenants that share theirs. Sizes are the tenant's own.
    """

    def __init__(self, store: Store, tenant: str, share_canonicals: bool = False) -> None:
        self.store, self.scope, self.share_canonicals = store, scope_of(tenant), share_canonicals
        self._scopes = (self.scope, SHARED) if share_canonicals else (self.scope,)
        self.tier = store.tier
        self._hits = self._misses = 0

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        return self.store.put(self._inside(key), entry, note, origin)

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        stored = self.store.get(self._inside(key), rows)
        self._hits += stored is not None
        self._misses += stored is None
        return stored

    def drop(self, key: Key) -> bool:
        return self.store.drop(self._inside(key))

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        """Shared canonicals, then the tenant's own."""
        inside = (key for scope in reversed(self._scopes) for key in self.store.keys(scope))
        return tuple(key._replace(tenant="") for key in inside if key == self._inside(key))

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        found = self.store.origins([self._inside(key) for key in keys])
        return {key._replace(tenant=""): origin for key, origin in found.items()}

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        return {
            key._replace(tenant=""): found
            for scope in self._scopes
            for key, found in self.store.held(chunks, scope).items()
            if key == self._inside(key)
        }

    @property
    def nbytes(self) -> int:
        return self.store.stats().tenants.get(self.scope, 0)

    def stats(self) -> Stats:
        """The tenant's own sizes and counts: what others do is not theirs to see, nor why things are gone."""
        counts = Counter[Miss]({"absent": self._misses})
        budget = self.store.stats().budget
        return Stats(self.tier, budget, len(self.keys()), self.nbytes, self._hits, counts)

    def prefetch(self, keys: Iterable[Key]) -> int:
        """See `agentkv.store.tiers.Prefetching`; nothing where the store cannot."""
        store = self.store
        return store.prefetch(map(self._inside, keys)) if isinstance(store, Prefetching) else 0

    def flush(self) -> None:
        self.store.flush()

    def close(self) -> None:
        """The store stays open: others use it."""
        self.store.flush()

    def _inside(self, key: Key) -> Key:
        shared = self.share_canonicals and key.kind == "canonical"
        return key._replace(tenant=SHARED if shared else self.scope)
