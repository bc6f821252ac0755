"""The store on a disk: survives its process, and several processes may use one folder.

A blob is written under a name of its own, renamed to the name of its key, and entered into the index, all
inside one transaction of the index: whatever a process dies of, and wherever, whole entries are left, and
perhaps a file without an entry or an entry without a file. The first is removed by `gc`, the second is a
miss. Blobs are read into memory of the process's own and checked there. Mapping the file would save that
copy, and cost two things: someone else could cut the file short, which kills a process that touches the
mapping (SIGBUS), or change bytes after they were checked.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agentkv.kv import KVBlock
from agentkv.store.base import PLAIN, Entry, Found, Key, Miss, Note, Origin, Refusal, Stats, Stored
from agentkv.store.blob import Unreadable
from agentkv.store.codec import RAW, Codecs
from agentkv.store.files import Files, FileSource
from agentkv.store.folder import Folder, is_locked
from agentkv.store.index import Index, Row, Writing
from agentkv.store.memory import By, Price
from agentkv.store.notes import note_text
from agentkv.store.serde import dump, load, origin_of
from agentkv.store.share import Shares

_T = TypeVar("_T")
_PENDING = 10_000
"""Look-ups remembered until the next write takes their order into the index."""


class DiskStore:
    """A map of files inside a byte budget; the least recently used leave, or as `evict_by` says.

    folder: made when missing. budget: bytes of blobs (a write in flight comes on top); tenant_bytes: of one
    tenant at most. durable: False survives the death of the process; True also a loss of power, at two
    fsyncs a write (without them such a loss costs entries, never a wrong one). codecs: keep KV and patches
    in fewer bytes. patience: seconds to wait for another process. Raises BadStore, and InvalidInput for a
    budget below 1.
    """

    tier = "disk"

    def __init__(
        self,
        folder: str | Path,
        budget: int = 20 << 30,
        tenant_bytes: int | None = None,
        *,
        durable: bool = False,
        codecs: Codecs = RAW,
        patience: float = 2.0,
        files: Files | None = None,
    ) -> None:
        self._limits = (budget, tenant_bytes)
        self._possible = Shares(*self._limits).possible
        self.budget, self.codecs = budget, codecs
        self.files = files or Files()
        self.folder = Folder(folder, self.files, patience, durable)
        self._by: By = "lru"
        self._price: Price | None = None
        self._stats = Stats(self.tier, budget)
        self._used: dict[Key, None] = {}
        self._gone: dict[Key, int | None] = {}
        """Keys to be forgotten, with the inode that was found broken; None for any."""
        self._hidden: set[Key] = set()
        """Of another format: for another version of agentkv to read, and not listed here."""
        self._lock = threading.Lock()
        self.folder.sweep()

    def evict_by(self, by: By, price: Price) -> None:
        """Who leaves from now on for what this process puts, and what that is worth."""
        self._by, self._price = by, price

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        buffers = dump(key, Stored(entry, note, origin), self.codecs)
        ms = 0.0 if self._price is None else self._price(key, entry, note)
        row = Row(key, sum(b.nbytes for b in buffers), note_text(note), ms)
        if not self._possible(row.nbytes):
            return self._refused("budget")
        with self._lock:
            self._gone.pop(key, None)
            self._hidden.discard(key)
        failed = self._run(lambda index: self._put(index, row, buffers), _failed)
        return failed is None or self._refused(failed)

    def _put(self, index: Index, row: Row, buffers: Sequence[memoryview]) -> Refusal | None:
        """Why it was not written; None when it was. What made room is gone either way."""
        with index.writing() as writing:
            self._settle(writing)
            if not self._make_room(writing, row):
                return "budget"
            try:
                self._write(self.folder.blob(row.key), buffers)
            except OSError as error:
                return _failed(error)
            writing.add(row)
        return None

    def _make_room(self, writing: Writing, row: Row) -> bool:
        """False where all that is left may not leave."""
        shares = Shares(*self._limits)
        for tenant, size in writing.shares().items():
            shares.add(tenant, size)
        shares.add(row.key.tenant, -writing.size(row.key))  # it is replaced
        while (payer := shares.pays(row.key.tenant, row.nbytes)) is not None:
            victim = writing.victim(payer, row.key, self._by == "benefit")
            if victim is None:
                return False
            shares.add(payer, -self._forget(writing, victim))
            self._stats.evicted += 1
        return True

    def _forget(self, writing: Writing, key: Key) -> int:
        """Remove an entry and its file; its bytes."""
        with suppress(OSError):  # a file that stays is one without an entry: gc's business
            self.files.remove(self.folder.blob(key))
        return writing.remove(key) or 0

    def _write(self, path: Path, buffers: Sequence[memoryview]) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        made = self.folder.fresh()
        file = self.files.create(made)
        try:
            self.files.write(file, buffers)
            if self.folder.durable:
                self.files.sync(file)
            self.files.rename(made, path)
            if self.folder.durable:
                self.files.sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                self.files.remove(made)
            raise
        finally:
            self.files.close(file)

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        path = self.folder.blob(key)
        try:
            file = self.files.open(path)
        except OSError as error:
            lost = isinstance(error, FileNotFoundError)
            self._missed(key, "absent" if lost else "io", 0 if lost else None)
            return None
        try:
            stored = load(FileSource(self.files, file), key, rows)
        except Unreadable as error:
            broken = error.reason in ("torn", "checksum", "foreign")
            self._missed(key, error.reason, os.fstat(file).st_ino if broken else None)
            return None
        except OSError:
            self._missed(key, "io", None)
            return None
        finally:
            with suppress(OSError):
                self.files.close(file)
        with self._lock:
            self._stats.hits += 1
            self._used.pop(key, None)
            if len(self._used) < _PENDING:
                self._used[key] = None
        return stored

    def drop(self, key: Key) -> bool:
        with self._lock:
            self._gone[key] = None
        return self._run(lambda index: self._drop(index, key), lambda error: False)

    def _drop(self, index: Index, key: Key) -> bool:
        with index.writing() as writing:
            had = writing.size(key) > 0
            self._settle(writing)
        return had

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        self.flush()
        return self._run(lambda index: tuple(row.key for row in index.rows(tenant)), lambda error: ())

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        found = {}
        for key in keys:
            with suppress(OSError, Unreadable):  # whoever wants the entry itself finds out, and counts it
                file = self.files.open(self.folder.blob(key))
                try:
                    found[key] = origin_of(FileSource(self.files, file), key)
                finally:
                    self.files.close(file)
        return found

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        found = self._run(lambda index: index.held(chunks, tenant), self._blind)
        with self._lock:
            gone = (self._gone.keys() | self._hidden) & found.keys()
        return {key: Found(*found[key], self.tier) for key in found if key not in gone}

    @property
    def nbytes(self) -> int:
        return self.stats().nbytes

    def stats(self) -> Stats:
        shares = self._run(lambda index: index.shares(), lambda error: {})
        with self._lock:
            return replace(
                self._stats,
                entries=sum(count for _, count in shares.values()),
                nbytes=sum(size for size, _ in shares.values()),
                misses=self._stats.misses.copy(),
                refused=self._stats.refused.copy(),
                tenants={tenant: size for tenant, (size, _) in shares.items()},
            )

    def flush(self) -> None:
        """Puts are on their way to the disk already; what is written is the order of use."""
        with self._lock:
            pending = bool(self._used or self._gone)
        if pending:
            self._run(self._settled, lambda error: None)

    def close(self) -> None:
        self.flush()
        self.folder.close()

    def _settled(self, index: Index) -> None:
        with index.writing() as writing:
            self._settle(writing)

    def _settle(self, writing: Writing) -> None:
        """Take what was used and what is gone into the index."""
        with self._lock:
            used, self._used = self._used, {}
            gone, self._gone = self._gone, {}
        writing.touch(used)
        for key, inode in gone.items():
            if inode is None or inode == _inode(self.folder.blob(key)):
                self._forget(writing, key)

    def _run(self, work: Callable[[Index], _T], failed: Callable[[Exception], _T]) -> _T:
        """``work`` on the index, once more after a damaged one was made anew; ``failed`` says what else to
        answer."""
        for heals in (True, False):
            try:
                return work(index := self.folder.current())
            except (OSError, sqlite3.Error) as error:
                if not heals or not _damage(error):
                    return failed(error)
                with suppress(OSError, sqlite3.Error):
                    self.folder.heal(index)
        raise AssertionError("two rounds, and the second one returns")

    def _missed(self, key: Key, reason: Miss, inode: int | None) -> None:
        """Count a miss. inode: of a file that is of no use (0: there is none), to be forgotten."""
        with self._lock:
            self._stats.misses[reason] += 1
            if reason == "version":
                self._hidden.add(key)
            if inode is not None and len(self._gone) < _PENDING:
                self._gone[key] = inode

    def _blind(self, error: Exception) -> dict[Key, tuple[Note, int]]:
        with self._lock:
            self._stats.misses["timeout" if _failed(error) == "timeout" else "io"] += 1
        return {}

    def _refused(self, why: Refusal) -> bool:
        with self._lock:
            self._stats.refused[why] += 1
        return False


def _failed(error: Exception) -> Refusal:
    """What a failed write is counted as."""
    if isinstance(error, sqlite3.Error):
        if is_locked(error):
            return "timeout"
        return "full" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else "io"
    return "full" if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else "io"


def _damage(error: Exception) -> bool:
    """Whether an index is damaged or closed, not only busy or out of space."""
    wrong = type(error) is sqlite3.DatabaseError or isinstance(error, sqlite3.ProgrammingError)
    return wrong or getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR"


def _inode(path: Path) -> int:
    """0 where there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
