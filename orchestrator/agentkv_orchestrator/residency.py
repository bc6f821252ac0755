"""What the store holds for a chunk. The session asks the store and passes the answer into the planner."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from .lineage import Lineage


class Held(NamedTuple):
    """Where one entry is, and its size there. tier: the name of the store nearest to the model with it."""

    tier: str
    bytes: int


class Resident(BaseModel):
    """KV and corrections held for one chunk; keys come from context_key and set_key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int = Field(default=0, ge=0)
    """Length of the chunk, 0 where the store cannot tell. Prices idle work on chunks out of the window."""
    canonical: bool = False
    conditioned: frozenset[str] = frozenset()
    """Contexts whose exact conditioned KV is stored."""
    patches: frozenset[str] = frozenset()
    """Contexts with a patch on the canonical."""
    orbits: frozenset[str] = frozenset()
    """Antecedent sets with a patch that serves every order of the set."""
    removals: frozenset[str] = frozenset()
    """Context changes, as removal_key, with a patch on the conditioned KV."""
    hearsay: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """By any of the keys above: KL of second hand in what is stored there (see `Placement`); 0 if absent."""

    where: dict[str, dict[str, Held]] = Field(default_factory=dict)
    """By kind ("canonical", "conditioned", "patch", ...) and key; "" is a canonical's. Absent where the store
    does not say."""

    @field_serializer("conditioned", "patches", "orbits", "removals")
    def _in_order(self, keys: frozenset[str]) -> list[str]:
        """Equal residents are written alike."""
        return sorted(keys)

    @property
    def empty(self) -> bool:
        return not (self.canonical or self.conditioned or self.patches or self.orbits or self.removals)


NOTHING = Resident()


class Context(BaseModel):
    """What a context key stands for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chunks: Lineage
    """Antecedents in order."""
    tokens: int = Field(ge=0)


def removal_key(before: str, after: str) -> str:
    """Key of a removal patch: from one context key to another."""
    return f"{before}>{after}"


class Residency(Protocol):
    """A snapshot of the store; pure look-ups, no input or output."""

    def of(self, chunk_id: str) -> Resident:
        """What is held for a chunk; an empty Resident when nothing is."""

    def known(self) -> Iterable[str]:
        """Chunk ids that something is held for."""

    def context(self, key: str) -> Context | None:
        """The antecedents behind a context key, where they are remembered."""


class FrozenResidency:
    """A residency from mappings, copied: residents by chunk id, contexts by context key."""

    def __init__(
        self,
        residents: Mapping[str, Resident] = MappingProxyType({}),
        contexts: Mapping[str, Context] = MappingProxyType({}),
    ) -> None:
        self._residents = dict(residents)
        self._contexts = dict(contexts)

    def of(self, chunk_id: str) -> Resident:
        return self._residents.get(chunk_id, NOTHING)

    def known(self) -> Iterable[str]:
        return self._residents.keys()

    def context(self, key: str) -> Context | None:
        return self._contexts.get(key)

    def contexts(self) -> dict[str, Context]:
        """All that is remembered of context keys."""
        return dict(self._contexts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenResidency):
            return NotImplemented
        return (self._residents, self._contexts) == (other._residents, other._contexts)

    __hash__ = None  # type: ignore[assignment]
