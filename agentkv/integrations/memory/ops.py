"""A batch of langgraph's store ops, found in order as a whole before any of it is carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    SearchOp,
)

from agentkv.errors import InvalidInput, NotJSON
from agentkv.integrations.memory import items
from agentkv.integrations.memory.items import Place
from agentkv.integrations.memory.matching import check_filter
from agentkv.integrations.memory.ttl import check_ttl


@dataclass(frozen=True)
class Put:
    """What is put at a place: the value as JSON gives it back, and by what it is found. value: None
    deletes."""

    op: PutOp
    value: dict[str, Any] | None

    def embedded(self, fields: Sequence[str]) -> list[tuple[str, str]]:
        """Paths and texts that an embedding model sees. fields: the store's paths."""
        paths = () if self.op.index is False else fields if self.op.index is None else self.op.index
        return [] if self.value is None else list(items.texts(self.value, paths))


@dataclass(frozen=True)
class Batch:
    """puts: the last one of each place."""

    ops: Sequence[Op]
    puts: Mapping[Place, Put]

    def texts(self, fields: Sequence[str]) -> list[str]:
        """What an embedding model has to see, each once. fields: the store's paths."""
        every = (text for put in self.puts.values() for _, text in put.embedded(fields))
        return list(dict.fromkeys(every))

    def queries(self) -> list[str]:
        """What is searched for, each once."""
        return list(dict.fromkeys(op.query for op in self.ops if isinstance(op, SearchOp) and op.query))


def checked(ops: Iterable[Op], item_bytes: int) -> Batch:
    """item_bytes: most of a value as JSON. Raises InvalidNamespaceError, NotJSON, InvalidInput."""
    listed, puts = list(ops), dict[Place, Put]()
    for op in listed:
        _check(op)
        if isinstance(op, PutOp):
            value = None if op.value is None else items.plain(op.value, item_bytes)
            puts[Place(tuple(op.namespace), op.key)] = Put(op, value)
    return Batch(listed, puts)


def _check(op: Op) -> None:
    if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
        raise InvalidInput(got=f"{op!r}", expected="an op of langgraph.store.base", do="pass one")
    for label in _labels(op):
        if not isinstance(label, str) or not label or "." in label or "\x00" in label:
            raise InvalidNamespaceError(
                f"got the label {label!r}; expected a str with no '.' and no NUL in it"
            )
    if isinstance(op, GetOp | PutOp) and not isinstance(op.key, str):
        raise InvalidInput(got=f"the key {op.key!r}", expected="a str", do="pass str(key)")
    if isinstance(op, PutOp) and op.value is not None:
        _check_put(op)
    if isinstance(op, SearchOp):
        check_filter(op.filter or {})
    if isinstance(op, SearchOp | ListNamespacesOp) and min(op.limit, op.offset) < 0:
        raise InvalidInput(
            got=f"limit {op.limit}, offset {op.offset}", expected="0 or more", do="leave them out"
        )
    if isinstance(op, ListNamespacesOp):
        _check_listing(op)


def _labels(op: Op) -> Iterable[object]:
    if isinstance(op, GetOp | PutOp):
        return op.namespace
    if isinstance(op, SearchOp):
        return op.namespace_prefix
    return (label for condition in op.match_conditions or () for label in condition.path)


def _check_put(op: PutOp) -> None:
    if not op.namespace or op.namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f'got {op.namespace}; expected a label or more, the first not "langgraph"'
        )
    if not isinstance(op.value, Mapping):
        raise NotJSON(got=f"a {type(op.value).__name__}", expected="a mapping", do="wrap it: {'text': ...}")
    index: Any = op.index
    listed = isinstance(index, list | tuple) and all(isinstance(path, str) for path in index)
    if index is not None and index is not False and not listed:
        raise InvalidInput(got=f"index {index!r}", expected="None, False or a list of paths", do="pass one")
    check_ttl(op.ttl)


def _check_listing(op: ListNamespacesOp) -> None:
    known = all(c.match_type in ("prefix", "suffix") for c in op.match_conditions or ())
    if not known or (op.max_depth is not None and op.max_depth < 1):
        raise InvalidInput(
            got=f"conditions {op.match_conditions}, max_depth {op.max_depth}",
            expected="prefix or suffix, and a depth above 0",
            do="leave out what is not wanted",
        )
