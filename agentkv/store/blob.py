"""One entry as bytes: a safetensors file whose header says what it is, with a checksum over all of it.

Eight bytes of length, a JSON header, the tensors without a gap: any safetensors reader opens it. The header's
metadata are "checksum" (xxh3-128 over header and tensors, its own 32 digits taken as zeros) and "agentkv", a
`Record`. Nothing is allocated before the sizes in the header were found to add up to the size that is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from agentkv_orchestrator.errors import OrchestratorError
from agentkv_orchestrator.residency import Context
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from xxhash import xxh3_128

from agentkv.store.key import Key, Kind, Miss, Note

FORMAT = 1
"""Version of this layout. Readers refuse every other one."""
HEADER_LIMIT = 4 << 20
"""Bytes of the longest header that is read: a context of 40 thousand chunks."""
_OPENING = b'{"__metadata__":{"checksum":"'
_ZEROS = b"0" * 32
_STEP = 8 << 20
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class Unreadable(Exception):
    """Bytes that are no whole entry of this format. reason: what a store counts it as."""

    def __init__(self, reason: Miss, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Packed(BaseModel):
    """How one tensor was made smaller: codec, and the dtype (torch's name) to give back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    codec: str
    dtype: str


class Record(BaseModel):
    """What a blob says of itself. modality: hex. antecedents: of `Note.context`, None without one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int = FORMAT
    entry: Literal["kv", "patch", "media", "document"]
    kind: Kind
    chunk: str
    context: str
    tenant: str
    hearsay: float = Field(ge=0, allow_inf_nan=False)
    antecedents: list[str] | None = None
    antecedent_tokens: int = Field(default=0, ge=0)
    fingerprint: str | None = None
    modality: str = ""
    fields: dict[str, Any] = Field(default_factory=dict)
    packed: dict[str, Packed] = Field(default_factory=dict)

    @property
    def key(self) -> Key:
        return Key(self.kind, self.chunk, self.context, self.tenant)

    @property
    def note(self) -> Note:
        if self.antecedents is None:
            return Note(self.hearsay)
        chunks: Any = self.antecedents
        return Note(self.hearsay, Context(chunks=chunks, tokens=self.antecedent_tokens))


class Part(NamedTuple):
    """One tensor of a blob. dtype: as safetensors spells it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Header(NamedTuple):
    """raw: as it lies in front of the tensors, length included. parts: in the order of their bytes."""

    raw: bytes
    record: Record
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole blob."""
        return len(self.raw) + sum(part.nbytes for part in self.parts)


class Source(Protocol):
    """Bytes that may be read at any place."""

    size: int

    def fill(self, at: int, buffers: Sequence[memoryview]) -> None:
        """Fill these buffers with the bytes from ``at`` on. Raises Unreadable when there are fewer."""
        ...


class Bytes:
    """A blob in memory as a `Source`."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        self.size = len(self.data)

    def fill(self, at: int, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            if at + len(buffer) > self.size:
                raise Unreadable("torn", f"{self.size} bytes")
            buffer[:] = self.data[at : at + len(buffer)]
            at += len(buffer)


def seal(record: Record, parts: Sequence[Part], buffers: Sequence[memoryview]) -> bytes:
    """The header of a blob of these tensors, whose bytes are ``buffers``."""
    entries: dict[str, Any] = {}
    at = 0
    for part in parts:
        entries[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [at, at + part.nbytes],
        }
        at += part.nbytes
    metadata = {"checksum": _ZEROS.decode(), "agentkv": record.model_dump_json(exclude_none=True)}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of 8
    digest = xxh3_128(len(text).to_bytes(8, "little") + text)
    for buffer in buffers:
        digest.update(buffer)
    start = len(_OPENING)
    sealed = text[:start] + digest.hexdigest().encode() + text[start + len(_ZEROS) :]
    return len(text).to_bytes(8, "little") + sealed


def read_header(source: Source) -> Header:
    """The header, its sizes checked against those of the source. Raises Unreadable; the checksum is not
    looked at."""
    length = int.from_bytes(_take(source, 0, 8), "little")
    if not len(_OPENING) < length <= min(HEADER_LIMIT, source.size - 8):
        raise Unreadable("torn", f"a header of {length} bytes in {source.size}")
    raw = _take(source, 0, 8 + length)
    try:
        if not raw.startswith(_OPENING, 8):
            raise ValueError("no checksum")
        entries = json.loads(raw[8:])
        told = json.loads(entries.pop("__metadata__")["agentkv"])
        if told["format"] != FORMAT:
            raise Unreadable("version", f"format {told['format']!r}, this reads {FORMAT}")
        header = Header(raw, Record.model_validate(told), tuple(_parts(entries)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Unreadable("torn", f"no header of an entry ({type(error).__name__})") from error
    if header.nbytes != source.size:
        raise Unreadable("torn", f"{source.size} bytes where the header wants {header.nbytes}")
    return header


def check(header: Header, buffers: Sequence[memoryview]) -> None:
    """Raises Unreadable unless the tensors' bytes are those that were sealed."""
    digest = _begun(header)
    for buffer in buffers:
        digest.update(buffer)
    _same(header, digest)


def verify(source: Source) -> Header:
    """Read all of a blob, in steps of 8 MiB, and compare the checksum. Raises Unreadable."""
    header = read_header(source)
    digest, at = _begun(header), len(header.raw)
    step = memoryview(bytearray(min(_STEP, source.size - at)))
    while at < source.size:
        part = step[: min(len(step), source.size - at)]
        source.fill(at, [part])
        digest.update(part)
        at += len(part)
    _same(header, digest)
    _read(header)
    return header


def _begun(header: Header) -> xxh3_128:
    start = 8 + len(_OPENING)
    return xxh3_128(header.raw[:start] + _ZEROS + header.raw[start + len(_ZEROS) :])


def _same(header: Header, digest: xxh3_128) -> None:
    start = 8 + len(_OPENING)
    if header.raw[start : start + len(_ZEROS)] != digest.hexdigest().encode():
        raise Unreadable("checksum", "other bits than were written")


def _read(header: Header) -> None:
    """Raises Unreadable for a note that cannot be taken in."""
    try:
        _ = header.record.note
    except (ValidationError, OrchestratorError) as error:
        raise Unreadable("torn", "a note that contradicts itself") from error


def _take(source: Source, at: int, count: int) -> bytes:
    data = bytearray(count)
    source.fill(at, [memoryview(data)])
    return bytes(data)


def _parts(entries: dict[str, Any]) -> Iterator[Part]:
    """The tensors in the order of their bytes. Raises ValueError, KeyError or TypeError for anything odd."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        shape = tuple(entry["shape"])
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("a shape of something else than counts")
        part = Part(name, entry["dtype"], shape)
        if entry["data_offsets"] != [end, end + part.nbytes]:
            raise ValueError("a gap between tensors")
        end += part.nbytes
        yield part
