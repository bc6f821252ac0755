"""An item of an agent's store as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Literal, NamedTuple

from langgraph.store.base import Item, SearchItem, get_text_at_path
from pydantic import BaseModel, ConfigDict, ValidationError

from agentkv.errors import BadStore, InvalidInput, NotJSON
from agentkv.store.base import Document

WHOLE = "$"
"""The path of all of a value."""


class Place(NamedTuple):
    """Where an item is: a namespace, and a key in it."""

    namespace: tuple[str, ...]
    key: str

    @property
    def text(self) -> str:
        """As JSON, the key last."""
        return json.dumps([*self.namespace, self.key], separators=(",", ":"))


def place_of(text: str) -> Place:
    """The inverse of `Place.text`."""
    *namespace, key = json.loads(text)
    return Place(tuple(namespace), key)


class Saved(BaseModel):
    """An item as it is stored. index: the paths by which it can be found; None for the store's, False for
    none. vectors: what an embedding model made of them, by path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    index: Literal[False] | list[str] | None = None
    vectors: dict[str, list[float]] = {}

    @property
    def item(self) -> Item:
        return Item(**self._shown())

    def found(self, score: float | None) -> SearchItem:
        return SearchItem(**self._shown(), score=score)

    def _shown(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in Item.__slots__}

    def document(self) -> Document:
        """ASCII, since JSON escapes what UTF-8 has no bytes for."""
        told = vars(self) | {name: getattr(self, name).isoformat() for name in ("created_at", "updated_at")}
        return Document(json.dumps(told, allow_nan=False, separators=(",", ":")).encode())

    def text(self, fields: Sequence[str]) -> str:
        """What can be found of it by words; of a whole value, not the names of its fields. fields: the
        store's paths."""
        value = self.value
        parts = (_written(value) if p == WHOLE else get_text_at_path(value, p) for p in self.paths(fields))
        return " ".join(chain.from_iterable(parts))

    def paths(self, fields: Sequence[str]) -> Sequence[str]:
        """The paths by which it can be found. fields: the store's."""
        return () if self.index is False else fields if self.index is None else self.index


def read(place: Place, entry: object) -> Saved:
    """The item that a store's entry is. Raises BadStore for anything else."""
    try:
        saved = Saved.model_validate(json.loads(entry.text)) if isinstance(entry, Document) else None
    except (ValidationError, ValueError, RecursionError):
        saved = None
    if saved is None or (saved.namespace, saved.key) != place:
        raise BadStore(
            got=f"something under {place.namespace} {place.key!r} that is no item of this format",
            expected="what AgentKVStore.put wrote",
            do="delete it, or open it with the version of agentkv that wrote it",
        )
    return saved


def plain(value: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A value as JSON gives it back. Raises NotJSON where that is not what went in, InvalidInput where it is
    longer than ``most`` bytes."""
    try:
        given = dict(value)
        text = json.dumps(given, allow_nan=False, separators=(",", ":"))
        back: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(value, str(error)) from error
    if back != given:  # a tuple comes back as a list, and the key 1 as "1"
        raise _not_json(value, "a tuple, or a key that is no str")
    if len(text) > most:
        raise InvalidInput(
            got=f"a value of {len(text)} bytes",
            expected=f"{most} at most",
            do="put less, or raise item_bytes",
        )
    return back


def _not_json(value: object, why: str) -> NotJSON:
    return NotJSON(
        got=f"a {type(value).__name__} that JSON does not give back as it is ({why[:100]})",
        expected="a mapping of str to str, int, float, bool, None, lists and dicts of these",
        do="convert it first, say with model_dump(mode='json')",
    )


def texts(value: Mapping[str, Any], paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is embedded of a value: each text under these paths, with its path (several are
    numbered)."""
    for path in paths:
        found = get_text_at_path(value, path)
        for number, text in enumerate(found):
            yield (path if len(found) == 1 else f"{path}.{number}"), text


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _written(inner)
    elif value is not None:
        yield str(value)
