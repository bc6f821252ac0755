"""An engine's use of its store: entries go in with what they were computed from, and a hit compares that."""

from __future__ import annotations

from collections.abc import Callable

from agentkv.kv import KVBlock
from agentkv.media import Media
from agentkv.patches import Patch
from agentkv.store.base import PLAIN, Entry, Key, Note, Origin, Store, Stored

KINDS = {"canonical": KVBlock, "conditioned": KVBlock, "rows": KVBlock, "features": Media}
"""What is stored under a kind; patches under all others."""


class Shelf:
    """origin_of: what a chunk's KV is computed from, by its id; raises ChunkError for one that nobody
    registered. fingerprint: of the model, whose features are its own."""

    def __init__(self, store: Store, origin_of: Callable[[str], Origin], fingerprint: str) -> None:
        self.store, self.origin_of, self.fingerprint = store, origin_of, fingerprint
        self.foreign = 0
        """Hits that were another content's or another model's, and so none."""

    def put(self, key: Key, entry: Entry, note: Note = PLAIN) -> bool:
        """Whether it was kept."""
        return self.store.put(key, entry, note, self.origin_of(key.chunk))

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        """The entry of this very content and model; anything else under its key is a miss. rows: see
        `Store.get`."""
        stored = self.store.get(key, rows)
        if stored is None:
            return None
        right_type = isinstance(stored.entry, KINDS.get(key.kind, Patch))
        if right_type and self.origin_of(key.chunk).same(stored.origin):
            return stored
        self.refuse(key)
        return None

    def refuse(self, key: Key) -> None:
        """What stands under this key is not what the key says: forget it, and count it."""
        self.foreign += 1
        self.store.drop(key)

    def keep_media(self, media: Media) -> None:
        """Store an image's features, so that nobody runs the tower for it again."""
        key = self._media_key(media.digest)
        if key not in self.store.held([key.chunk]):
            self.store.put(key, media)

    def media(self, digest: bytes) -> Media | None:
        """An image by the digest of its pixels, with the features of this model."""
        found = self.store.get(self._media_key(digest))
        entry = found.entry if found else None
        return entry if isinstance(entry, Media) and entry.digest == digest else None

    def _media_key(self, digest: bytes) -> Key:
        return Key("features", digest.hex(), self.fingerprint)

    def drop(self, key: Key) -> bool:
        """Forget the entry; whether there was one."""
        return self.store.drop(key)
