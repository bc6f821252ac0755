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
from textwrap import fill
from typing import Any

from bench.eval import (
    agents,
    calibration,
    diagnoses,
    models,
    policies,
    policy_arms,
    repair,
    simulations,
    speed_tables,
    stores,
    window_tables,
)
from bench.eval import tables as evals

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
FILES = (
    "README.md",
    "docs/agents/examples.md",
    "docs/calibration.md",
    "docs/families.md",
    "docs/performance.md",
    "docs/placement.md",
    "docs/quality.md",
    "docs/redis.md",
    "docs/registry.md",
    "docs/simulate.md",
    "docs/stores.md",
    "docs/window.md",
)
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


def edits_detail() -> str:
    """What each edit costs besides time: KL at the first token, and the edit's own share of that time."""
    rows: Rows = load("edits")
    header = ["edit", "window", "KL at the first token", "edit alone", "share of the time", "tokens"]
    kinds = ("reused", "rotated", "patched", "recomputed")
    return markdown(
        header,
        [
            [
                r["op"].replace("_", " "),
                r["window"],
                f"{r['kl']:.2g}",
                f"{r['edit_ms']:.1f} ms",
                f"{r['edit_share_of_ttft']:.0%}",
                ", ".join(f"{r['tokens'][kind]} {kind}" for kind in kinds if r["tokens"][kind]),
            ]
            for r in rows
        ],
    )


def hardware() -> str:
    """Where the figures were measured."""
    row = load("edits")[0]
    return f"{row['hardware']}, {row['threads']} threads, fp32, SmolLM2-135M-Instruct\n"


def forward() -> str:
    """Ours against transformers, both in ms."""
    rows: Rows = load("forward")
    header = ["", "window", "agentkv", "the other", "ratio of times"]
    return markdown(
        header,
        [
            [
                row["op"].replace("_", " "),
                row["window"],
                f"{row['ms']:.1f} ms",
                f"{row['other_ms']:.1f} ms",
                f"**{row['ratio_of_times']:.2f}**",
            ]
            for row in rows
        ],
    )


def kernels() -> str:
    """CPU kernels against a plain copy."""
    rows: Rows = load("kernels")
    kernel = [row for row in rows if "bandwidth_share" in row]
    cutting = [row for row in rows if "chunks" in row]
    table = markdown(
        ["cache", "operation", "ms", "plain copy", "share of copy bandwidth", "reachable"],
        [
            [
                r["layout"],
                r["op"],
                r["ms"],
                r["copy_ms"],
                f"**{r['bandwidth_share']:.2f}**",
                f"{r['reachable_share']:.2f}",
            ]
            for r in kernel
        ],
    )
    lines = [f"\nCutting and hashing 1 M tokens: {r['ms']} ms ({r['chunks']} chunks).\n" for r in cutting]
    threads = sorted({r["threads"] for r in kernel})
    return table + f"\nThreads: {', '.join(map(str, threads))}.\n" + "".join(lines)


def images() -> str:
    """Recall of an image against the prefill of its tokens."""
    rows: Rows = load("images")
    header = [
        "",
        "window",
        "recall",
        "prefill of its tokens",
        "ratio of times",
        "vision tower",
        "KL",
        "KL without the image",
    ]
    return markdown(
        header,
        [
            [
                r["op"].replace("_", " "),
                r["window"],
                f"{r['ms']:.1f} ms",
                f"{r['prefill_ms']:.1f} ms",
                f"**{r['ratio_of_times']:.2f}**",
                f"{r['encode_ms']:.0f} ms, not run",
                f"{r['kl']:.2g}",
                f"{r['kl_without_image']:.2g}",
            ]
            for r in rows
        ],
    )


def registers() -> str:
    """The most that any variant of a kernel takes, by architecture."""
    found = load("kernel_registers")
    rows: Rows = found["rows"]
    kinds = sorted({(row["kernel"], row["sm"]) for row in rows})
    cells = []
    for kernel, sm in kinds:
        own = [row for row in rows if (row["kernel"], row["sm"]) == (kernel, sm)]
        most = {key: max(row[key] for row in own) for key in ("registers", "spills", "shared")}
        cells.append([kernel, f"sm_{sm}", len(own), most["registers"], most["spills"], most["shared"]])
    header = ["kernel", "architecture", "variants", "registers a thread", "spills", "shared bytes"]
    return markdown(header, cells) + f"\nTriton {found['triton']}; {found['source']}.\n"


