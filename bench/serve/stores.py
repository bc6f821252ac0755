"""What a store costs: a window opened from the disk, its index, and KV in fewer bytes.

``python -m bench.serve.stores`` writes bench/results/stores.json. Five parts. *warm start*: a saved window
is opened again; beside it transformers' prefill of the same tokens, the same entries read from the store, and
the bytes of their files read and nothing else, into memory that nobody has touched before; all in turn, and
in CPU time, as nothing waits for a disk and others may use the machine. *index*: the same look-ups and writes
in SQLite as the store has it and in LMDB, where that is installed. *texts*: what a fresh engine reads of what
its store holds. *identity*: a link of a context. *codecs*: bytes, and the KL they cost.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.lineage import Lineage
from agentkv_orchestrator.registry import Registry
from agentkv_orchestrator.residency import Context

from agentkv import Engine
from agentkv.cache import Overlay, Run
from agentkv.calibrate import hardware
from agentkv.saving import SavedWindow
from agentkv.store import serde
from agentkv.store.base import Document, Key, Note, Origin, Stored
from agentkv.store.blob import Bytes
from agentkv.store.codec import Codec, Codecs
from agentkv.store.disk import DiskStore
from agentkv.store.index import Index, Row
from agentkv.store.known import known_texts
from agentkv.store.notes import note_text
from agentkv.testing import kv_block, same_bits
from bench.ops.identity import identity
from bench.serve.windows import build, question_ids, stock_logits
from bench.timing import alternate, ratio

RESULTS = Path(__file__).parents[1] / "results" / "stores.json"
CODECS: tuple[Codec, ...] = ("none", "bfloat16", "int8", "fp8")


def warm_start(folder: Path, sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """A row a window size. Raises ValueError when what is opened differs in a bit from what was saved."""
    store = DiskStore(folder)
    with Engine.from_pretrained(store=store) as engine:
        return [_warm_row(engine, store, size, rounds) for size in sizes]


def _warm_row(engine: Engine, store: DiskStore, size: int, rounds: int) -> dict[str, Any]:
    window = build(engine, size).window
    name, ids = window.save(), window.ids()
    saved = window.kv.view(window.kv.start, window.kv.end).clone()
    document = store.get(Key("window", name))
    if document is None or not isinstance(document.entry, Document):
        raise ValueError("the store did not keep the window")
    where = SavedWindow.model_validate_json(document.entry.text).rows
    rows = [Key("rows", p.chunk.id, where[p.uid]) for p in window.graph.placements]
    files = [store.folder.blob(key) for key in rows]
    opened = engine.open(name)
    correct = same_bits(opened.kv.view(opened.kv.start, opened.kv.end), saved)
    opened.close()
    total = sum(path.stat().st_size for path in files)
    arms: dict[str, Callable[[], object]] = {
        "prefill": lambda: stock_logits(engine.loaded.model, ids),
        "open": lambda: engine.open(name).close(),
        "get": lambda: [store.get(key) for key in rows],
        "read": lambda: _read(files, total),
    }
    laps = alternate(arms, rounds, clock=time.process_time)
    window.close()
    return {
        "part": "warm start",
        "tokens": size,
        "bytes": total,
        **{f"{arm}_ms": round(statistics.median(times), 1) for arm, times in laps.items()},
        "prefill_over_open": round(ratio(laps["prefill"], laps["open"]), 1),
        "get_over_read": round(ratio(laps["get"], laps["read"]), 2),
        "open_over_read": round(ratio(laps["open"], laps["read"]), 2),
        "correct": correct,
    }


def _read(files: list[Path], size: int) -> None:
    """Every byte of these files, one behind the other, in one call each, into memory that nobody has
    touched."""
    free = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for path in files:
        file = os.open(path, os.O_RDONLY)
        came = os.preadv(file, [free[: os.fstat(file).st_size]], 0)
        os.close(file)
        free = free[came:]


def index(folder: Path, entries: int = 20_000) -> list[dict[str, Any]]:
    """Microseconds of a look-up a chunk (200 at a time, four entries each) and of a write."""
    chunks = [digest(np.array([i]), "m") for i in range(entries // 4)]
    note = note_text(Note(0.1, Context(chunks=Lineage.of(chunks[:12]), tokens=1500)))
    rows = [Row(Key("conditioned", c, str(i)), 5_000_000, note) for c in chunks for i in range(4)]
    asked = [chunks[at : at + 200] for at in range(0, 2000, 200)]
    found = [_sqlite(folder / "sqlite.db", rows, asked, durable) for durable in (False, True)]
    return found + _lmdb(folder, rows, asked)


def _sqlite(path: Path, rows: list[Row], asked: list[list[str]], durable: bool) -> dict[str, Any]:
    path = path.with_suffix(f".{durable}")
    made = Index(path, 5.0, durable)
    with made.writing() as writing:
        for row in rows[200:]:
            writing.add(row)
    since = time.perf_counter()
    for row in rows[:200]:
        with made.writing() as writing:
            writing.add(row)
    written = time.perf_counter() - since
    since = time.perf_counter()
    correct = all(len(made.held(some, "")) == 4 * len(some) for some in asked)
    looked = time.perf_counter() - since
    made.close()
    return _index_row("SQLite, survives power loss" if durable else "SQLite", looked, written, correct)


def _lmdb(folder: Path, rows: list[Row], asked: list[list[str]]) -> list[dict[str, Any]]:
    try:
        import lmdb
    except ImportError:
        return []
    found = []
    for sync in (False, True):
        env = lmdb.open(str(folder / f"lmdb{sync}"), map_size=1 << 30, sync=sync)
        with env.begin(write=True) as writing:
            for row in rows[200:]:
                writing.put(f"{row.key.chunk}{row.key.context}".encode(), row.text.encode())
        since = time.perf_counter()
        for row in rows[:200]:
            with env.begin(write=True) as writing:
                writing.put(f"{row.key.chunk}{row.key.context}".encode(), row.text.encode())
        written = time.perf_counter() - since
        since = time.perf_counter()
        correct = all(_scan(env, some) == 4 * len(some) for some in asked)
        looked = time.perf_counter() - since
        name = "LMDB, survives power loss" if sync else "LMDB"
        found.append(_index_row(name, looked, written, correct))
    return found


def _scan(env: Any, chunks: list[str]) -> int:
    """Notes read as the store reads them."""
    known: dict[bytes, Any] = {}
    count = 0
    with env.begin() as reading:
        cursor = reading.cursor()
        for chunk in chunks:
            front = chunk.encode()
            cursor.set_range(front)
            for key, value in cursor:
                if not key.startswith(front):
                    break
                known.setdefault(value, None) or json.loads(value)
                count += 1
    return count


def _index_row(name: str, looked: float, written: float, correct: bool) -> dict[str, Any]:
    return {
        "part": "index",
        "index": name,
        "look_up_us": round(looked / 2000 * 1e6, 1),
        "write_us": round(written / 200 * 1e6),
        "correct": correct,
    }


def texts(folder: Path, chunks: int = 2048, tokens: int = 128) -> list[dict[str, Any]]:
    """Microseconds a chunk that a fresh engine learns what its store holds in: list, read, register."""
    store, model = DiskStore(folder), "f" * 40
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, 49_000, tokens) for _ in range(chunks)]
    note = Note(0.1, Context(chunks=Lineage.of([digest(some, model) for some in ids[:12]]), tokens=1500))
    for some in ids:
        key = Key("conditioned", digest(some, model), note.context.chunks.key if note.context else "")
        store.put(key, kv_block(tokens), note, Origin(some, b"", model))
    store.flush()
    took = []
    for _ in range(3):
        registry, since = Registry(model), time.perf_counter()
        registry.register_all(known_texts(store, model, chunks, registry.knows))
        took.append(time.perf_counter() - since)
    store.close()
    found = {"chunks": chunks, "tokens": tokens, "text_us": round(statistics.median(took) / chunks * 1e6)}
    return [{"part": "texts", **found, "correct": len(registry) == chunks}]


def codecs(windows: int, size: int = 640) -> list[dict[str, Any]]:
    """KL(without ‖ with the codec) of a question's tokens, and bytes of all of them against none."""
    kl: dict[tuple[str, Codec], list[float]] = {}
    nbytes: dict[tuple[str, Codec], int] = {}
    with Engine.from_pretrained() as engine:
        for seed in range(windows):
            window = build(engine, size + 16 * seed).window
            for what, codec, cost, count in _lossy(engine, window):
                kl.setdefault((what, codec), []).append(cost)
                nbytes[what, codec] = nbytes.get((what, codec), 0) + count
            window.close()
    return [
        {
            "part": "codecs",
            "what": what,
            "codec": codec,
            "windows": windows,
            "share_of_bytes": round(nbytes[what, codec] / nbytes[what, "none"], 3),
            "kl": statistics.mean(costs),
            "kl_most": max(costs),
            "correct": codec != "none" or max(costs) == 0.0,
        }
        for (what, codec), costs in kl.items()
    ]


