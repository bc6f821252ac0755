"""Who is who in a window that is only known by content."""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence


def match(live: Sequence[tuple[int, str]], wanted_chunk_ids: Sequence[str], next_uid: int) -> list[int]:
    """Uids for a window that is only known by content, such as a message list or an edited text.

    live: (uid, chunk id) in window order. A longest common subsequence keeps its uids, so what did not move
    is recognised first; what is left is paired by content in order; the rest gets next_uid, next_uid + 1, …
    """
    uids: list[int | None] = [None] * len(wanted_chunk_ids)
    for i, j in _common_subsequence([chunk for _, chunk in live], wanted_chunk_ids):
        uids[j] = live[i][0]
    used = set(uids)
    spare: dict[str, deque[int]] = defaultdict(deque)
    for uid, chunk in live:
        if uid not in used:
            spare[chunk].append(uid)
    for j, chunk_id in enumerate(wanted_chunk_ids):
        if uids[j] is None and spare[chunk_id]:
            uids[j] = spare[chunk_id].popleft()
    fresh = iter(range(next_uid, next_uid + len(uids)))
    return [next(fresh) if uid is None else uid for uid in uids]


_Link = tuple[int, int, "_Link | None"]
"""A pair of indices and the pairs before it."""


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence (Hunt and Szymanski 1977).

    ends[k] is the least index in b at which a common subsequence of k + 1 items may end. Most ids are rare,
    so there are few places to try.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for j in reversed(range(len(b))):
        places[b[j]].append(j)
    ends: list[int] = []
    links: list[_Link] = []
    for i, item in enumerate(a):
        for j in places.get(item, ()):  # from the back, so that one i is not paired twice
            k = bisect_left(ends, j)
            link = (i, j, links[k - 1] if k else None)
            ends[k : k + 1], links[k : k + 1] = [j], [link]
    pairs: list[tuple[int, int]] = []
    last = links[-1] if links else None
    while last is not None:
        pairs.append(last[:2])
        last = last[2]
    return pairs[::-1]
