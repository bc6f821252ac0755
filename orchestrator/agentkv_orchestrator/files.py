"""What a plan is made from, as JSON: the wanted list and a snapshot of the store. A window writes itself."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .diff import Wanted
from .errors import PlanError, WindowError
from .lineage import Runs, pack, unpack
from .reading import read_json
from .residency import Context, FrozenResidency, Resident
from .window import WindowGraph

_WANTED = TypeAdapter(tuple[Wanted, ...])


def write_wanted(wanted: Sequence[Wanted]) -> str:
    """A wanted window, in order."""
    return _WANTED.dump_json(tuple(wanted)).decode()


def read_wanted(text: str) -> list[Wanted]:
    """Inverse of `write_wanted`; a window that was written out asks for what stands in it. Raises WindowError
    for anything else."""
    if text.lstrip().startswith("{"):
        placements = WindowGraph.from_json(text).placements
        return [Wanted(uid=p.uid, chunk=p.chunk, clean=p.clean, pinned=p.pinned) for p in placements]
    expected = "the JSON of a list of wanted chunks, or of a WindowGraph"
    return list(read_json(tuple[Wanted, ...], text, WindowError, expected, "write it with write_wanted()"))


class _Context(BaseModel):
    """A context with its antecedents as runs of the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chunks: Runs
    tokens: int = Field(ge=0)


class _Residency(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    residents: dict[str, Resident]
    ids: tuple[str, ...] = ()
    contexts: dict[str, _Context] = {}


def write_residency(held: FrozenResidency) -> str:
    """What is stored, by chunk, and what the context keys stand for; each chunk id once."""
    contexts = held.contexts()
    ids, lists = pack(context.chunks for context in contexts.values())
    data = _Residency(
        residents={chunk: held.of(chunk) for chunk in sorted(held.known())},
        ids=tuple(ids),
        contexts={
            key: _Context(chunks=runs, tokens=context.tokens)
            for (key, context), runs in zip(contexts.items(), lists, strict=True)
        },
    )
    return data.model_dump_json()


def read_residency(text: str) -> FrozenResidency:
    """Inverse of `write_residency`. Raises PlanError for anything else, and for a context under another key
    than its own; WindowError for antecedents that are not in the table."""
    do = "write it with write_residency()"
    data = read_json(_Residency, text, PlanError, "the JSON of a residency", do)
    lineages = unpack(data.ids, (context.chunks for context in data.contexts.values()))
    contexts: dict[str, Context] = {}
    for (key, context), chunks in zip(data.contexts.items(), lineages, strict=True):
        if chunks.key != key:
            raise PlanError(f"a context of {len(chunks)} chunks under key {key}", f"key {chunks.key}", do)
        contexts[key] = Context(chunks=chunks, tokens=context.tokens)
    return FrozenResidency(data.residents, contexts)


def read_names(text: str) -> dict[int, str]:
    """What people call placements, by uid. Raises PlanError for anything but a JSON object of strings."""
    names: dict[int, str] = read_json(
        dict[int, str], text, PlanError, "a JSON object of names by uid", 'write {"1": "system"}'
    )
    return names


def write_names(names: dict[int, str]) -> str:
    """Inverse of `read_names`."""
    data: Any = TypeAdapter(dict[int, str]).dump_json(names)
    return str(data.decode())
