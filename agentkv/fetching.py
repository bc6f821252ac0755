"""What a plan takes from the store, all of it or nothing: found out before a row changes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from agentkv_orchestrator.plan import ApplyOrbit, ApplyPatch, ApplyRemoval, Load, Op, PlaceCanonical
from agentkv_orchestrator.residency import removal_key

from agentkv.errors import NothingStored
from agentkv.kv import KVBlock
from agentkv.layout import Layout
from agentkv.patches import Patch
from agentkv.store.base import Entry, Key, Stored
from agentkv.store.shelf import Shelf


def key_of(op: Op) -> Key | None:
    """What the op takes from the store to fill rows; None for one that takes nothing."""
    match op:
        case Load():
            return Key("conditioned", op.chunk, op.context)
        case PlaceCanonical():
            return Key("canonical", op.chunk)
        case ApplyPatch():
            return Key("patch", op.chunk, op.context)
        case ApplyOrbit():
            return Key("orbit", op.chunk, op.antecedent_set)
        case ApplyRemoval():
            return Key("removal", op.chunk, removal_key(op.before, op.after))
    return None


def fetch(shelf: Shelf, layout: Layout, device: torch.device, wanted: Mapping[Key, int]) -> dict[Key, Stored]:
    """All of these entries, by key with the tokens of their chunks, on ``device``. Raises NothingStored
    naming all that are missing or do not fit this model."""
    found = {key: stored for key in wanted if (stored := shelf.get(key)) is not None}
    for key, stored in tuple(found.items()):
        if isinstance(stored.entry, KVBlock) and not _fits(stored.entry, layout, wanted[key]):
            shelf.refuse(key)
            del found[key]
    missing = tuple(key for key in wanted if key not in found)
    if missing:
        names = ", ".join(f"{key.kind} of chunk {key.chunk[:8]}" for key in missing[:3])
        raise NothingStored(
            got=f"{len(missing)} entries missing in the store, among them the {names}",
            expected="what the plan was made with",
            do="plan again: the store dropped it in between",
            keys=missing,
        )
    return {key: stored._replace(entry=_on(stored, device)) for key, stored in found.items()}


def block_of(stored: Stored) -> KVBlock:
    assert isinstance(stored.entry, KVBlock)  # the shelf gives nothing else under these keys
    return stored.entry


def patch_of(stored: Stored) -> Patch:
    assert isinstance(stored.entry, Patch)  # the shelf gives nothing else under these keys
    return stored.entry


def _on(stored: Stored, device: torch.device) -> Entry:
    entry = stored.entry
    return entry.to(device) if isinstance(entry, KVBlock | Patch) else entry


def _fits(block: KVBlock, layout: Layout, tokens: int) -> bool:
    wanted = [(layout.layers, tokens, s.heads, s.dim) for s in layout.slots]
    return [tuple(s.shape) for s in block.slots] == wanted and len(block.positions) == tokens
