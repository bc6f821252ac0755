"""The window as a graph: chunks in order, and which of them each chunk's KV was conditioned on."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    model_serializer,
    model_validator,
)

from .chunks import Chunk
from .errors import WindowError
from .lineage import EMPTY, Lineage, Runs, pack, unpack
from .loaded import require_credible
from .reading import read_data, read_json

if TYPE_CHECKING:
    import networkx as nx


def same_as(row: str) -> Any:
    """A field that is what `row` says unless it is given: text has one position id a row, an image fewer."""
    return Field(default_factory=lambda said: said[row])


class Frame(BaseModel):
    """Where the live rows stand: contiguous from `start` in a buffer of `capacity` rows.

    Row `start` carries position id `position`, by default the same number. A chunk takes `length` rows and
    `span` position ids.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    capacity: int = Field(ge=0)
    position: NonNegativeInt = same_as("start")


class Placement(BaseModel):
    """A chunk in the live window, and what its KV really is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uid: int
    chunk: Chunk
    row: int = Field(ge=0)
    """First row."""
    position: NonNegativeInt = same_as("row")
    """Position id of the first token; the row's number unless images stand in front."""
    antecedents: Lineage
    """Chunk ids the tensor was conditioned on, in order. Not necessarily those in front of it now."""
    antecedent_tokens: int = Field(ge=0)
    """Their tokens, kept because an antecedent that left takes its length with it."""
    exact: bool
    """The tensor is what a forward behind `antecedents`, as they stood then (none a clean view), gives,
    to rounding."""
    verbatim: bool = False
    """Computed where it stands, and nothing in front has changed since: bit for bit what a prefix cache holds
    where all in front is verbatim too."""
    clean: bool = False
    """Conditioned on nothing because that was asked for."""
    clean_front: tuple[str, ...] = ()
    """Antecedents that were clean views when this was computed: it is stale once they are none."""
    hearsay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """KL of second hand: what stood in front was itself off by this much when this was computed."""
    mended: bool = False
    """Some rows were computed again, for one question: it is no canonical any more, whatever it has seen."""
    roundings: int = Field(default=0, ge=0)
    """Casts between a forward and this tensor; each rotation adds one."""
    pinned: bool = False
    revision: int = Field(ge=0)
    """Window revision in which the tensor was last written."""

    @model_validator(mode="after")
    def _tokens_go_with_antecedents(self) -> "Placement":
        if bool(self.antecedents) != bool(self.antecedent_tokens):
            raise WindowError(
                f"{self.antecedent_tokens} tokens for {len(self.antecedents)} antecedents",
                "tokens if and only if there are antecedents",
                "set antecedent_tokens to their total length",
            )
        return self

    def outlives(self, clean: frozenset[str]) -> bool:
        """Computed behind a clean view that is none of these, the ones in front now."""
        return bool(self.clean_front) and not clean.issuperset(self.clean_front)

    @property
    def stop(self) -> int:
        return self.row + self.chunk.length

    @property
    def position_stop(self) -> int:
        """Position id of whatever follows."""
        return self.position + self.chunk.span


class _Runs(BaseModel):
    """The part of a written placement that needs the table."""

    antecedents: Runs


class _Packed(BaseModel):
    ids: tuple[str, ...]
    placements: tuple[_Runs, ...]


_WRITTEN = ("the JSON of a WindowGraph", "write it with to_json()")


