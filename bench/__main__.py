"""``python -m bench``: correctness first, then ratios; rows go to bench/results/*.json.

``--quick`` runs the smallest window and few rounds. A row that is not correct has no ratio worth reading:
the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentkv import Engine
from agentkv.calibrate import hardware
from bench.ops import chat, cutting, kernels, planning
from bench.serve import edits, forward, images, memory

RESULTS = Path(__file__).parent / "results"
WINDOWS = (512, 1024, 2048, 4096)
PARTS = ("kernels", "planning", "chat", "forward", "memory", "edits", "images")


def _save(console: Console, name: str, rows: list[dict[str, Any]], directory: Path) -> bool:
    """Write and show rows; whether all of them are correct."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    shown = [
        key for key in dict.fromkeys(k for row in rows for k in row) if key not in ("hardware", "tokens")
    ]
    table = Table(*shown, title=name)
    for row in rows:
        table.add_row(
            *(
                f"{row.get(key, ''):.4g}" if isinstance(row.get(key), float) else str(row.get(key, ""))
                for key in shown
            )
        )
    console.print(table)
    return all(row["correct"] for row in rows)


def _windows(sizes: Iterable[int], rounds: int, threads: int, console: Console) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in sizes:
        console.log(f"edits of a window of {size} tokens")
        with Engine.from_pretrained() as engine:  # a store of its own: the windows share their text
            rows += edits.measure(engine, size, rounds if size < 4096 else max(2, rounds // 2), threads)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest window, three rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="which measurements")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    console, rounds, threads = Console(), 3 if options.quick else 5, options.threads
    engine = Engine.from_pretrained()
    size = 512 if options.quick else 2048
    parts = {
        "kernels": lambda: [
            *kernels.measure(rounds=rounds, threads=threads),
            *cutting.measure(rounds, threads),
        ],
        "planning": lambda: planning.measure(rounds, hardware()),
        "chat": lambda: chat.measure(engine, rounds, threads, hardware()),
        "forward": lambda: forward.measure(engine, size, rounds, threads),
        "images": lambda: images.measure(size, rounds, threads),
        "memory": lambda: memory.measure(size, threads),
        "edits": lambda: _windows(WINDOWS[:1] if options.quick else WINDOWS, rounds, threads, console),
    }
    correct = True
    for name in options.only:
        console.log(f"measuring {name}")
        correct &= _save(console, name, parts[name](), options.out)
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
