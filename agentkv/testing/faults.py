"""A disk that fails at a step of your choice.

`FaultyFiles` counts the operations that a `DiskStore` makes on its files and lets one of them go wrong in a
given way. Walk through all steps and all faults, and see that the store still gives the right thing or
nothing::

    files = FaultyFiles(Fault("full", step=7))
    store = DiskStore(folder, files=files)
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentkv.store.files import Files

FaultKind = Literal["kill", "error", "full", "denied", "torn", "flip", "silent"]
FAULTS: tuple[FaultKind, ...] = ("error", "full", "denied", "torn", "flip", "silent")
"""All but "kill", which ends the process."""


@dataclass(frozen=True)
class Fault:
    """kind: "error" (EIO), "full" (ENOSPC, half of a write done), "denied" (EACCES), "torn" (half of a write
    or read, no error), "flip" (one bit of a write or read, no error), "silent" (not done, no error), "kill"
    (SIGKILL, half of a write done). step: which operation, from 0. more: go on failing from there on."""

    kind: FaultKind
    step: int
    more: bool = False


class FaultyFiles(Files):
    """Files that fail once, or from some step on. steps: operations so far; struck: whether it has failed."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault, self.steps, self.struck = fault, 0, False

    def create(self, path: Path) -> int:
        self._strike()
        return super().create(path)

    def write(self, file: int, buffers: Sequence[memoryview]) -> None:
        kind = self._due()
        if kind is None:
            return super().write(file, buffers)
        if kind == "silent":
            return None
        whole = bytearray(b"".join(buffers))
        if kind == "flip":
            _flip(whole)
            return super().write(file, [memoryview(whole)])
        super().write(file, [memoryview(whole)[: len(whole) // 2]])
        return None if kind == "torn" else _fail(kind)

    def sync(self, file: int) -> None:
        if self._strike():
            super().sync(file)

    def rename(self, old: Path, new: Path) -> None:
        if self._strike():
            super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        if self._strike():
            super().sync_folder(path)

    def open(self, path: Path) -> int:
        self._strike()
        return super().open(path)

    def size(self, file: int) -> int:
        size, kind = super().size(file), self._due()
        if kind in ("error", "full", "denied", "kill"):
            _fail(kind)
        return size if kind is None else size // 2

    def read(self, file: int, at: int, buffers: Sequence[memoryview]) -> int:
        kind = self._due()
        if kind in ("error", "full", "denied", "kill"):
            _fail(kind)
        if kind == "silent":
            return sum(len(buffer) for buffer in buffers)  # as if it had been read
        if kind == "torn":
            return 0
        came = super().read(file, at, buffers)
        if kind == "flip" and len(buffers[0]):
            _flip(buffers[0])
        return came

    def remove(self, path: Path) -> None:
        if self._strike():
            super().remove(path)

    def close(self, file: int) -> None:
        if self._due() == "kill":
            _fail("kill")
        super().close(file)  # as the system does, whatever it returns

    def _strike(self) -> bool:
        """Whether to do it; what fails with an error raises it. Other faults leave it as it is."""
        kind = self._due()
        if kind in ("error", "full", "denied", "kill"):
            _fail(kind)
        return kind != "silent"

    def _due(self) -> FaultKind | None:
        step, self.steps = self.steps, self.steps + 1
        if self.fault is None or step < self.fault.step or (step > self.fault.step and not self.fault.more):
            return None
        self.struck = True
        return self.fault.kind


def _fail(kind: FaultKind) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    number = {"error": errno.EIO, "full": errno.ENOSPC, "denied": errno.EACCES}[kind]
    raise OSError(number, os.strerror(number))


def _flip(data: bytearray | memoryview) -> None:
    data[len(data) // 2] ^= 0x10