def memory() -> str:
    """Peak resident memory beside transformers' generate."""
    rows: Rows = load("memory")
    header = ["window", "agentkv", "transformers generate", "ratio"]
    mega = 1 << 20
    return markdown(
        header,
        [
            [
                r["window"],
                f"{r['bytes'] / mega:.0f} MiB",
                f"{r['other_bytes'] / mega:.0f} MiB",
                f"**{r['ratio']:.3f}**",
            ]
            for r in rows
        ],
    )


def recovery() -> str:
    """Shares of tokens that each arm knows again, by kind of trace."""
    found = load("registry")
    interval = "{share:.1%} [{low:.1%}, {high:.1%}]"
    arms = list(next(iter(found.values()))["arms"])
    rows = [[arm, *(interval.format(**trace["arms"][arm]) for trace in found.values())] for arm in arms]
    sizes = ["{prompts} prompts, {sessions} sessions, {tokens:,} tokens".format(**t) for t in found.values()]
    return markdown(["known, of what is behind the exact prefix", *found], [*rows, ["*size*", *sizes]])


def registry_lookups() -> str:
    """A registry of a million chunks."""
    r = load("registry_lookups")
    rows = [
        ["entries", f"{r['entries']:,}, {r['mean_tokens']} tokens each"],
        *(
            [
                f"look-up, {kind}",
                f"median {r[kind]['median_us']} µs, p99 {r[kind]['p99_us']} µs "
                f"(with other processes in the way {r[kind]['one_pass_p99_us']} µs)",
            ]
            for kind in ("hit", "miss")
        ),
        [
            "matching a prompt of 8,000 tokens",
            f"{r['known_prompt_ms']} ms known, {r['new_prompt_ms']} ms new",
        ],
        [
            "overhead of an entry",
            f"{r['overhead_bytes']} bytes, at most {r['most_overhead_bytes']} on the way",
        ],
        ["its id and tokens", f"{r['key_bytes']} and {r['token_bytes']} bytes"],
        ["machine", r["hardware"]],
    ]
    return markdown(["", "measured"], rows)


def headers() -> str:
    """Below a header that changes: what each policy computes, and what that costs in truth."""
    found = load("headers")
    rows = []
    for policy in dict.fromkeys(row["policy"] for row in found["rows"]):
        own = [row for row in found["rows"] if row["policy"] == policy]
        share = sum(row["computed"] for row in own) / sum(row["tokens"] for row in own)
        predicted, true = ([row[name] for row in own] for name in ("predicted_kl", "kl"))
        over = sum(row["kl"] > row["budget"] for row in own)
        cells = [f"{sum(kls) / len(own):.4f}, at most {max(kls):.4f}" for kls in (predicted, true)]
        rows.append([policy, len(own), f"{share:.0%}", *cells, f"{over} of {len(own)}"])
    header = ["policy", "turns", "tokens computed", "predicted KL", "audited KL", "over the budget"]
    return markdown(header, rows) + f"\n{found['hardware']}, fp32, SmolLM2-135M-Instruct.\n"


def redis_tier() -> str:
    """A window's KV from a Redis server, beside the disk."""
    r = load("redis")
    rows = [
        [
            f"{what} the KV of {r['tokens']} tokens, {r['mib']:.0f} MiB",
            *(f"{r[f'{name}_{op}_ms']:.0f} ms" for name in ("disk", "redis")),
            f"**{r[f'{op}_ratio']}**",
        ]
        for what, op in (("get", "get"), ("put", "put"))
    ]
    header = ["", "disk, in the page cache", "Redis on loopback", "ratio of times"]
    return markdown(header, rows) + f"\n{r['hardware']}, fp32.\n"


SHORT = {
    "re-prefill": "computed again behind A (re-prefill)",
    "blind": "reused as it is (blind)",
    "rotate": "reused, rotated to its place",
    "random rows, 25%": "a quarter of the rows computed again, at random",
    "patch by energy in bf16, 6%": "patched, 6 % of the bytes",
    "patch by energy in bf16, 12%": "patched, 12 % of the bytes",
    "patch by energy in bf16, 25%": "patched, 25 % of the bytes",
}


def binding_short() -> str:
    """The arms that the README shows."""
    header, rows = evals.binding()
    kept = {row[0]: row for row in rows}
    cells = [[text, *kept[arm][1:3], kept[arm][4]] for arm, text in SHORT.items()]
    return markdown([header[0].replace("B's KV", "KV of chunk B"), *header[1:3], header[4]], cells)


SLOW_TURN = ROOT / "tests" / "golden" / "balanced_computes_where_the_budget_ends.json"


