"""A store without tensors: keys, sizes and notes inside a byte budget. The planner's residency as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ..cost import CostTable
from ..eviction import Evictor, Item, saved
from ..plan import (
    ApplyOrbit,
    ApplyPatch,
    ApplyRemoval,
    FormCanonical,
    FormPatch,
    Load,
    Op,
    PlaceCanonical,
    Plan,
    Stash,
)
from ..residency import NOTHING, Context, Resident, removal_key
from ..window import WindowGraph
from .shape import Shape

Kind = Literal["canonical", "conditioned", "patch", "orbit", "removal"]


class Key(NamedTuple):
    """As in a runtime's store: what is kept, for which chunk, and for which context."""

    kind: Kind
    chunk: str
    context: str = ""


class Held(NamedTuple):
    nbytes: int
    tokens: int
    hearsay: float = 0.0
    context: Context | None = None


class Shelf:
    """Obeys plans as an executor does: everything they bring is read before anything is put."""

    def __init__(self, budget: int, evictor: Evictor[Key], costs: CostTable, shape: Shape) -> None:
        self.budget, self._evictor, self._costs, self._shape = budget, evictor, costs, shape
        self._chunks: dict[str, dict[Key, Held]] = {}
        self._contexts: dict[str, Context] = {}
        self._mentions: dict[str, int] = {}  # by context key: entries that know it
        self._residents: dict[str, Resident] = {}  # made when asked for
        self.nbytes = self.peak = self.evicted = self.written = 0
        self.fresh: list[Key] = []
        """Conditioned entries that came since they were settled."""

    def of(self, chunk_id: str) -> Resident:
        found = self._residents.get(chunk_id)
        if found is None:
            found = self._residents[chunk_id] = self._resident(chunk_id)
        return found

    def known(self) -> Iterable[str]:
        return self._chunks.keys()

    def context(self, key: str) -> Context | None:
        return self._contexts.get(key)

    def obey(self, plan: Plan, graph: WindowGraph) -> None:
        """What `plan`, made for `graph`, does to the store."""
        for key in _brought(plan.ops):
            self._evictor.use(key)
        for op in plan.ops:
            if isinstance(op, FormCanonical):
                self._put(Key("canonical", op.chunk), Held(self._shape.kv(op.tokens), op.tokens))
        for op in plan.ops:
            if isinstance(op, Stash):
                self._stash(op, graph)
            elif isinstance(op, FormPatch):
                self._form(op)

    def touch(self, chunk_id: str) -> None:
        """All that is held for a chunk counts as used."""
        for key in self._chunks.get(chunk_id, ()):
            self._evictor.use(key)

    def _stash(self, op: Stash, graph: WindowGraph) -> None:
        p = graph.get(op.uid)
        if p is None:
            return
        context = Context(chunks=p.antecedents, tokens=p.antecedent_tokens)
        key = Key("conditioned", op.chunk, op.context)
        if self._put(key, Held(self._shape.kv(op.tokens), op.tokens, p.hearsay, context)):
            self.drop(Key("patch", op.chunk, op.context))
            self.fresh.append(key)

    def _form(self, op: FormPatch) -> None:
        """The patch stands for the conditioned KV from now on; without a canonical there is none."""
        whole = Key("conditioned", op.chunk, op.context)
        held = self._chunks.get(op.chunk, {})
        block = held.get(whole)
        if block is None or Key("canonical", op.chunk) not in held:
            return
        patch = block._replace(nbytes=self._shape.patch(op.tokens))
        if self._put(Key("patch", op.chunk, op.context), patch):
            self.drop(whole)

    def _put(self, key: Key, held: Held) -> bool:
        before = self._chunks.get(key.chunk, {}).get(key)
        need = self.nbytes + held.nbytes - self.budget - (before.nbytes if before else 0)
        if held.nbytes > self.budget:
            return False
        leaving = self._evictor.victims(need, key) if need > 0 else []
        if leaving is None:
            return False
        for victim in leaving:
            self.drop(victim)
            self.evicted += 1
        self.drop(key)
        self._chunks.setdefault(key.chunk, {})[key] = held
        self._residents.pop(key.chunk, None)
        if held.context is not None:
            self._contexts[key.context] = held.context
            self._mentions[key.context] = self._mentions.get(key.context, 0) + 1
        self.nbytes += held.nbytes
        self.written += held.nbytes
        self.peak = max(self.peak, self.nbytes)
        rows = held.context.tokens if held.context else 0
        ms = saved(self._costs, key.kind, held.tokens, rows)
        self._evictor.put(key, Item(held.nbytes, key.kind, ms))
        return True

    def drop(self, key: Key) -> None:
        """Forget an entry, if there is one."""
        siblings = self._chunks.get(key.chunk, {})
        held = siblings.pop(key, None)
        if held is None:
            return
        if not siblings:
            del self._chunks[key.chunk]
        self._residents.pop(key.chunk, None)
        self._evictor.drop(key)
        self.nbytes -= held.nbytes
        if held.context is not None:
            self._mentions[key.context] -= 1
            if not self._mentions[key.context]:
                del self._mentions[key.context], self._contexts[key.context]

    def _resident(self, chunk: str) -> Resident:
        entries = self._chunks.get(chunk)
        if not entries:
            return NOTHING
        kinds: dict[Kind, set[str]] = {}
        hearsay: dict[str, float] = {}
        for key, held in entries.items():
            kinds.setdefault(key.kind, set()).add(key.context)
            if held.hearsay:
                hearsay[key.context] = max(held.hearsay, hearsay.get(key.context, 0.0))
        return Resident(
            tokens=next(iter(entries.values())).tokens,
            canonical="canonical" in kinds,
            conditioned=frozenset(kinds.get("conditioned", ())),
            patches=frozenset(kinds.get("patch", ())),
            orbits=frozenset(kinds.get("orbit", ())),
            removals=frozenset(kinds.get("removal", ())),
            hearsay=hearsay,
        )


def _brought(ops: Iterable[Op]) -> Iterator[Key]:
    """Entries that a plan reads."""
    for op in ops:
        match op:
            case Load():
                yield Key("conditioned", op.chunk, op.context)
            case PlaceCanonical():
                yield Key("canonical", op.chunk)
            case ApplyPatch():
                yield Key("patch", op.chunk, op.context)
            case ApplyOrbit():
                yield Key("orbit", op.chunk, op.antecedent_set)
            case ApplyRemoval():
                yield Key("removal", op.chunk, removal_key(op.before, op.after))
            case FormPatch():
                yield Key("conditioned", op.chunk, op.context)
                yield Key("canonical", op.chunk)
