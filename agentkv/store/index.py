"""What a folder of blobs holds, in SQLite: sizes, notes and the order of use, shared by all its processes.

The blobs are the truth: each says its own key. The index is a catalogue that can be made again from them, and
is, when it is lost or damaged.

SQLite and not LMDB: docs/stores.md has the measurement. A look-up takes about as long, and a write longer,
which is little beside writing the blob; for that victims come in order, no size is fixed ahead, and it is
part of Python. With a rollback journal and not a write-ahead log: the log needs a file that every process
maps into memory (LMDB maps all of its own), whoever cuts that short kills them all with SIGBUS, and it does
not work over a network.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentkv.store.key import SAVED, Key, Note
from agentkv.store.notes import Notes

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    tenant TEXT NOT NULL, chunk TEXT NOT NULL, kind TEXT NOT NULL, context TEXT NOT NULL,
    bytes INTEGER NOT NULL, used INTEGER NOT NULL, note TEXT NOT NULL,
    uses INTEGER NOT NULL, ms REAL NOT NULL,
    PRIMARY KEY (tenant, chunk, kind, context)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON entries (tenant, used);
CREATE INDEX IF NOT EXISTS by_age ON entries (used);
CREATE TABLE IF NOT EXISTS shares (
    tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL, entries INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS came AFTER INSERT ON entries BEGIN
    INSERT INTO shares VALUES (NEW.tenant, NEW.bytes, 1)
    ON CONFLICT DO UPDATE SET bytes = bytes + NEW.bytes, entries = entries + 1; END;
CREATE TRIGGER IF NOT EXISTS went AFTER DELETE ON entries BEGIN
    UPDATE shares SET bytes = bytes - OLD.bytes, entries = entries - 1 WHERE tenant = OLD.tenant;
    DELETE FROM shares WHERE tenant = OLD.tenant AND entries = 0; END;
"""
VERSION = 2
"""An index of another one is made anew."""
_OLDEST = 64
"""Of so many the one that is worth least leaves: what was used lately stays, whatever it is worth."""
_WHICH = "tenant = ? AND chunk = ? AND kind = ? AND context = ?"
_AT_ONCE = 400
"""Chunks asked for in one statement; SQLite takes 999 values in old builds."""


class Row(NamedTuple):
    """One entry. text: its note as JSON. ms: what it saves each time it is used, 0 where nobody said."""

    key: Key
    nbytes: int
    text: str
    ms: float = 0.0


class Index:
    """An open index. Readers wait for the moment of a commit at most; writers wait for each other for
    ``patience`` seconds.

    durable: whether a commit waits until it would survive a loss of power; the index may have to be made anew
    after one otherwise. Every method raises sqlite3.Error
    when the file is damaged, full, or locked for too long.
    """

    def __init__(self, path: Path, patience: float, durable: bool) -> None:
        self.path, self.patience, self.durable = path, patience, durable
        self._notes = Notes()
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._writer, self._reader = self._connect(), self._connect()
        self._inode = os.stat(path).st_ino

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, self.patience, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = PERSIST")
            db.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'OFF'}")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"an index of version {version}")
            if version == 0:
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        except BaseException:
            db.close()
            raise
        return db

    def replaced(self) -> bool:
        """Whether another process made the index anew: this one is of no use then."""
        try:
            return os.stat(self.path).st_ino != self._inode
        except OSError:
            return True

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """A transaction: this process's and all others' writes wait. Rolled back when the block raises."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Writing(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise

    def held(self, chunks: Collection[str], tenant: str) -> dict[Key, tuple[Note, int]]:
        """Notes and bytes of all that one tenant has of these chunks."""
        wanted, found = list(chunks), dict[Key, tuple[Note, int]]()
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            columns, marks = "kind, chunk, context, note, bytes", ",".join("?" * len(some))
            sql = f"SELECT {columns} FROM entries WHERE tenant = ? AND chunk IN ({marks})"
            for kind, chunk, context, text, size in self._read(sql, (tenant, *some)):
                found[Key(kind, chunk, context, tenant)] = (self._note(text), size)
        return found

    def rows(self, tenant: str | None = None) -> list[Row]:
        """Everything, or all of one tenant's, least recently used first."""
        where, values = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        sql = f"SELECT kind, chunk, context, tenant, bytes, note FROM entries {where} ORDER BY used"
        return [Row(Key(*row[:4]), row[4], row[5]) for row in self._read(sql, values)]

    def shares(self) -> dict[str, tuple[int, int]]:
        """Bytes and entries of every tenant."""
        return {name: (size, n) for name, size, n in self._read("SELECT * FROM shares", ())}

    def close(self) -> None:
        for lock, db in ((self._writing, self._writer), (self._reading, self._reader)):
            with lock, suppress(sqlite3.Error):
                db.close()

    def _read(self, sql: str, values: tuple[str, ...]) -> list[Any]:
        with self._reading:
            return self._reader.execute(sql, values).fetchall()

    def _note(self, text: str) -> Note:
        """Raises sqlite3.DatabaseError for a text that a damaged index made of it."""
        try:
            return self._notes.of(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise sqlite3.DatabaseError("a note that is none") from error


class Writing:
    """What may be done inside a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def shares(self) -> dict[str, int]:
        """Bytes of every tenant."""
        return dict(self._db.execute("SELECT tenant, bytes FROM shares"))

    def victim(self, tenant: str, but: Key, by_benefit: bool = False) -> Key | None:
        """A tenant's least recently used entry that may make room, other than ``but``; or, of those used
        longest ago, the one that saves least: uses × ms saved by each, by bytes and by the time since."""
        saved = ", ".join(f"'{kind}'" for kind in SAVED)
        others = f"tenant = ? AND kind NOT IN ({saved}) AND NOT ({_WHICH})"
        oldest = f"SELECT * FROM entries WHERE {others} ORDER BY used LIMIT ?"
        worth = "(uses + 1) * ms / bytes / (? - used)"
        sql = f"SELECT kind, chunk, context FROM ({oldest}) ORDER BY {worth}, used LIMIT 1"
        values = (tenant, *_which(but), _OLDEST if by_benefit else 1, self._now())
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else Key(row[0], row[1], row[2], tenant)

    def size(self, key: Key) -> int:
        """Bytes of an entry, 0 when there is none."""
        row = self._db.execute(f"SELECT bytes FROM entries WHERE {_WHICH}", _which(key)).fetchone()
        return 0 if row is None else row[0]

    def add(self, row: Row) -> None:
        """The most recently used entry from now on."""
        self.remove(row.key)
        values = (
            row.key.tenant,
            row.key.chunk,
            row.key.kind,
            row.key.context,
            row.nbytes,
            self._now(),
            row.text,
            0,
            row.ms,
        )
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def remove(self, key: Key) -> int | None:
        """Forget an entry; its bytes, or None when there was none."""
        sql = f"DELETE FROM entries WHERE {_WHICH} RETURNING bytes"
        found = self._db.execute(sql, _which(key)).fetchall()
        return found[0][0] if found else None

    def touch(self, keys: Iterable[Key]) -> None:
        """These were used, in this order. A counter and no clock: clocks jump."""
        now = self._now()
        sql = f"UPDATE entries SET used = ?, uses = uses + 1 WHERE {_WHICH}"
        self._db.executemany(sql, [(now + i, *_which(key)) for i, key in enumerate(keys)])

    def _now(self) -> int:
        return int(self._db.execute("SELECT COALESCE(MAX(used), 0) + 1 FROM entries").fetchone()[0])


def _which(key: Key) -> tuple[str, str, str, str]:
    return key.tenant, key.chunk, key.kind, key.context
