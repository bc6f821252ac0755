"""What a chunk's KV was computed behind: chunk ids in order, as a chain that shares its links.

The chunks of one window were computed behind its first, its first two, its first three, … Written out these
are quadratically many ids. As a chain each is the one before it and one id more, and the key of a context
follows from that of the one before it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from .errors import WindowError
from .identity import hasher

_T = TypeVar("_T")
_CONTEXT = hasher(b"agentkv context")
Runs = tuple[tuple[int, int], ...]
"""A list as stretches [first, stop) of a table of ids."""


class Lineage:
    """An immutable list of chunk ids that grows at its end by `then`. Equal keys are equal lists.

    Keys are as good as the digests of chunks: the same hash over the key before (of one length, so that the
    two parts cannot be shifted against each other) and the id.
    """

    __slots__ = ("chunk", "key", "length", "parent")

    chunk: str
    """The last id."""
    parent: "Lineage | None"
    """All before it; None for the empty list, which has no last id."""
    length: int
    key: str

    def __init__(self, parent: "Lineage | None" = None, chunk: str = "") -> None:
        self.parent = parent
        self.chunk = chunk
        self.length = 0 if parent is None else parent.length + 1
        state = _CONTEXT.copy()
        state.update((chunk if parent is None else parent.key + chunk).encode())
        self.key = state.hexdigest()

    @classmethod
    def of(cls, chunk_ids: Iterable[str]) -> "Lineage":
        """These ids; shared where they are a Lineage already."""
        return chunk_ids if isinstance(chunk_ids, Lineage) else EMPTY.extended(chunk_ids)

    def then(self, chunk: str) -> "Lineage":
        """One id more."""
        return Lineage(self, chunk)

    def shared(self, other: "Lineage") -> "Lineage":
        """The other one where the two are equal: what grows from here then shares its links."""
        return other if other == self else self

    def alike(self, chunk_ids: Sequence[str]) -> "Lineage":
        """These ids, with the links in which the two lists begin alike shared."""
        same = next((i for i, (a, b) in enumerate(zip(self, chunk_ids, strict=False)) if a != b), None)
        count = min(self.length, len(chunk_ids)) if same is None else same
        link = self
        while link.parent is not None and link.length > count:
            link = link.parent
        return link.extended(chunk_ids[count:])

    def extended(self, chunk_ids: Iterable[str]) -> "Lineage":
        """Several more."""
        last = self
        for chunk in chunk_ids:
            last = Lineage(last, chunk)
        return last

    def fold(self, known: dict[str, _T], step: Callable[[_T, "Lineage"], _T]) -> _T:
        """What `step` makes of one id after another.

        known: by key, what was made of other lists, the empty one among them. It learns what is found on the
        way, so that a list that continues another costs its new ids only.
        """
        links: list[Lineage] = []
        link = self
        while link.key not in known and link.parent is not None:
            links.append(link)
            link = link.parent
        found = known[link.key]
        for link in reversed(links):
            found = known[link.key] = step(found, link)
        return found

    def __iter__(self) -> Iterator[str]:
        chunks: list[str] = []
        link = self
        while link.parent is not None:
            chunks.append(link.chunk)
            link = link.parent
        return reversed(chunks)

    def __len__(self) -> int:
        return self.length

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Lineage) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Lineage({list(self)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """A field of this type takes a Lineage or a sequence of ids, and is written as one."""
        ids = core_schema.no_info_after_validator_function(cls.of, handler(tuple[str, ...]))
        return core_schema.union_schema(
            [core_schema.is_instance_schema(cls), ids],
            serialization=core_schema.plain_serializer_function_ser_schema(list),
        )


EMPTY = Lineage()


def pack(lineages: Iterable[Lineage]) -> tuple[list[str], list[Runs]]:
    """Every id once, and each list as runs of that table: most lists are one run, or two."""
    table: dict[str, int] = {}
    known: dict[str, Runs] = {EMPTY.key: ()}

    def longer(runs: Runs, link: Lineage) -> Runs:
        at = table.setdefault(link.chunk, len(table))
        if runs and runs[-1][1] == at:
            return (*runs[:-1], (runs[-1][0], at + 1))
        return (*runs, (at, at + 1))

    runs = [lineage.fold(known, longer) for lineage in lineages]
    return list(table), runs


def unpack(table: Sequence[str], lists: Iterable[Runs]) -> list[Lineage]:
    """Inverse of pack. Raises WindowError for a run that is not in the table."""
    known: dict[tuple[Any, ...], tuple[int, Lineage]] = {}
    found: list[Lineage] = []
    for runs in lists:
        lineage = EMPTY
        for i, (first, stop) in enumerate(runs):
            if not 0 <= first < stop <= len(table):
                expected = f"a stretch of the {len(table)} ids"
                raise WindowError(f"antecedents {first} to {stop}", expected, "write it with to_json()")
            key = (runs[:i], first)
            end, longest = known.get(key, (first, lineage))
            lineage = (
                longest.extended(table[end:stop]) if end <= stop else lineage.extended(table[first:stop])
            )
            known[key] = (stop, lineage)
        found.append(lineage)
    return found
