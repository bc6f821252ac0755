"""Which items a filter lets through, and which namespaces a condition: langgraph's rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.store.base import MatchCondition

from agentkv.errors import InvalidInput

_EQUAL: dict[str, Callable[[Any, Any], bool]] = {"$eq": operator.eq, "$ne": operator.ne}
_ORDERED: dict[str, Callable[[float, float], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def check_filter(wanted: Mapping[str, Any]) -> None:
    """Raises InvalidInput for an operator that is none, and for an order by something that is no number."""
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) for name in wanted):
        raise InvalidInput(
            got=f"a filter {wanted!r}",
            expected="a mapping from field to value, or to operators",
            do='write {"status": "open"} or {"size": {"$gt": 3}}',
        )
    for name, value in wanted.items():
        if name in _ORDERED and _number(value) is None:
            raise InvalidInput(got=f"{name} {value!r}", expected="a number", do="compare with a number")
        if name.startswith("$") and name not in _ORDERED and name not in _EQUAL:
            raise InvalidInput(
                got=f"the operator {name!r}", expected=", ".join((*_EQUAL, *_ORDERED)), do="use one of these"
            )
        if isinstance(value, Mapping):
            check_filter(value)


def passes(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether every field of the filter agrees with the value's; a field that is not there is None, and in no
    order with anything."""
    return all(_agrees(value.get(name), what) for name, what in (wanted or {}).items())


def _agrees(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_holds(value, name, what) for name, what in wanted.items())
        return isinstance(value, Mapping) and passes(value, wanted)
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(map(_agrees, value, wanted))
    return bool(value == wanted)


def _holds(value: Any, name: str, wanted: Any) -> bool:
    if name in _EQUAL:
        return _EQUAL[name](value, wanted)
    left, right = _number(value), _number(wanted)
    return left is not None and right is not None and _ORDERED[name](left, right)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a namespace starts, or ends, with a path; "*" stands for any one label."""
    path = condition.path
    if len(namespace) < len(path):
        return False
    first = 0 if condition.match_type == "prefix" else len(namespace) - len(path)
    part = namespace[first : first + len(path)]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))
