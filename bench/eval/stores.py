"""Tables of docs/stores.md, from what bench.serve.stores wrote."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]
Table = tuple[list[str], list[list[str]]]


def warm_start(rows: Rows) -> Table:
    """A saved window opened again, beside its prefill and its bytes."""
    header = ["window", "bytes", "prefill", "opened", "prefill / opened", "opened / bytes read"]
    header += ["entries read / bytes read"]
    return header, [
        [
            f"{r['tokens']} tokens",
            f"{r['bytes'] / 1e6:.0f} MB",
            f"{r['prefill_ms']:.0f} ms",
            f"{r['open_ms']:.0f} ms",
            f"**{r['prefill_over_open']:.0f}×**",
            f"{r['open_over_read']:.2f}",
            f"{r['get_over_read']:.2f}",
        ]
        for r in rows
        if r["part"] == "warm start"
    ]


def indexes(rows: Rows) -> Table:
    """A look-up and a write, by index."""
    found = [r for r in rows if r["part"] == "index"]
    cells = [[r["index"], f"{r['look_up_us']:.0f} µs", f"{r['write_us']:.0f} µs"] for r in found]
    return ["index", "look-up, a chunk of four entries", "one write"], cells


def texts(rows: Rows) -> Table:
    """What an engine takes to know the texts of a store."""
    found = [r for r in rows if r["part"] == "texts"]
    cells = [[f"{r['chunks']} of {r['tokens']} tokens", f"{r['text_us'] / 1e3:.2f} ms"] for r in found]
    return ["chunks in a folder", "listed, read and registered, each"], cells


def identity(rows: Rows) -> Table:
    """What naming a context takes, by hash."""
    cells = [[r["hash"], f"{r['link_us']:.2f} µs"] for r in rows if r["part"] == "identity"]
    return ["hash", "a link, object included"], cells


def codecs(rows: Rows) -> Table:
    """Bytes and KL of what is stored in fewer bytes."""
    found = [r for r in rows if r["part"] == "codecs"]
    header = ["of", "codec", "bytes", f"KL, mean of {found[0]['windows']} windows", "largest"]
    return header, [
        [r["what"], r["codec"], f"{r['share_of_bytes']:.2f}", f"{r['kl']:.1e}", f"{r['kl_most']:.1e}"]
        for r in found
    ]
