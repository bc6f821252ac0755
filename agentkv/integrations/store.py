"""langgraph's long-term memory inside a store of agentkv (extra: langgraph).

An item is a document of the kind "item" beside the KV of the same tenant: it outlives the process where the
store does, counts in its budget, and makes no room for others. Searches by words need no model.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from agentkv.errors import InvalidInput, StoreFull
from agentkv.integrations.memory import items, words
from agentkv.integrations.memory.items import Place, Saved
from agentkv.integrations.memory.matching import matches, passes
from agentkv.integrations.memory.ops import Batch, Put, checked
from agentkv.integrations.memory.semantic import Index, similarity
from agentkv.integrations.memory.ttl import MARK, Expiries, check_config
from agentkv.store.base import Document, Key, Store
from agentkv.store.tenancy import TenantStore, of_tenant

Vectors = Mapping[str, Sequence[float]]
"""What an embedding model made of texts."""


class AgentKVStore(BaseStore):
    """A langgraph BaseStore; threads and processes may share the store behind it.

    store: any of agentkv's; ``engine.store`` is already the engine's tenant's. tenant: whose items these are
    (what is put under one is not found under another). name: stores of different names do not meet. index:
    an embedding model to search with; without one a search goes by words (BM25), and finds items that have
    one of them. ttl: langgraph's TTLConfig; a sweep is due in the first call after each interval. max_items,
    item_bytes: most items (several processes that put at once may go over), and bytes of a value as JSON.
    clock: seconds since the epoch.

    A batch is checked as a whole before anything of it is written; its reads see what was there before it.
    Items come oldest first where nothing ranks them. Of processes that put one item at once the last one
    wins. Raises InvalidInput for arguments and ops that are none.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Store,
        *,
        tenant: str = "",
        name: str = "memories",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        max_items: int = 10_000,
        item_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not name or min(max_items, item_bytes) < 1 or (tenant and isinstance(store, TenantStore)):
            raise InvalidInput(
                got=f"name {name!r}, max_items {max_items}, item_bytes {item_bytes}, tenant {tenant!r}",
                expected="a name, limits above 0, and one tenant: not another one inside a tenant's store",
                do="pass a store that is not divided yet, or leave the tenant out",
            )
        check_config(ttl or {})
        self._store, self._name = of_tenant(store, tenant, False), name
        self._expiries = Expiries(self._store, name)
        self._index = Index(index) if index is not None else None
        self._fields = self._index.fields if self._index else (items.WHOLE,)
        self.ttl_config = ttl
        self.max_items, self.item_bytes, self._clock = max_items, item_bytes, clock
        self._lock = threading.RLock()
        self._last, self._swept = 0.0, clock()
        self._room = 0
        """New items that may come before they are counted again."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """One result for each op, in order. Raises InvalidNamespaceError, NotJSON, InvalidInput before
        anything is written; StoreFull where the store has no room, with the batch's earlier puts done and the
        old value of this item kept."""
        batch = checked(ops, self.item_bytes)
        if self._index is None:
            return self._run(batch, {}, {})
        model, texts, queries = self._index.embeddings, batch.texts(self._fields), batch.queries()
        vectors = model.embed_documents(texts) if texts else []
        asked = [model.embed_query(query) for query in queries]
        return self._run(batch, self._index.checked(texts, vectors), self._index.checked(queries, asked))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`; the store is read and written in a thread."""
        batch = checked(ops, self.item_bytes)
        if self._index is None:
            return await asyncio.to_thread(self._run, batch, {}, {})
        model, texts, queries = self._index.embeddings, batch.texts(self._fields), batch.queries()
        vectors = await model.aembed_documents(texts) if texts else []
        asked = await asyncio.gather(*map(model.aembed_query, queries))
        known, wanted = self._index.checked(texts, vectors), self._index.checked(queries, asked)
        return await asyncio.to_thread(self._run, batch, known, wanted)

    def sweep(self) -> int:
        """Forget the items whose time is over; how many there were."""
        with self._lock:
            now, (there, expiring) = self._clock(), self._listed()
            over = [place for place in expiring if self._expiries.passed(place, now)]
            for place in over:
                self._store.drop(self._key(place))
                self._expiries.drop(place)
            self._swept = now
            return len(set(over) & there)

    def flush(self) -> None:
        """Wait until what was put is where it stays."""
        self._store.flush()

    def _run(self, batch: Batch, vectors: Vectors, queries: Vectors) -> list[Result]:
        with self._lock:
            interval = (self.ttl_config or {}).get("sweep_interval_minutes")
            if interval is not None and self._clock() - self._swept >= 60 * interval:
                self.sweep()
            results = [self._read(op, queries) for op in batch.ops]
            for place, put in batch.puts.items():
                if put.value is None:
                    self._store.drop(self._key(place.text))
                    self._expiries.drop(place.text)
                else:
                    self._put(place, put.op, self._document(place, put, put.value, vectors))
            return results

    def _read(self, op: Op, queries: Vectors) -> Result:
        if isinstance(op, GetOp):
            return self._get(Place(tuple(op.namespace), op.key), op.refresh_ttl)
        if isinstance(op, SearchOp):
            return self._search(op, queries)
        return self._namespaces(op) if isinstance(op, ListNamespacesOp) else None

    def _get(self, place: Place, refresh: bool) -> Item | None:
        saved = None if self._omitted(place.text) else self._saved(place)
        if saved is not None and refresh:
            self._expiries.refresh(place.text, self._clock())
        return saved.item if saved else None

    def _search(self, op: SearchOp, queries: Vectors) -> list[SearchItem]:
        there, expiring = self._listed()
        prefix = tuple(op.namespace_prefix)
        places = [place for place in map(items.place_of, there) if place.namespace[: len(prefix)] == prefix]
        shown = (place for place in places if place.text not in expiring or not self._omitted(place.text))
        found = [s for s in map(self._saved, shown) if s is not None and passes(s.value, op.filter)]
        found.sort(key=lambda s: (s.created_at, s.namespace, s.key))
        page = self._ranked(op, found, queries)[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            for saved, _ in page:
                text = Place(saved.namespace, saved.key).text
                if text in expiring:
                    self._expiries.refresh(text, self._clock())
        return [saved.found(score) for saved, score in page]

    def _ranked(self, op: SearchOp, found: list[Saved], queries: Vectors) -> list[tuple[Saved, float | None]]:
        """Best first; behind them, of a search by meaning, what has no vector."""
        scores: list[float | None]
        if not op.query:
            return [(saved, None) for saved in found]
        if self._index:
            scores = [similarity(queries[op.query], list(saved.vectors.values())) for saved in found]
        else:
            scores = [s or None for s in words.scores(op.query, [s.text(self._fields) for s in found])]
        ranked = [pair for pair in zip(found, scores, strict=True) if pair[1] is not None or self._index]
        return sorted(ranked, key=lambda pair: (pair[1] is None, -(pair[1] or 0.0)))

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        there, expiring = self._listed()
        shown = (text for text in there if text not in expiring or not self._omitted(text))
        every = {items.place_of(text).namespace for text in shown}
        wanted = (ns for ns in every if all(matches(ns, c) for c in op.match_conditions or ()))
        return sorted({ns[: op.max_depth] for ns in wanted})[op.offset : op.offset + op.limit]

    def _document(self, place: Place, put: Put, value: dict[str, Any], vectors: Vectors) -> Document:
        before, now = self._saved(place), self._now()
        if before is None:
            self._take_room(place)
        embedded = put.embedded(self._fields) if self._index else ()
        saved = Saved(
            namespace=place.namespace,
            key=place.key,
            value=value,
            created_at=before.created_at if before else now,
            updated_at=now,
            index=list(put.op.index) if put.op.index else put.op.index,
            vectors={path: list(vectors[text]) for path, text in embedded},
        )
        return saved.document()

    def _take_room(self, place: Place) -> None:
        """Items are counted again when half of the room that was left the last time is used up."""
        if not self._room:
            left = self.max_items - len(self._listed()[0])
            if left < 1:
                raise _full(
                    place, f"{self.max_items} items", "delete some, give items a ttl, or raise max_items"
                )
            self._room = (left + 1) // 2
        self._room -= 1

    def _put(self, place: Place, op: PutOp, document: Document) -> None:
        # The expiry first: whatever comes between them, no item is left that goes earlier than it should.
        timed = op.ttl is None or self._expiries.set(place.text, op.ttl, self._clock())
        if not timed or not self._store.put(self._key(place.text), document):
            refused = dict(self._store.stats().refused)
            raise _full(
                place, f"a store that refused it {refused}", "raise its budget, or see what it runs on"
            )
        if op.ttl is None:
            self._expiries.drop(place.text)

    def _saved(self, place: Place) -> Saved | None:
        stored = self._store.get(self._key(place.text))
        return None if stored is None else items.read(place, stored.entry)

    def _listed(self) -> tuple[set[str], set[str]]:
        """Texts of the places that have an item, and of those with an expiry: one look-up, no reads."""
        texts = {key.context for key in self._store.held([self._name])}
        expiring = {text for text in texts if text.startswith(MARK)}
        return texts - expiring, {text.removeprefix(MARK) for text in expiring}

    def _omitted(self, place: str) -> bool:
        """Whether reads leave it out, as its time is over."""
        omit = (self.ttl_config or {}).get("omit_expired", False)
        return omit and self._expiries.passed(place, self._clock())

    def _key(self, place: str) -> Key:
        return Key("item", self._name, place)

    def _now(self) -> datetime:
        """Later than every time given before: the order of puts is that of their times."""
        self._last = max(self._clock(), self._last + 1e-6)
        return datetime.fromtimestamp(self._last, UTC)


def _full(place: Place, got: str, do: str) -> StoreFull:
    return StoreFull(got=f"{got} at {place.namespace} {place.key!r}", expected="room for the item", do=do)
