"""From the live window to the wanted one: what each chunk has lost and gained in front of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from .chunks import Chunk
from .errors import WindowError
from .residency import FrozenResidency, Residency
from .window import Placement, WindowGraph

Kind = Literal["kept", "survivor", "reordered", "recalled", "new", "dropped"]


class Wanted(BaseModel):
    """A chunk of the window to come; a uid that is live already asks for that placement again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uid: int
    chunk: Chunk
    clean: bool = False
    pinned: bool = False


class Change(BaseModel):
    """What happens to one placement's context: what is in its tensor against what will stand in front."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uid: int
    chunk: Chunk
    kind: Kind
    context: str = ""
    """Key of the stored context that is compared; empty for a live chunk."""
    lost: tuple[str, ...] = ()
    """Antecedents in the tensor that are in the window no more."""
    lost_tokens: int = 0
    gained: tuple[str, ...] = ()
    """Chunks that came to stand in front and that the tensor has not seen."""
    gained_tokens: int = 0
    reordered: bool = False
    """Antecedents stand in another order, or behind the chunk, or something computed behind it in front."""
    hole: bool = False
    """An antecedent left from behind one that stayed."""


def require_wanted(graph: WindowGraph, wanted: Sequence[Wanted]) -> None:
    """Raises WindowError when a uid is asked for twice or names another chunk than the live one."""
    counts = Counter(w.uid for w in wanted)
    for w in wanted:
        live = graph.get(w.uid)
        if counts[w.uid] > 1:
            raise WindowError(f"uid {w.uid} twice", "each uid once", "place a copy under a fresh uid")
        if live is not None and live.chunk.id != w.chunk.id:
            got = f"chunk {w.chunk.id} for uid {w.uid}"
            raise WindowError(got, f"chunk {live.chunk.id}", "give edited content a fresh uid")


def diff(graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency | None = None) -> list[Change]:
    """One Change per wanted chunk, in order, then one per dropped placement. Raises WindowError."""
    require_wanted(graph, wanted)
    held = residency or FrozenResidency()
    changes: list[Change] = []
    for i, w in enumerate(wanted):
        live = graph.get(w.uid)
        if live is None:
            kind: Kind = "new" if held.of(w.chunk.id).empty else "recalled"
            changes.append(Change(uid=w.uid, chunk=w.chunk, kind=kind))
        else:
            changes.append(compare(graph, live, wanted, i))
    asked = {w.uid for w in wanted}
    gone = (p for p in graph.placements if p.uid not in asked)
    return changes + [Change(uid=p.uid, chunk=p.chunk, kind="dropped") for p in gone]


def compare(graph: WindowGraph, live: Placement, wanted: Sequence[Wanted], at: int) -> Change:
    """What the KV of `live` (in the window, or as it was stored) would miss as the chunk wanted[at]."""
    front, behind = [] if wanted[at].clean else wanted[:at], wanted[at + 1 :]
    before, after = live.antecedents, tuple(w.chunk.id for w in front)
    if before == after:
        return Change(uid=live.uid, chunk=live.chunk, kind="kept")
    missing, unseen = _minus(before, after), _minus(after, before)
    # Whatever changed sides is a matter of order: each of the two has been read with the other in view.
    lost = _minus(missing, (w.chunk.id for w in behind))
    suspects = (w for w in front if w.chunk.id in unseen)
    gained = _minus(unseen, (w.chunk.id for w in suspects if _has_seen(graph.get(w.uid), live.chunk)))
    length = {w.chunk.id: w.chunk.length for w in (*front, *behind)}
    reordered = lost != missing or gained != unseen or _minus(before, missing) != _minus(after, unseen)
    return Change(
        uid=live.uid,
        chunk=live.chunk,
        kind="reordered" if reordered else "survivor",
        lost=lost,
        lost_tokens=live.antecedent_tokens - sum(length[a] for a in _minus(before, lost)),
        gained=gained,
        gained_tokens=sum(length[a] for a in gained),
        reordered=reordered,
        # Leaving from the front shifts everyone alike; leaving from behind a survivor tears a hole.
        hole=before[: len(lost)] != lost,
    )


def _has_seen(p: Placement | None, chunk: Chunk) -> bool:
    return p is not None and chunk.id in p.antecedents


def _minus(items: Sequence[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Multiset difference that keeps order; of equal items the first ones are taken."""
    if not items:
        return ()  # the usual case: what is taken need not even be listed
    left = Counter(taken)
    rest: list[str] = []
    for item in items:
        if left[item] > 0:
            left[item] -= 1
        else:
            rest.append(item)
    return tuple(rest)


def in_words(change: Change) -> str:
    """What left, came or moved, for people."""
    parts = [
        f"{count(change.lost)} left" if change.lost else "",
        f"{count(change.gained)} came" if change.gained else "",
        "the order changed" if change.reordered else "",
    ]
    return ", ".join(part for part in parts if part)


def count(chunk_ids: tuple[str, ...]) -> str:
    """How many, in words."""
    return f"{len(chunk_ids)} chunk{'' if len(chunk_ids) == 1 else 's'}"


def match(live: Sequence[tuple[int, str]], wanted_chunk_ids: Sequence[str], next_uid: int) -> list[int]:
    """Uids for a window that is only known by content, such as a message list or an edited text.

    live: (uid, chunk id) in window order. The longest common subsequence keeps its uids, so what did not move
    is recognised first; what is left is paired by content in order; the rest gets next_uid, next_uid + 1, …
    """
    uids: list[int | None] = [None] * len(wanted_chunk_ids)
    for i, j in _common_subsequence([chunk for _, chunk in live], wanted_chunk_ids):
        uids[j] = live[i][0]
    used = set(uids)
    spare = [(uid, chunk) for uid, chunk in live if uid not in used]
    for j, chunk_id in enumerate(wanted_chunk_ids):
        if uids[j] is None:
            pair = next((p for p in spare if p[1] == chunk_id), None)
            if pair is not None:
                spare.remove(pair)
                uids[j] = pair[0]
    fresh = iter(range(next_uid, next_uid + len(uids)))
    return [next(fresh) if uid is None else uid for uid in uids]


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence. Equal heads go first: most edits are at the tail."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    rest_a, rest_b = a[head:], b[head:]
    # best[i][j]: length of the longest common subsequence of rest_a[i:] and rest_b[j:]
    best = [[0] * (len(rest_b) + 1) for _ in range(len(rest_a) + 1)]
    for i in reversed(range(len(rest_a))):
        for j in reversed(range(len(rest_b))):
            same = rest_a[i] == rest_b[j]
            best[i][j] = best[i + 1][j + 1] + 1 if same else max(best[i + 1][j], best[i][j + 1])
    pairs = [(k, k) for k in range(head)]
    i = j = 0
    while i < len(rest_a) and j < len(rest_b):
        if rest_a[i] == rest_b[j]:
            pairs.append((head + i, head + j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
