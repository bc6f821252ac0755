"""A plan written out, so that whoever reads only this understands why a turn was slow or off.

Text for people, JSON for programs, mermaid for documents, HTML for browsers.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

from ..errors import PlanError
from ..plan import Plan
from .html import html
from .mermaid import mermaid
from .text import text
from .words import Names

__all__ = ["Format", "Names", "explain"]

Format = Literal["text", "json", "mermaid", "html"]

Milliseconds = Mapping[str, float]
"""By step, as the execution of the plan took."""


def explain(
    plan: Plan,
    fmt: Format = "text",
    names: Names = MappingProxyType({}),
    measured: Milliseconds = MappingProxyType({}),
) -> str:
    """Write a plan out: what is done to each chunk, what else could have been, its price and predicted KL.

    names: by uid, what to call placements; others go by chunk id. measured: milliseconds of the steps once it
    has run, shown beside the prediction in text and HTML. JSON is the plan itself. Raises PlanError for an
    unknown format.
    """
    written: dict[str, Callable[[], str]] = {
        "text": lambda: text(plan, names, measured),
        "json": lambda: plan.to_json(indent=2),
        "mermaid": lambda: mermaid(plan, names),
        "html": lambda: html(plan, names, measured),
    }
    if fmt not in written:
        raise PlanError(f"format {fmt!r}", f"one of {', '.join(get_args(Format))}", "pick one of them")
    return written[fmt]()
