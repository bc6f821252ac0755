"""Entries to blobs and back: which tensors a KVBlock, a Patch or a Media is made of, and what else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

import numpy as np
import torch
from agentkv_kernels.types import Factors
from agentkv_orchestrator.chunks import digest
from pydantic import ValidationError
from torch import Tensor

from agentkv.kv import KVBlock
from agentkv.media import Features, Media, Modality
from agentkv.patches import Patch
from agentkv.patches.form import Kind as PatchKind
from agentkv.store.base import Document, Entry, Key, Origin, Stored
from agentkv.store.blob import Header, Part, Record, Source, Unreadable, check, read_header, seal
from agentkv.store.codec import RAW, Codecs, decode, encode

Tensors = dict[str, Tensor]
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dump(key: Key, stored: Stored, codecs: Codecs = RAW) -> list[memoryview]:
    """A blob as buffers to be written one behind the other. Tensors on the CPU are not copied.

    codecs: how KV and coefficients are made smaller. Raises TypeError for a dtype that has no name here.
    """
    entry, note, origin = stored
    tensors, fields, name = _apart(entry)
    tensors, packed = encode(name, tensors, codecs)
    if origin is not None:
        tensors["ids"] = torch.from_numpy(np.array(origin.ids, dtype=np.int64))
    record = Record(
        entry=cast(Any, name),
        **key._asdict(),
        hearsay=note.hearsay,
        antecedents=None if note.context is None else list(note.context.chunks),
        antecedent_tokens=0 if note.context is None else note.context.tokens,
        fingerprint=None if origin is None else origin.fingerprint,
        modality="" if origin is None else origin.modality.hex(),
        fields=fields,
        packed=packed,
    )
    parts = [Part(name, _name(x), tuple(x.shape)) for name, x in tensors.items()]
    buffers = [_bytes(x) for x in tensors.values()]
    return [memoryview(seal(record, parts, buffers)), *buffers]


def load(source: Source, key: Key, rows: KVBlock | None = None) -> Stored:
    """The entry of a blob, in memory of its own, or in ``rows`` where these are what its slots need, after
    its checksum was found right.

    Raises Unreadable: torn, checksum, version, or foreign for an entry with another key than ``key`` or an
    origin that is not what its chunk's id was made from.
    """
    header = read_header(source)
    if header.record.key != key:
        raise Unreadable("foreign", f"the entry of {header.record.key}")
    tensors = _fetch(source, header, rows)
    return _together(header, tensors)


def origin_of(source: Source, key: Key) -> Origin:
    """What a blob was computed from, without its tensors: ids that give the chunk's id, whatever else is
    wrong with it. Raises Unreadable as `load`, and for a blob that does not say."""
    header = read_header(source)
    if header.record.key != key:
        raise Unreadable("foreign", f"the entry of {header.record.key}")
    at, ids = len(header.raw), None
    for part in header.parts:
        if part.name == "ids" and part.dtype == "I64":
            ids = torch.empty(part.nbytes, dtype=torch.uint8)
            source.fill(at, [_bytes(ids)])
            ids = ids.view(torch.int64)
        at += part.nbytes
    try:
        origin = _origin(header.record, ids)
    except (ValueError, TypeError) as error:
        raise Unreadable("torn", "ids or pixels that are none") from error
    if origin is None:
        raise Unreadable("foreign", "an entry that does not say what it was computed from")
    return origin


def _fetch(source: Source, header: Header, rows: KVBlock | None) -> Tensors:
    tensors, buffers = dict[str, Tensor](), list[memoryview]()
    for part in header.parts:
        tensor = _row_slot(header.record, part, rows)
        if tensor is None:  # memory a tensor: none pins another
            tensor = torch.empty(part.nbytes, dtype=torch.uint8).view(DTYPES[part.dtype]).view(part.shape)
            buffers.append(_bytes(tensor))
        else:
            buffers += _layers(tensor)
        tensors[part.name] = tensor
    source.fill(len(header.raw), buffers)
    check(header, buffers)
    return tensors


def _layers(slot: Tensor) -> list[memoryview]:
    """The bytes of each layer's rows ``[T, H, D]``, which lie together; the layers do not."""
    whole = memoryview(cast(Any, slot.new_empty(0, dtype=torch.uint8).set_(slot.untyped_storage()).numpy()))
    first, step = (n * slot.element_size() for n in (slot.storage_offset(), slot.stride(0)))
    size = slot[0].numel() * slot.element_size()
    return [whole[at : at + size] for at in range(first, first + len(slot) * step, step)]


def _row_slot(record: Record, part: Part, rows: KVBlock | None) -> Tensor | None:
    """The slot of ``rows`` that this part of a block fits into as it is."""
    number = part.name.removeprefix("slot")
    if rows is None or record.entry != "kv" or part.name in record.packed or not number.isdecimal():
        return None
    slot = rows.slots[int(number)] if int(number) < len(rows.slots) else None
    if slot is None or slot.shape != part.shape or slot.dtype != DTYPES[part.dtype]:
        return None
    together = slot.numel() > 0 and slot.stride(0) > 0 and slot[0].is_contiguous()
    return slot if together and slot.device.type == "cpu" else None


def _together(header: Header, tensors: Tensors) -> Stored:
    record = header.record
    try:
        origin = _origin(record, tensors.pop("ids", None))
        entry = _MAKE[record.entry](decode(tensors, record.packed), record.fields)
        return Stored(entry, record.note, origin)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, ValidationError) as error:
        raise Unreadable("torn", f"tensors that make no {record.entry} ({type(error).__name__})") from error