def _lossy(engine: Engine, window: Any) -> list[tuple[str, Codec, float, int]]:
    """For KV: every row of the window through a codec. For patches: its last chunk, canonical and patch."""
    truth = _asked(engine, window)
    whole = window.kv.view(window.kv.start, window.kv.end).clone()
    found = []
    for codec in CODECS:
        block, count = _through(whole, Codecs(kv=codec), "kv")
        engine.backend.place(window.kv, window.kv.start, block)
        found.append(("KV", codec, _kl(truth, _asked(engine, window)), count))
    engine.backend.place(window.kv, window.kv.start, whole)
    last = window.graph.placements[-1]
    live = engine.backend.read(window.kv, last.row, last.stop)
    canonical = engine.backend.canonical(*engine.tokens(last.chunk.id))
    patch = engine.backend.form(live, canonical)
    base = None
    for codec in CODECS:
        packed, count = _through(patch, Codecs(patch=codec), "patch")
        engine.backend.place(window.kv, last.row, canonical, packed, last.position)
        logits = _asked(engine, window)
        base = logits if base is None else base
        found.append(("patch", codec, _kl(base, logits), count))
    return found


def _through(entry: Any, codecs: Codecs, kind: str) -> tuple[Any, int]:
    """An entry written and read again, and the bytes of its blob."""
    key = Key("conditioned" if kind == "kv" else "patch", "c", "x")
    data = b"".join(serde.dump(key, Stored(entry), codecs))
    return serde.load(Bytes(data), key).entry, len(data)


def _asked(engine: Engine, window: Any) -> torch.Tensor:
    ids = torch.as_tensor(question_ids(engine))
    kv = window.kv
    position = int(kv.positions[kv.end - 1]) + 1
    return engine.runner.run([Run(kv.end, ids, position)], Overlay(kv, kv.end), keep=len(ids))


def _kl(truth: torch.Tensor, found: torch.Tensor) -> float:
    p, q = (x.double().log_softmax(-1) for x in (truth, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serve.stores", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small window, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=8, help="windows that codecs are tried on")
    options = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sizes = (512,) if options.quick else (512, 2048)
    with tempfile.TemporaryDirectory() as place:
        rows = warm_start(Path(place) / "store", sizes, 2 if options.quick else options.rounds)
        rows += index(Path(place))
        rows += texts(Path(place) / "texts", 256 if options.quick else 2048)
        rows += identity()
        rows += codecs(2 if options.quick else options.windows)
    for row in rows:
        row["hardware"] = hardware()
        print({name: value for name, value in row.items() if name != "hardware"})
    if not options.quick:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["correct"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