class WindowGraph(BaseModel):
    """The live window: an immutable value. One chunk may be placed more than once, under different uids.

    Raises WindowError when uids repeat or rows or positions are not contiguous.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    placements: tuple[Placement, ...] = ()
    revision: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _unpacked(cls, data: Any) -> Any:
        """Written out, antecedents are runs of one table: they would be quadratic in the window otherwise."""
        if not isinstance(data, dict) or "ids" not in data:
            return data
        packed = read_data(_Packed, {k: data.get(k) for k in ("ids", "placements")}, WindowError, *_WRITTEN)
        lineages = unpack(packed.ids, (p.antecedents for p in packed.placements))
        placements = [
            {**p, "antecedents": lineage} for p, lineage in zip(data["placements"], lineages, strict=True)
        ]
        return {name: value for name, value in data.items() if name != "ids"} | {"placements": placements}

    @model_serializer
    def _packed(self) -> dict[str, Any]:
        ids, lists = pack(p.antecedents for p in self.placements)
        placements = [
            p.model_dump(exclude={"antecedents"}) | {"antecedents": runs}
            for p, runs in zip(self.placements, lists, strict=True)
        ]
        return {"ids": ids, "placements": placements, "revision": self.revision}

    @model_validator(mode="after")
    def _consistent(self) -> "WindowGraph":
        uids = [p.uid for p in self.placements]
        if len(set(uids)) != len(uids):
            raise WindowError(f"uids {uids}", "each uid once", "give every placement a fresh uid")
        for a, b in pairwise(self.placements):
            if b.row != a.stop:
                raise WindowError(f"row {b.row} for uid {b.uid}", f"row {a.stop}", "close the gap")
            if b.position != a.position_stop:
                got, expected = f"position {b.position} for uid {b.uid}", f"position {a.position_stop}"
                raise WindowError(got, expected, "close the gap")
        return self

    @cached_property
    def _by_uid(self) -> dict[int, Placement]:
        return {p.uid: p for p in self.placements}

    @cached_property
    def graph(self) -> "nx.DiGraph":
        """Edges run from antecedent to dependent, by what is in the tensors. An edge's `revision` is the one
        in which the dependent was last written.

        Where a chunk stands twice, its mentions among the antecedents are given out in window order. After
        reorders the graph may hold cycles: A conditioned on B before, B prefilled behind A since.
        """
        import networkx as nx  # a third of the time that a planning process takes to start

        graph = nx.DiGraph()
        graph.add_nodes_from(self._by_uid)
        copies: dict[str, list[int]] = defaultdict(list)
        for p in self.placements:
            copies[p.chunk.id].append(p.uid)
        for p in self.placements:
            mentioned: Counter[str] = Counter(p.antecedents)
            for chunk, times in mentioned.items():
                others = [uid for uid in copies.get(chunk, ()) if uid != p.uid]
                graph.add_edges_from(((uid, p.uid) for uid in others[:times]), revision=p.revision)
        return graph

    def get(self, uid: int) -> Placement | None:
        return self._by_uid.get(uid)

    def get_all(self, uids: Iterable[int]) -> list[Placement | None]:
        return list(map(self._by_uid.get, uids))

    @property
    def tokens(self) -> int:
        return sum(p.chunk.length for p in self.placements)

    @property
    def lineage(self) -> Lineage:
        """All chunk ids in order: what a chunk that is computed behind this window has seen."""
        front = EMPTY
        for p in self.placements:
            front = front.shared(p.antecedents).then(p.chunk.id)
        return front

    def in_front(self, uid: int) -> tuple[str, ...]:
        """Chunk ids that stand before this placement now."""
        self._require(uid)
        ids: list[str] = []
        for p in self.placements:
            if p.uid == uid:
                break
            ids.append(p.chunk.id)
        return tuple(ids)

    def antecedents(self, uid: int) -> tuple[int, ...]:
        """Live placements this one was conditioned on, in window order."""
        return self._ordered(self.graph.predecessors(self._require(uid)))

    def dependents(self, uid: int) -> tuple[int, ...]:
        """Live placements that were conditioned on this one, in window order."""
        return self._ordered(self.graph.successors(self._require(uid)))

    def cascade(self, uid: int) -> tuple[int, ...]:
        """Everything that a change to this placement reaches: dependents of dependents, in window order."""
        import networkx as nx

        return self._ordered(nx.descendants(self.graph, self._require(uid)))

    def stale(self) -> tuple[int, ...]:
        """Placements conditioned on something else than what stands in front; a clean view never is."""
        found: list[int] = []
        front = EMPTY
        clean: frozenset[str] = frozenset()
        for p in self.placements:
            if not p.clean and (p.antecedents != front or p.outlives(clean)):
                found.append(p.uid)
            front = front.then(p.chunk.id)
            clean = clean | {p.chunk.id} if p.clean else clean
        return tuple(found)

    def staled(self, before: "WindowGraph") -> tuple[int, ...]:
        """What an edit made stale, and whatever else happened since `before`: stale here and not there."""
        known = set(before.stale())
        return tuple(uid for uid in self.stale() if uid not in known)

    def revise(self, placements: Iterable[Placement]) -> "WindowGraph":
        return WindowGraph(placements=tuple(placements), revision=self.revision + 1)

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> "WindowGraph":
        """Inverse of to_json. Raises WindowError for anything else, and for a window that contradicts
        itself."""
        graph = read_json(cls, text, WindowError, *_WRITTEN)
        require_credible(graph)
        return graph

    def _ordered(self, uids: Iterable[int]) -> tuple[int, ...]:
        chosen = set(uids)
        return tuple(p.uid for p in self.placements if p.uid in chosen)

    def _require(self, uid: int) -> int:
        if uid not in self._by_uid:
            raise WindowError(f"uid {uid}", f"one of {sorted(self._by_uid)}", "look the uid up in placements")
        return uid
