"""A plan as one HTML page that loads nothing and runs nothing."""

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from ..plan import Op, Placing, Plan
from .account import Item, account, edit, errors, percent
from .words import COLOURS, Names, headline, label, price, rows, took, treatment

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px/1.45 sans-serif; margin: 1.5em; color: #223; max-width: 72em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .25em .6em; border-bottom: 1px solid #dde; vertical-align: top }}
td.n {{ text-align: right; white-space: nowrap }}
details {{ color: #556 }}
h2 {{ font-size: 1.1em; margin: 1.4em 0 .4em }}
</style></head><body>
{body}
</body></html>
"""

OTHER = "#8d99ae"
"""Colour of what is done to no row of the window, such as a copy to the store."""


class Box(NamedTuple):
    """One stretch of a strip: how wide, in which colour, and what it says under the pointer."""

    size: float
    colour: str
    title: str


def html(plan: Plan, names: Names, measured: Mapping[str, float]) -> str:
    """See `explain`."""
    return _PAGE.format(title=escape(headline(plan)), body="\n".join(_body(plan, names, measured)))


def strip(boxes: Iterable[Box]) -> str:
    """Boxes side by side, as wide as their sizes."""
    inner = "".join(
        f'<div title="{escape(box.title)}" style="flex:{box.size:g} 1 0;min-width:2px;'
        f'background:{box.colour};border-right:1px solid #fff"></div>'
        for box in boxes
    )
    return f'<div style="display:flex;height:24px;margin-top:4px">{inner}</div>'


def legend() -> str:
    """What the colours say, in words."""
    words = {"reused": "green", "rotated": "blue", "patched": "orange", "recomputed": "red"}
    return ", ".join(f"{what} {colour}" for what, colour in words.items())


def colour(op: Op) -> str:
    """Of a placing op by what it does; the rest is grey."""
    return COLOURS[treatment(op)] if isinstance(op, Placing) else OTHER


def _body(plan: Plan, names: Names, measured: Mapping[str, float]) -> Iterator[str]:
    yield f"<p><b>{escape(headline(plan))}</b></p>"
    yield from (f"<p>{escape(line)}</p>" for line in [took(measured)] if line)
    asked = edit(plan, names)
    if asked:
        yield f"<p>The edit: {escape('; '.join(asked))}.</p>"
    items = account(plan, names)
    if items:
        yield "<h2>Where the time goes</h2>"
        yield strip(Box(i.ms, colour(i.ops[0]), f"{percent(i.share)}: {i.what}") for i in items)
        yield f"<ul>{''.join(_reason(item) for item in items)}</ul>"
    off = errors(plan, names)
    if off:
        yield f"<h2>Where the predicted KL of {plan.predicted_kl:.3g} comes from</h2>"
        yield f"<ul>{''.join(_reason(item) for item in off)}</ul>"
    placing = sorted((op for op in plan.ops if isinstance(op, Placing)), key=lambda op: op.row)
    if placing:
        yield f"<h2>The window, by tokens</h2><p>{legend()}</p>"
        yield strip(Box(op.tokens, colour(op), f"{label(op, names)}: {op.op}") for op in placing)
    heads = ("op", "chunk", "rows", "ms", "KL", "why, and what else there was")
    yield f"<h2>Every step</h2><table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    yield from (_row(op, names) for op in plan.ops)
    yield "</table>"


def _reason(item: Item) -> str:
    return f"<li><b>{percent(item.share)}</b>, {item.ms:.4g} ms: {escape(item.what)}: {escape(item.why)}</li>"


def _row(op: Op, names: Names) -> str:
    others = "".join(
        f"<li>not {escape(o.name)} ({escape(o.reason)}) {price(o.ms, o.kl)}: {escape(o.why_not)}</li>"
        for o in op.alternatives
    )
    more = (
        f"<details><summary>{len(op.alternatives)} other</summary><ul>{others}</ul></details>"
        if others
        else ""
    )
    return (
        f'<tr><td style="color:{colour(op)}">{op.op}</td><td>{escape(label(op, names))}</td>'
        f'<td>{escape(rows(op))}</td><td class="n">{op.ms:.4g}</td><td class="n">{op.kl:.3g}</td>'
        f"<td>{escape(op.reason)}{more}</td></tr>"
    )