def gaps() -> str:
    """Survivors of a hole that move up, and that keep their position ids."""
    found = load("gaps_smollm2")
    rows = [
        [name, f"{mean:.4f} [{low:.4f}, {high:.4f}]"]
        for name, (mean, low, high) in (
            ("positions closed (rotate)", found["kl"]["rotate"]),
            ("positions kept (gap)", found["kl"]["gap"]),
            ("blind reuse", found["kl"]["blind"]),
        )
    ]
    ms = found["ms"]
    note = f"rotating {found['tokens']} rows {ms['rotate']:.2f} ms, copying them {ms['copy']:.2f} ms"
    return markdown(["", f"KL, {found['n']} windows"], rows) + f"\n{note[0].upper()}{note[1:]}.\n"


def repaired() -> str:
    """KL and η by share of rows computed again, and by who chose them."""
    found = load("repair_smollm2")
    blind = found["arms"]["blind"]["kl"][0]
    header = ["rows of a chunk", "attended most", "at random", "the first ones"]
    return markdown(header, repair.table(found)) + f"\nBlind reuse: {blind:.4f}; {found['n']} windows.\n"


def lived() -> str:
    """Whole lives of windows, by arm."""
    state = load("policies_smollm2")
    windows = state["windows"]
    turns = sum(len(window) for window in windows)
    budget, hardware = policy_arms.BUDGET, state["head"]["hardware"]
    note = f"{len(windows)} windows, {turns} turns, KL budget {budget:g}, {hardware}"
    return markdown(policies.HEADER, list(policies.table(state))) + f"\n{note}.\n"


def slow_turn() -> str:
    """What an explanation says first: the edit, where the time goes, where the error comes from."""
    lines: list[str] = json.loads(SLOW_TURN.read_text())["explained"]
    told = [line for line in lines[1:] if line.startswith("  the edit:") or "% of " in line.partition(":")[0]]
    wrapped = (fill(line, 110, subsequent_indent="      ") for line in (lines[0], *told))
    return "```\n" + "\n".join(wrapped) + "\n```\n"


TABLES: dict[str, Callable[[], str]] = {
    "edits": edits,
    "edits_detail": edits_detail,
    "hardware": hardware,
    "forward": forward,
    "kernels": kernels,
    "images": images,
    "registers": registers,
    "memory": memory,
    "planning": lambda: markdown(*speed_tables.planning(load("planning"))),
    "chat": lambda: markdown(*speed_tables.chat(load("chat"))),
    "stores_warm": lambda: markdown(*stores.warm_start(load("stores"))),
    "stores_identity": lambda: markdown(*stores.identity(load("stores"))),
    "stores_index": lambda: markdown(*stores.indexes(load("stores"))),
    "stores_texts": lambda: markdown(*stores.texts(load("stores"))),
    "stores_codecs": lambda: markdown(*stores.codecs(load("stores"))),
    "quality": lambda: markdown(*evals.quality()),
    "binding": lambda: markdown(*evals.binding()),
    "binding_short": binding_short,
    "recovery": recovery,
    "redis_tier": redis_tier,
    "headers": headers,
    "registry_lookups": registry_lookups,
    "conversions": lambda: markdown(*models.conversions()),
    "screen_readouts": lambda: markdown(*models.readouts()),
    "screen_tasks": lambda: markdown(*models.tasks()),
    "disposable": lambda: markdown(*window_tables.disposable(window_tables.load("disposability"))),
    "slow_turn": slow_turn,
    "gaps": gaps,
    "repair": repaired,
    "policies": lived,
    "agents": lambda: markdown(*agents.runs()),
    "branches": lambda: markdown(*window_tables.branches(window_tables.load("branches"))),
    "simulated_loops": lambda: markdown(*simulations.loops()),
    "simulated_kl": lambda: markdown(*simulations.loops_kl()),
    "simulated_evictors": lambda: markdown(*simulations.evictors()),
    "simulation_speed": lambda: markdown(*simulations.speed()),
    "placement": lambda: markdown(*simulations.placement()),
    "placement_run": simulations.placement_run,
    "calibration_trust": lambda: markdown(*calibration.trust()),
    "calibration_errors": lambda: markdown(*calibration.errors()),
    "calibration_edits": lambda: markdown(*calibration.edits()),
    "calibration_prices": lambda: markdown(*calibration.prices()),
    "diagnosis_repair": lambda: markdown(*diagnoses.repair()),
    "diagnosis_depth": lambda: markdown(*diagnoses.depth()),
    "diagnosis_tokens": lambda: markdown(*diagnoses.tokens()),
    "diagnosis_edits": lambda: markdown(*diagnoses.edits()),
    "diagnosis_structure": lambda: markdown(*diagnoses.structure()),
}


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
