"""Tables in the documentation, written from the JSON that the benchmarks wrote: ``python -m bench.tables
[--check]``.

A Markdown file holds ``<!-- table:NAME -->`` and ``<!-- /table -->``; what stands between is replaced by
the table NAME. ``--check`` changes nothing and exits with 1 when a file differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
FILES = ("README.md", "docs/performance.md", "docs/quality.md")
_MARKED = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)

Rows = list[dict[str, Any]]


def load(name: str) -> Any:
    """The JSON of bench/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def edits() -> str:
    """Time to first token by operation and window length, against re-prefill."""
    rows: Rows = load("edits")
    sizes = sorted({row["window"] for row in rows})
    names = list(dict.fromkeys(row["op"] for row in rows))
    by = {(row["op"], row["window"]): row for row in rows}
    cells = [
        [
            name.replace("_", " "),
            *(
                f"{by[name, s]['ttft_ms']:.0f} ms, **{by[name, s]['ratio_vs_reprefill']:.0f}×**"
                for s in sizes
            ),
        ]
        for name in names
    ]
    slow = ["*re-prefill*", *(f"{by[names[0], s]['reprefill_ms']:.0f} ms" for s in sizes)]
    return markdown(["edit, then a 24-token question", *(f"{s} tokens" for s in sizes)], [*cells, slow])


def hardware() -> str:
    """Where the figures were measured."""
    row = load("edits")[0]
    return f"{row['hardware']}, {row['threads']} threads, fp32, SmolLM2-135M-Instruct\n"


TABLES: dict[str, Callable[[], str]] = {"edits": edits, "hardware": hardware}


def rendered(text: str) -> str:
    """`text` with every marked table written anew."""
    return _MARKED.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 when a file differs"
    )
    options = parser.parse_args(arguments)
    stale = []
    for path in (ROOT / name for name in FILES):
        text = path.read_text()
        if (new := rendered(text)) != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(new)
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run python -m bench.tables", file=sys.stderr)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
