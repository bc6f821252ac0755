"""A store's folder: where what lies, and the care it takes without a model.

agentkv-store.json    which format this is
index.db              what is there (SQLite); made again from the blobs when it is lost or damaged
blobs/ab/cdef….safetensors    one entry each, named by a digest of its key
tmp/                  blobs that are being written, locked by whoever writes them
lock                  held while the index is opened or made anew
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from agentkv_orchestrator.identity import digest_of

from agentkv.errors import BadStore
from agentkv.store.blob import FORMAT, Header, Unreadable, read_header
from agentkv.store.files import Files, FileSource, in_use
from agentkv.store.index import Index, Row
from agentkv.store.key import Key
from agentkv.store.notes import note_text

MARKER = "agentkv-store.json"
SUFFIX = ".safetensors"
Progress = Callable[[int, int], None]
"""Told how many of how many are done."""


class Folder:
    """A folder opened as a store, made when it is missing.

    files: how files are touched. patience: seconds to wait for another process. durable: see `DiskStore`.
    create: make a missing one. Raises BadStore.
    """

    def __init__(
        self,
        root: str | Path,
        files: Files | None = None,
        patience: float = 2.0,
        durable: bool = False,
        create: bool = True,
    ) -> None:
        self.root = Path(root).expanduser().absolute()
        self.files, self.patience, self.durable = files or Files(), patience, durable
        try:
            _prepare(self.root, create)
            with self._locked():
                self.index = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise BadStore(
                got=f"{self.root}, which cannot be used ({error})",
                expected="a folder that may be written",
                do="check its permissions and the disk, or take another folder",
            ) from error

    def blob(self, key: Key) -> Path:
        """The file of an entry. No part of a key enters a path."""
        name = digest_of(b"agentkv blob", *((k.encode(), v.encode()) for k, v in key._asdict().items()))
        return self.root / "blobs" / name[:2] / f"{name[2:]}{SUFFIX}"

    def fresh(self) -> Path:
        """A name for a blob to be written."""
        return self.root / "tmp" / uuid4().hex

    def blobs(self) -> list[Path]:
        """All blobs, indexed or not."""
        return sorted((self.root / "blobs").glob(f"*/*{SUFFIX}"))

    def header(self, path: Path) -> Header:
        """What a blob says of itself. Raises OSError, and Unreadable when it says nothing or lies under
        another key's name."""
        file = self.files.open(path)
        try:
            header = read_header(FileSource(self.files, file))
        finally:
            self.files.close(file)
        if self.blob(header.record.key) != path:
            raise Unreadable("foreign", f"an entry under the name of another one, {path.name}")
        return header

    def current(self) -> Index:
        """The index, opened again where another process has made it anew. Raises OSError, sqlite3.Error."""
        if self.index.replaced():
            with self._locked():
                if self.index.replaced():
                    self.index.close()
                    self.index = self._opened()
        return self.index

    def heal(self, damaged: Index) -> None:
        """Make the index anew from the blobs, unless someone has done so since it was found damaged."""
        with self._locked():
            if damaged is self.index and not damaged.replaced():
                damaged.close()
                self._remake()
            self.index.close()
            self.index = self._opened()

    def sweep(self) -> int:
        """Remove what writers that are gone have left in tmp/; bytes freed."""
        freed = 0
        for path in sorted((self.root / "tmp").iterdir()):
            with suppress(OSError):
                size = path.stat().st_size
                if not in_use(path):
                    self.files.remove(path)
                    freed += size
        return freed

    def close(self) -> None:
        self.index.close()

    def _opened(self) -> Index:
        path = self.root / "index.db"
        lost = not path.exists() or not path.stat().st_size
        if lost and any((self.root / "blobs").glob("*/*")):
            self._remake()
        try:
            return Index(path, self.patience, self.durable)
        except sqlite3.DatabaseError as error:
            if is_locked(error):
                raise
            self._remake()
            return Index(path, self.patience, self.durable)

    def _remake(self, progress: Progress = lambda done, of: None) -> None:
        """Blobs that cannot be read are left out; `gc` removes them."""
        path, made = self.root / "index.db", self.root / "tmp" / f"{uuid4().hex}.db"
        index = Index(made, self.patience, durable=False)
        found = sorted(self.blobs(), key=_age)
        with index.writing() as writing:
            for i, blob in enumerate(found):
                with suppress(OSError, Unreadable):
                    record, size = (header := self.header(blob)).record, header.nbytes
                    writing.add(Row(record.key, size, note_text(record.note)))
                progress(i + 1, len(found))
        index.close()
        with suppress(FileNotFoundError):
            os.unlink(f"{path}-journal")  # SQLite would play the old journal back into the new file
        os.replace(made, path)
        with suppress(FileNotFoundError):
            os.unlink(f"{made}-journal")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another process held the index for too long: nothing is wrong with it."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _prepare(root: Path, create: bool) -> None:
    """Make or check the folder's skeleton. Raises BadStore for a folder of something else."""
    marker = root / MARKER
    if not marker.exists():
        foreign = root.exists() and any(root.iterdir())
        if foreign or not (create or root.exists()) or (root.exists() and not create):
            raise BadStore(
                got=f"{root}, which is no store" if root.exists() else f"{root}, which does not exist",
                expected=f"a folder with {MARKER}"
                if not create
                else "an empty or missing folder, or a store",
                do="check the path",
            )
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        _same_format(marker)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write to {root}")
    for name in ("blobs", "tmp"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    if not marker.exists():
        made = root / "tmp" / uuid4().hex
        made.write_text(json.dumps({"format": FORMAT}))
        os.replace(made, marker)


def _same_format(marker: Path) -> None:
    try:
        version = json.loads(marker.read_text())["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadStore(
            got=f"{marker}, which cannot be read",
            expected=f'{{"format": {FORMAT}}}',
            do="write that into it when this is a store; its entries are checked one by one",
        ) from error
    if version != FORMAT:
        raise BadStore(
            got=f"a store of format {version!r}",
            expected=f"format {FORMAT}",
            do="use the agentkv that wrote it, or another folder; nothing was changed",
        )


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
