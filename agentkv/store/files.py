"""The few operations on files that a disk store is made of, in one object, so that a test can make any of
them fail (`agentkv.testing.faults`)."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from agentkv.store.blob import Unreadable

_MOST = 1 << 30
"""Linux moves at most 2 GiB a call."""
_BUFFERS = os.sysconf("SC_IOV_MAX")
"""And fills as many buffers."""


class Files:
    """Every method raises OSError as the system does. Files are the user's alone: they hold conversations."""

    def create(self, path: Path) -> int:
        """A new file open for writing, locked as long as it is open, so that others see that it is in use."""
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def write(self, file: int, buffers: Sequence[memoryview]) -> None:
        """All of these, one behind the other, at the end."""
        for buffer in buffers:
            rest = buffer.cast("B") if buffer.nbytes else buffer[:0]
            while rest.nbytes:
                rest = rest[os.write(file, rest[:_MOST]) :]

    def sync(self, file: int) -> None:
        """Wait until the file's bytes would survive a loss of power."""
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; replaces what is there."""
        os.replace(old, new)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder would survive a loss of power."""
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def open(self, path: Path) -> int:
        """Open for reading; a link is refused."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def read(self, file: int, at: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers from ``at`` on, in one call; how many bytes came."""
        return os.preadv(file, buffers, at)

    def remove(self, path: Path) -> None:
        """Raises FileNotFoundError like the system."""
        os.unlink(path)


class FileSource:
    """A blob in an open file as a `Source`."""

    def __init__(self, files: Files, file: int) -> None:
        self.files, self.file, self.size = files, file, files.size(file)

    def fill(self, at: int, buffers: Sequence[memoryview]) -> None:
        left = deque(buffer for buffer in buffers if len(buffer))
        while left:
            came = self.files.read(self.file, at, tuple(islice(left, _BUFFERS)))
            if came <= 0:
                raise Unreadable("torn", f"the file ends at {at}")
            at += came
            while left and came >= len(left[0]):
                came -= len(left.popleft())
            if came:
                left[0] = left[0][came:]


def in_use(path: Path) -> bool:
    """Whether a process holds the lock of a file that `Files.create` made; False when the file is gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
