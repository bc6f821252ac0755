"""Files that a run leaves: judged before the run, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentkv.demo.errors import BadOutput


def require_writable(path: Path) -> Path:
    """The file ``path`` leads to. Raises BadOutput when no file can be put there."""
    target = path.expanduser().resolve()
    if target.exists() and not target.is_file():
        raise BadOutput(
            got=f"{str(path)!r}, which is there and no file", expected="a file name", do="choose another name"
        )
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".agentkv-"):
            pass
    except OSError as error:
        raise BadOutput(
            got=f"{str(path)!r}, which cannot be written ({error.strerror or error})",
            expected="a file in a directory that exists and can be written to",
            do="create the directory, or choose another one",
        ) from error
    return target


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it there; an interruption leaves what was there.

    Raises BadOutput when the disk does not take it.
    """
    target = require_writable(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".agentkv-", suffix=target.suffix)
    os.close(handle)
    scratch = Path(name)
    try:
        write(scratch)
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(target)
    except OSError as error:
        raise BadOutput(
            got=f"{str(path)!r}, which could not be written ({error.strerror or error})",
            expected="a disk with room",
            do="free some space, or choose another place",
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of this process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
