"""What an entry of a store is called, and what is told of it: all that needs no tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentkv_orchestrator.identity import digest_of
from agentkv_orchestrator.residency import Context

Kind = Literal["canonical", "conditioned", "patch", "orbit", "removal", "features", "rows", "window", "item"]
SAVED: tuple[Kind, ...] = ("window", "item")
"""Kinds that make no room for others: someone asked to keep them. They leave when they are dropped."""

Miss = Literal["absent", "torn", "checksum", "foreign", "version", "io", "timeout"]
"""Why there was nothing: never stored or dropped since; cut short or no header; bits that changed; another
content under this key; another format; the medium failed; it did not answer in time."""

Refusal = Literal["budget", "io", "full", "timeout", "queue"]
"""Why something was not kept: it can never fit; the medium failed; no space left; no answer in time; more was
waiting to be written than may wait."""


class Key(NamedTuple):
    """kind: what is stored. chunk: chunk id (it covers token ids, pixels and the model's fingerprint); of
    features the hex digest of the pixels, of a window its name, of an item which agent's store it is in.
    context: what it was conditioned on: "" for a canonical, a context key, a set key for an orbit, or
    "before>after" for a removal; of rows, as a saved window left them, a digest of their bits; of an item,
    its namespace and key as JSON. tenant: whose it is, as `scope_of` says."""

    kind: Kind
    chunk: str
    context: str = ""
    tenant: str = ""


def scope_of(tenant: str) -> str:
    """The scope of a tenant: 40 hex digits, or "" for the one without a name."""
    return digest_of(b"agentkv tenant", (b"name", tenant.encode())) if tenant else ""


@dataclass(frozen=True)
class Note:
    """What is kept beside an entry for the planner, which sees no tensors.

    hearsay: KL of second hand in it (see `Placement`). context: the antecedents behind ``Key.context``, where
    it is a context key, so that a later plan can tell how far another context is from this one.
    """

    hearsay: float = 0.0
    context: Context | None = None


PLAIN = Note()


@dataclass
class Stats:
    """A store in figures, all since it was opened but for entries, nbytes, tenants and waiting.

    budget: bytes that `nbytes` never exceeds. misses, refused: how often, by reason. tenants: bytes of each.
    waiting: bytes accepted that still have to be written. below: of the stores behind this one.
    """

    tier: str
    budget: int
    entries: int = 0
    nbytes: int = 0
    hits: int = 0
    misses: Counter[Miss] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)
    evicted: int = 0
    tenants: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    below: tuple[Stats, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        plain = {**vars(self), "misses": dict(self.misses), "refused": dict(self.refused)}
        return plain | {"below": [stats.to_dict() for stats in self.below]}
