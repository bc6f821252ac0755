"""Every fault at every step of a disk store's work: what it gives afterwards is right, or nothing.

``python -m agentkv.testing.matrix`` prints how many faults were survived, and fails when one was not. The
work puts entries, replaces one, pushes one out, reads and drops. It is done once for each fault: an operation
that fails in one of six ways, once or from there on, and a SIGKILL in the middle of it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agentkv.kv import KVBlock
from agentkv.store.base import Key, Store
from agentkv.store.disk import DiskStore
from agentkv.testing.blocks import kv_block, same_bits
from agentkv.testing.faults import FAULTS, Fault, FaultyFiles

TOKENS = 24
PUTS = ((0, 0), (1, 1), (2, 2), (1, 7), (3, 3), (4, 4))
"""(entry, seed of its numbers) in turn; the last ones push the first out of a store for four."""
ROOM = 22_000
MEMORY = Path("/dev/shm")
"""Waiting for a real disk is most of the time otherwise, and tests nothing: no power is lost."""


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


def work(store: Store) -> None:
    """What is done while a fault strikes."""
    for name, seed in PUTS:
        store.put(key(name), kv_block(TOKENS, seed))
        store.get(key(name))
    store.drop(key(3))
    for name in range(5):
        store.get(key(name))
    store.flush()


def wrong(store: Store) -> list[str]:
    """What is not right about a store that was worked on: entries that nobody put, books that lie, a budget
    that is not kept, a store that takes nothing any more."""
    found = []
    for name in range(5):
        rows = kv_block(TOKENS)
        stored = store.get(key(name), rows) if name % 2 else store.get(key(name))
        if stored is None:
            continue
        seeds = [seed for other, seed in PUTS if other == name]
        block = stored.entry
        if not isinstance(block, KVBlock) or not any(same_bits(block, kv_block(TOKENS, s)) for s in seeds):
            found.append(f"entry {name} has other bits than were put")
    if store.nbytes > ROOM:
        found.append(f"{store.nbytes} bytes in a store for {ROOM}")
    if not store.put(key(9), kv_block(TOKENS, 9)) or store.get(key(9)) is None:
        found.append("it takes nothing any more")
    return found


def strike(folder: Path, fault: Fault) -> list[str]:
    """Do the work with one fault, then look at what is left, in this process and in a fresh one."""
    files = FaultyFiles()
    store = DiskStore(folder, ROOM, durable=True, files=files)
    files.fault, files.steps = fault, 0
    if fault.kind == "kill":
        child = os.fork()
        if child == 0:
            inside = FaultyFiles()
            killed = DiskStore(folder, ROOM, durable=True, files=inside)
            inside.fault, inside.steps = fault, 0
            work(killed)
            os._exit(0)
        os.waitpid(child, 0)
        files.fault = None
    else:
        work(store)
    files.fault = None
    found = wrong(store)
    store.close()
    again = DiskStore(folder, ROOM)
    found += [f"{what}, once opened again" for what in wrong(again)]
    again.close()
    return found


def faults(folder: Path) -> Iterator[Fault]:
    """All of them: the steps are counted on a disk that does not fail."""
    files = FaultyFiles()
    store = DiskStore(folder, ROOM, durable=True, files=files)
    files.steps = 0
    work(store)
    store.close()
    for step in range(files.steps):
        for kind in FAULTS:
            yield Fault(kind, step)
            yield Fault(kind, step, more=True)
        yield Fault("kill", step)


def main() -> int:
    """Print how many faults were survived. 0 when all were."""
    struck, lost = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        for number, fault in enumerate(faults(Path(place) / "counted")):
            struck[fault.kind] += 1
            what = strike(Path(place) / str(number), fault)
            lost += [f"{fault}: {'; '.join(what)}"] if what else []
    total = sum(struck.values())
    print(*lost, f"{total - len(lost)} of {total} faults survived ({dict(struck)})", sep="\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
