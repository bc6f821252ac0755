"""``python -m bench.serve.redis``: the KV of a window from a Redis server on the loopback interface.

It stands beside the disk's, whose files are in the page cache, as after a recent write. Entries have the
shapes of the embedded model. Both stores check what they read, and what they give is compared with what was
put before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from agentkv.calibrate import hardware
from agentkv.kv import KVBlock
from agentkv.store.base import Key, Store
from agentkv.store.disk import DiskStore
from agentkv.store.redis import RedisStore
from agentkv.testing import same_bits
from bench.timing import alternate
from tests.redis_server import redis_server

RESULT = Path(__file__).parents[1] / "results" / "redis.json"
LAYERS, HEADS, DIM = 30, 3, 64
"""Of SmolLM2-135M: keys and values of this shape for each token, fp32."""
CHUNK = 160


def blocks(tokens: int) -> dict[Key, KVBlock]:
    """The chunks of a window."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for start in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - start)
        slots = tuple(torch.randn(LAYERS, count, HEADS, DIM, generator=draw) for _ in range(2))
        found[Key("canonical", f"chunk{start}")] = KVBlock(slots, torch.arange(start, start + count))
    return found


def check(store: Store, wanted: dict[Key, KVBlock]) -> None:
    """Raises ValueError unless the store gives back every bit."""
    for key, block in wanted.items():
        stored = store.get(key)
        if stored is None or not isinstance(stored.entry, KVBlock) or not same_bits(stored.entry, block):
            raise ValueError(f"{store.tier} does not give back {key}")


def measure(tokens: int, rounds: int) -> dict[str, Any]:
    """Times of all gets and all puts of a window, in turn; each the least of its rounds, as ratios are."""
    wanted = blocks(tokens)
    size = sum(block.nbytes for block in wanted.values())
    with tempfile.TemporaryDirectory() as folder, redis_server() as server:
        stores = {"disk": DiskStore(folder, 4 * size), "redis": RedisStore(server.url, 4 * size, patience=60)}
        puts = alternate(
            {n: lambda s=s: [s.put(*item) for item in wanted.items()] for n, s in stores.items()}, 3
        )
        for store in stores.values():
            check(store, wanted)
        gets = alternate({n: lambda s=s: [s.get(key) for key in wanted] for n, s in stores.items()}, rounds)
        for store in stores.values():
            store.close()
    least = {f"{name}_get_ms": round(min(laps), 1) for name, laps in gets.items()}
    least |= {f"{name}_put_ms": round(min(laps), 1) for name, laps in puts.items()}
    return {
        "tokens": tokens,
        "mib": round(size / 2**20, 1),
        **least,
        "get_ratio": round(min(gets["redis"]) / min(gets["disk"]), 2),
        "put_ratio": round(min(puts["redis"]) / min(puts["disk"]), 2),
        "hardware": hardware(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serve.redis", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    row = measure(options.tokens, options.rounds)
    options.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
