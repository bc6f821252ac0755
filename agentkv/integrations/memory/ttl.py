"""When items of an agent's store expire.

An item's expiry is an entry of its own beside it, so that a read which refreshes it never writes over what
another process puts at that moment, and a sweep looks at nothing that does not expire.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from agentkv.errors import InvalidInput
from agentkv.store.base import Document, Key, Store

MARK = "until "
"""In front of an item's place, in the key of its expiry; no place starts like this."""
_KEYS = {"refresh_on_read", "omit_expired", "default_ttl", "sweep_interval_minutes"}


def check_ttl(minutes: object, name: str = "ttl") -> None:
    """Raises InvalidInput for anything but None and a finite number of minutes above 0."""
    if minutes is None:
        return
    number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if not number or not 0 < minutes < math.inf:  # type: ignore[operator]
        raise InvalidInput(
            got=f"{name} {minutes!r}", expected="minutes above 0", do="pass None for no expiry"
        )


def check_config(config: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a key that langgraph's TTLConfig has not, and for a time that is none."""
    if unknown := set(config) - _KEYS:
        raise InvalidInput(
            got=f"ttl keys {sorted(unknown)}", expected=f"{sorted(_KEYS)}", do="leave them out"
        )
    for name in ("default_ttl", "sweep_interval_minutes"):
        check_ttl(config.get(name), name)


class Expiries:
    """The expiries in a store beside the items of one name; each by the text of its item's place. Times are
    seconds since the epoch."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def set(self, place: str, minutes: float, now: float) -> bool:
        """Whether it was kept."""
        text = json.dumps({"minutes": minutes, "until": now + 60 * minutes})
        return self.store.put(self._key(place), Document(text.encode()))

    def drop(self, place: str) -> None:
        """The item does not expire any more."""
        self.store.drop(self._key(place))

    def refresh(self, place: str, now: float) -> None:
        """The item's time starts anew, where it has one."""
        if (told := self._told(place)) is not None:
            self.set(place, told[0], now)

    def passed(self, place: str, now: float) -> bool:
        """Whether the item's time is over."""
        told = self._told(place)
        return told is not None and told[1] <= now

    def _told(self, place: str) -> tuple[float, float] | None:
        """(minutes, until). None where it says nothing that can be read: an item then stays."""
        found = self.store.get(self._key(place))
        if found is None or not isinstance(found.entry, Document):
            return None
        told = json.loads(found.entry.text)
        return float(told["minutes"]), float(told["until"])

    def _key(self, place: str) -> Key:
        return Key("item", self.name, MARK + place)
