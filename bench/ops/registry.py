"""``python -m bench.ops.registry``: a registry of a million chunks: time of a look-up, bytes of an entry."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from agentkv_orchestrator.chunks import Ids
from agentkv_orchestrator.registry import Registry
from agentkv_orchestrator.spans import tokens_by

from agentkv.calibrate import hardware

RESULT = Path(__file__).parents[1] / "results" / "registry_lookups.json"
VOCABULARY, PROMPT = 49_152, 100_000


def filled(entries: int) -> tuple[Registry, list[tuple[Ids, str]], float]:
    """A registry of so many chunks of prompts, some of them by content, and the most overhead that an entry
    had on the way there (from the first tenth on)."""
    registry, sample, worst, rng = Registry("model"), list[tuple[Ids, str]](), 0.0, np.random.default_rng(0)
    while len(registry) < entries:
        ids = rng.integers(0, VOCABULARY, PROMPT)
        found = registry.admit(ids, "document", sink=0)
        sample += [(ids[s.start : s.stop].copy(), chunk.id) for chunk, s in found[::20]]
        if len(registry) > entries // 10:
            worst = max(worst, registry.sizes.overhead / len(registry))
    return registry, sample, worst


def check(registry: Registry, sample: list[tuple[Ids, str]]) -> bool:
    """Known content has its id, the same with one token changed has none; a shifted prompt is found."""
    for ids, chunk in sample[:: len(sample) // 1000 or 1]:
        other = ids.copy()
        other[ids.size // 2] += 1
        if registry.find(ids) != chunk or registry.find(other) is not None:
            return False
        if not np.array_equal(registry.ids(chunk), ids):
            return False
    text = np.concatenate([np.arange(45), *(ids for ids, _ in sample[:50])])
    return tokens_by(registry.match(text))["new"] <= 45 + 64


def lookups(registry: Registry, contents: list[Ids], passes: int = 5) -> dict[str, float]:
    """Microseconds of `find`, over contents. Each is the least of several passes over all of them, so that
    nothing is in a cache and what other processes do to one pass does not count; `one_pass_p99_us` is what
    a single pass has with all they do."""
    laps = np.empty((passes, len(contents)))
    for turn in range(passes):
        for i, ids in enumerate(contents):
            start = time.perf_counter_ns()
            registry.find(ids)
            laps[turn, i] = (time.perf_counter_ns() - start) / 1e3
    least, every = laps.min(axis=0), np.percentile(laps, 99, axis=1)
    figures = {
        "median_us": np.median(least),
        "p99_us": np.percentile(least, 99),
        "one_pass_p99_us": min(every),
    }
    return {name: round(float(value), 1) for name, value in figures.items()}


def prompts(registry: Registry, sample: list[tuple[Ids, str]], rng: np.random.Generator) -> dict[str, float]:
    """Milliseconds to match prompts of 8,000 tokens: known chunks behind an unknown header, and new ones."""
    known, strange = [], []
    for _ in range(30):
        picked = rng.integers(0, len(sample), 60)
        text = np.concatenate([rng.integers(0, VOCABULARY, 50), *(sample[i][0] for i in picked)])[:8000]
        for laps, ids in ((known, text), (strange, rng.integers(0, VOCABULARY, text.size))):
            start = time.perf_counter()
            registry.match(ids, sink=0)
            laps.append((time.perf_counter() - start) * 1e3)
    return {
        "known_prompt_ms": round(float(np.median(known)), 2),
        "new_prompt_ms": round(float(np.median(strange)), 2),
    }


def measure(entries: int, count: int = 20_000) -> dict[str, Any]:
    """One row; raises ValueError where the registry does not say the truth."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    registry, sample, worst = filled(entries)
    if not check(registry, sample):
        raise ValueError("the registry does not know what it was shown, or knows what it was not")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rng = np.random.default_rng(1)
    hits = [sample[i][0] for i in rng.integers(0, len(sample), count)]
    misses = [rng.integers(0, VOCABULARY, ids.size) for ids in hits]
    sizes, held = registry.sizes, len(registry)
    return {
        "entries": held,
        "mean_tokens": round(sizes.tokens / 4 / held, 1),
        "hit": lookups(registry, hits),
        "miss": lookups(registry, misses),
        **prompts(registry, sample, rng),
        "key_bytes": round(sizes.keys / held, 1),
        "token_bytes": round(sizes.tokens / held, 1),
        "overhead_bytes": round(sizes.overhead / held, 1),
        "most_overhead_bytes": round(worst, 1),
        "rss_bytes": round((after - before - sum(ids.nbytes + 200 for ids, _ in sample)) / held, 1),
        "hardware": hardware(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ops.registry", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    row = measure(options.entries)
    options.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