def _origin(record: Record, ids: Tensor | None) -> Origin | None:
    if ids is None or record.fingerprint is None:
        return None
    origin = Origin(ids.numpy(), bytes.fromhex(record.modality), record.fingerprint)
    named = record.kind not in ("features", "window", "item")  # named by their pixels, and by people
    if named and digest(origin.ids, origin.fingerprint, origin.modality) != record.chunk:
        raise Unreadable("foreign", "a chunk id that its tokens do not have")
    return origin


def _apart(entry: Entry) -> tuple[Tensors, dict[str, Any], str]:
    """Tensors by name, everything else, and the name of the kind of entry."""
    if isinstance(entry, KVBlock):
        slots = {f"slot{i}": x for i, x in enumerate(entry.slots)}
        return {**slots, "positions": entry.positions}, {}, "kv"
    if isinstance(entry, Patch):
        fields = {name: getattr(entry, name) for name in ("kind", "energy", "shared", "position")}
        return dict(_factors(entry)), {**fields, "slots": len(entry.factors)}, "patch"
    if isinstance(entry, Document):
        return {"text": torch.from_numpy(np.frombuffer(entry.text, dtype=np.uint8).copy())}, {}, "document"
    deep = {f"deep{i}": x for i, x in enumerate(entry.features.deep)}
    tensors = {"pooled": entry.features.pooled, **deep}
    tensors |= {"offsets": entry.offsets, "placeholders": entry.placeholders}
    fields = {"modality": entry.modality, "digest": entry.digest.hex(), "span": entry.span}
    both = [list(span) for span in entry.both_ways]
    return tensors, {**fields, "listed": entry.features.listed, "both_ways": both}, "media"


def _factors(patch: Patch) -> Iterator[tuple[str, Tensor]]:
    for i, factors in enumerate(patch.factors):
        if factors is not None:
            yield from ((f"{name}{i}", x) for name, x in factors._asdict().items())


def _block(tensors: Tensors, _: Mapping[str, Any]) -> KVBlock:
    slots = tuple(tensors[f"slot{i}"] for i in range(len(tensors) - 1))
    positions = tensors["positions"]
    tokens = positions.numel()
    if (
        not slots
        or positions.dtype != torch.int64
        or any(s.dim() != 4 or s.shape[1] != tokens for s in slots)
    ):
        raise ValueError("slots and positions of different tokens")
    return KVBlock(slots, positions)


def _patch(tensors: Tensors, fields: Mapping[str, Any]) -> Patch:
    factors = tuple(_factor(tensors, i) for i in range(_count(fields["slots"])))
    if len(tensors) != 3 * sum(f is not None for f in factors) or fields["kind"] not in get_args(PatchKind):
        raise ValueError("tensors that belong to no slot")
    energy, shared, position = float(fields["energy"]), fields["shared"] is True, int(fields["position"])
    return Patch(factors, fields["kind"], energy, shared, position)


def _factor(tensors: Tensors, slot: int) -> Factors | None:
    """Raises ValueError for factors that do not go together: kernels trust the offsets."""
    if f"left{slot}" not in tensors:
        return None
    left, right, offsets = (tensors[f"{name}{slot}"] for name in Factors._fields)
    steps = offsets.diff()
    fits = left.dim() == right.dim() == 2 and offsets.dtype == torch.int32 and offsets.dim() == 1
    fits = fits and left.shape[1] == right.shape[0] and offsets.numel() > 1 and bool((steps >= 0).all())
    if not fits or int(offsets[0]) != 0 or int(offsets[-1]) != left.shape[1]:
        raise ValueError("factors of different ranks")
    return Factors(left, right, offsets)


def _media(tensors: Tensors, fields: Mapping[str, Any]) -> Media:
    deep = tuple(tensors[f"deep{i}"] for i in range(len(tensors) - 3))
    pooled, offsets, shown = (tensors[name] for name in ("pooled", "offsets", "placeholders"))
    fits = shown.dtype == torch.bool and shown.dim() == 1 and offsets.dim() == 2
    fits = fits and offsets.shape[1] == len(shown) and offsets.dtype == torch.int64
    fits = fits and all(x.dim() == 2 and len(x) == int(shown.sum()) for x in (pooled, *deep))
    if not fits or fields["modality"] not in get_args(Modality):
        raise ValueError("features and placeholders of different tokens")
    return Media(
        modality=fields["modality"],
        digest=bytes.fromhex(fields["digest"]),
        offsets=offsets,
        span=_count(fields["span"]),
        placeholders=shown,
        features=Features(pooled, deep, fields["listed"] is True),
        both_ways=tuple((_count(a), _count(b)) for a, b in fields["both_ways"]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("something else than a count")
    return value


def _document(tensors: Tensors, _: Mapping[str, Any]) -> Document:
    return Document(tensors["text"].numpy().tobytes())


_MAKE: dict[str, Any] = {"kv": _block, "patch": _patch, "media": _media, "document": _document}


def _name(x: Tensor) -> str:
    name = _NAMES.get(x.dtype)
    if name is None:
        raise TypeError(f"tensors of {x.dtype} have no place in a blob")
    return name


def _bytes(x: Tensor) -> memoryview:
    flat: Any = x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return memoryview(flat)
