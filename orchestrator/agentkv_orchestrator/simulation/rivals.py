"""What others do with the same trace: prefill everything, share prefixes, or move K over deletions.

Their times come from the same cost table. What stands in a window is free to all; what a store holds besides
has the same budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ..cost import CostTable
from ..lineage import EMPTY, Lineage
from ..trace import Message, Turn
from .account import Account
from .shape import Shape


def computed(costs: CostTable, messages: Sequence[Message], first: int = 0) -> float:
    """Milliseconds of one forward over the messages from `first` on, behind those in front of them."""
    ms = costs.of("prefill").base if first < len(messages) else 0.0
    rows = sum([m.tokens for m in messages[:first]])
    for m in messages[first:]:
        ms += costs.of("prefill").more(m.tokens, rows)
        rows += m.tokens
    return ms


class Reprefill:
    """Every turn is computed from nothing."""

    def __init__(self, costs: CostTable, account: Account) -> None:
        self._costs, self._account = costs, account

    def step(self, turn: Turn) -> None:
        self._account.recomputed += turn.tokens
        self._account.ms += computed(self._costs, turn.messages)
        self._account.kl.append(0.0)


class PrefixCache:
    """The longest prefix that any request had and that is still there is reused, across windows.

    As in vLLM and SGLang: a tree of prefixes, least recently used leaves first. Prefixes of the last request
    of each window are live and take nothing of the budget.
    """

    def __init__(self, costs: CostTable, shape: Shape, budget: int, account: Account) -> None:
        self._costs, self._shape, self._budget, self._account = costs, shape, budget, account
        self._idle: OrderedDict[str, int] = OrderedDict()  # bytes by key of the prefix, oldest first
        self._live: dict[str, list[tuple[str, int]]] = {}  # by window
        self._users: dict[str, int] = {}  # by key: windows whose last request has it
        self._nbytes = 0

    def step(self, turn: Turn) -> None:
        said = [*turn.messages, *([turn.answer] if turn.answer else [])]
        path: list[tuple[str, int]] = []
        link: Lineage = EMPTY
        hit = 0
        for i, m in enumerate(said):
            link = link.then(m.id)
            path.append((link.key, self._shape.kv(m.tokens)))
            if hit == i < len(turn.messages) and (link.key in self._users or link.key in self._idle):
                hit += 1
        reused = sum([m.tokens for m in turn.messages[:hit]])
        self._account.reused += reused
        self._account.recomputed += turn.tokens - reused
        self._account.ms += computed(self._costs, turn.messages, hit)
        self._account.kl.append(0.0)
        self._stand(turn.window, path)

    def _stand(self, window: str, path: list[tuple[str, int]]) -> None:
        before, self._live[window] = self._live.get(window, []), path
        for key, _ in path:
            self._users[key] = self._users.get(key, 0) + 1
            self._nbytes -= self._idle.pop(key, 0)
        for key, nbytes in reversed(before):  # leaves are older than what they hang on
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._idle[key] = nbytes
                self._nbytes += nbytes
                self._account.written_bytes += nbytes
        while self._nbytes > self._budget:
            self._nbytes -= self._idle.popitem(last=False)[1]
            self._account.evicted += 1
        self._account.peak_bytes = max(self._account.peak_bytes, self._nbytes)


def deletions(live: Sequence[tuple[int, str]], wanted: Sequence[str], next_uid: int) -> list[int]:
    """Which live placements llama.cpp's ``n_cache_reuse`` finds again: behind the common prefix, it walks the
    old window once and takes what matches the next of the new one, so that only deletions are survived."""
    uids: list[int] = []
    at = 0
    for chunk in wanted:
        ahead = at
        while ahead < len(live) and live[ahead][1] != chunk:
            ahead += 1
        if ahead == len(live):
            break  # neither this one nor anything behind it is found
        uids.append(live[ahead][0])
        at = ahead + 1
    return [*uids, *range(next_uid, next_uid + len(wanted) - len(uids))]
