"""A window that is handed a whole list of messages: who stood there already, who comes back, who was edited.

Messages are known by their content, never by their place. What did not move is recognised first, then what
moved, then what this window held before; of the rest, a message that resembles one that would leave is that
one edited, and only the tokens that differ are new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from agentkv_orchestrator.match import match

from agentkv import rules
from agentkv.errors import InvalidInput
from agentkv.handles import Content, Entry, Handle, renumbered, words
from agentkv.inputs import Ids
from agentkv.media import Tokens
from agentkv.replacing import SHORTEST, replaced, whole_or_unchanged

if TYPE_CHECKING:
    from agentkv.edits import Edits

ALIKE = 0.5
"""Share of the longer text that an edited message has in common with what it was, at least."""


@dataclass(frozen=True, eq=False)
class Message:
    """One message of a list.

    pieces: its tokens, the images among them, markers of its role included. label: who it is for its owner,
    such as a message id: an edited message is looked for under it first. pin: keep it when a window slides.
    order_free: neighbours that are so too may change places with it; see docs/placement.md.
    """

    pieces: tuple[Tokens, ...]
    kind: str
    preview: str = ""
    label: str = ""
    pin: bool = False
    order_free: bool = False

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids, _ in self.pieces)

    @cached_property
    def key(self) -> str:
        """What it says: 128 bits over its tokens and pixels."""
        return _key((ids, media.digest if media else b"") for ids, media in self.pieces)


Known = MutableMapping[int, tuple[str, str]]
"""By handle id: what a message says, which never changes, and its label."""


def shown(window: Edits, messages: Sequence[Message], known: Known) -> tuple[Content, tuple[Handle, ...]]:
    """The content of ``window`` once it holds exactly these messages, and a handle for each. What is not
    among them is evicted, pinned or not: the list says what is pinned.

    Raises EmptyChunk, InvalidInput, TooLong. known: filled as far as it is not.
    """
    _checked(window, messages)
    for entry in window.content.known():
        if entry.handle.id not in known:
            known[entry.handle.id] = (_said(window, entry), "")
    with whole_or_unchanged(window):
        entries = _entries(window, messages, known)
    for message, entry in zip(messages, entries, strict=True):
        known[entry.handle.id] = (message.key, message.label)
    handles = tuple(entry.handle for entry in entries)
    changed = [*_leaving(window, entries), *entries]
    return window.content.with_entries(changed, tuple(handle.id for handle in handles)), handles


def _checked(window: Edits, messages: Sequence[Message]) -> None:
    if not isinstance(messages, Sequence) or not all(isinstance(m, Message) for m in messages):
        raise InvalidInput(
            got=f"{type(messages).__name__} {str(messages)[:60]!r}",
            expected="a list of agentkv.showing.Message, or text where a question is asked",
            do="pass a str for one user's message",
        )
    for message in messages:
        rules.kind(message.kind)
        if message.order_free:
            rules.order_free(message.kind, message.pin)
        pieces = message.pieces or (Tokens(np.empty(0, dtype=np.int64)),)  # which is refused
        rules.pieces(pieces, window.engine.vocabulary, window.engine.tower)
    rules.fits(sum(message.tokens for message in messages), window.max_tokens)


def _entries(window: Edits, messages: Sequence[Message], known: Known) -> list[Entry]:
    """One entry a message; live placements are divided where a message is an edit of another."""
    live = window.content.live()
    pairs = [(entry.handle.id, known[entry.handle.id][0]) for entry in live]
    fresh = window.engine.numbers(len(messages))
    numbers = match(pairs, [message.key for message in messages], fresh)
    taken = {number for number in numbers if number < fresh}
    evicted = _evicted(window.content, known)
    edited = _edited(window, messages, numbers, [e for e in live if e.handle.id not in taken], known)
    found = list[Entry]()
    for message, number in zip(messages, numbers, strict=True):
        entry = window.content.get(number)
        if entry is not None:
            found.append(_marked(entry, message))
        elif message.key in evicted:
            back = evicted.pop(message.key)
            used = window.engine.numbers(1)
            found.append(_marked(replace(back, recalls=back.recalls + 1, used=used), message))
        else:
            found.append(_made(window, message, number, edited.get(number)))
    return found


def _evicted(content: Content, known: Known) -> dict[str, Entry]:
    """What the window held before, by what it says; of equal ones the newest."""
    live = set(content.order)
    return {known[e.handle.id][0]: e for e in content.known() if e.handle.id not in live}


def _marked(entry: Entry, message: Message) -> Entry:
    if (entry.pinned, entry.order_free) == (message.pin, message.order_free):
        return entry
    return replace(entry, pinned=message.pin, order_free=message.order_free)


def _edited(
    window: Edits, messages: Sequence[Message], numbers: Sequence[int], losing: list[Entry], known: Known
) -> Mapping[int, Entry]:
    """By number of a new message, the live one that it is an edit of: of one label, or standing between the
    same neighbours."""
    place = {entry.handle.id: i for i, entry in enumerate(window.content.live())}
    labels = {known[e.handle.id][1]: e for e in losing if known[e.handle.id][1]}
    free = {e.handle.id: e for e in losing if not e.media}
    found, last = dict[int, Entry](), -1
    for message, number in zip(messages, numbers, strict=True):
        if number in place:
            last = place[number]
            continue
        if any(media for _, media in message.pieces):
            continue
        named = labels.get(message.label)
        behind = (e for i, e in free.items() if place[i] > last and e.handle.kind == message.kind)
        for old in (named, next(behind, None)):
            if old is not None and old.handle.id in free and _alike(window, old, message):
                found[number] = free.pop(old.handle.id)
                last = place[old.handle.id]
                break
    return found


def _alike(window: Edits, old: Entry, message: Message) -> bool:
    """Whether most of what one says stands in the other word for word."""
    was, now = _runs(_ids(window, old)), _runs(_joined(message))
    return len(was & now) >= ALIKE * max(len(was), len(now), 1)


def _runs(ids: Ids) -> set[bytes]:
    """Every run of SHORTEST tokens: shorter ones agree by chance, and are worth no chunk of their own."""
    return {ids[i : i + SHORTEST].tobytes() for i in range(len(ids) - SHORTEST + 1)}


def _made(window: Edits, message: Message, number: int, old: Entry | None) -> Entry:
    """A message that this window has never held, as it is now; with the placements of ``old`` where it is an
    edit of that one."""
    handle = Handle(number, message.kind, message.tokens, words(message.preview))
    if old is not None:
        standing = rules.live(window.content, old.handle)  # an earlier edit may have divided it
        return _marked(Entry(handle, replaced(window, standing, _joined(message))), message)
    return _marked(window.cut(handle, message.pieces), message)


def _leaving(window: Edits, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Live messages that are not in the list, unpinned; an edit that took their placements leaves them fresh
    ones."""
    kept = {entry.handle.id for entry in entries}
    taken = {uid for entry in entries for uid, _ in entry.parts}
    for entry in window.content.live():
        if entry.handle.id in kept:
            continue
        if any(uid in taken for uid, _ in entry.parts):
            fresh = renumbered(entry, window.engine.numbers(len(entry.parts)))
            yield replace(entry, pinned=False, parts=fresh)
        elif entry.pinned:
            yield replace(entry, pinned=False)


def _said(window: Edits, entry: Entry) -> str:
    chunks = window.engine.chunks
    return _key((chunks.ids(chunk.id), chunks.modality(chunk.id)) for _, chunk in entry.parts)


def _key(pieces: Iterable[tuple[Ids, bytes]]) -> str:
    """Digest of neighbouring runs of text and of images; how text was cut into pieces does not enter."""
    found, text = blake2b(digest_size=16), list[Ids]()
    for ids, digest in pieces:
        if digest:
            _add_text(found, text)
            text = []
            found.update(b"image" + len(ids).to_bytes(8, "big") + len(digest).to_bytes(8, "big") + digest)
        else:
            text.append(ids)
    _add_text(found, text)
    return found.hexdigest()


def _add_text(found: blake2b, text: Sequence[Ids]) -> None:
    if text:
        ids = np.ascontiguousarray(np.concatenate(text), dtype="<i8")
        found.update(b"text" + ids.size.to_bytes(8, "big") + ids.tobytes())


def _ids(window: Edits, entry: Entry) -> Ids:
    return np.concatenate([window.engine.chunks.ids(chunk.id) for _, chunk in entry.parts])


def _joined(message: Message) -> Ids:
    return np.concatenate([ids for ids, _ in message.pieces])
