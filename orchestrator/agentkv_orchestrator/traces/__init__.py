"""Generated agent loops: one function, one loop. Seeded, so that equal arguments give equal traces."""

from collections.abc import Callable

from ..errors import TraceError
from ..trace import Trace
from .clock import clock
from .compaction import compaction
from .holes import holes
from .recall import recall
from .rerank import rerank, retrieval
from .screenshots import screenshots
from .shared import shared
from .tools import tools
from .video import video

GENERATORS: dict[str, Callable[[int, int], Trace]] = {
    generator.__name__: generator
    for generator in (screenshots, clock, tools, compaction, retrieval, rerank, holes, recall, video, shared)
}
"""By name; each takes the number of turns and a seed."""


def generate(name: str, turns: int, seed: int = 0) -> Trace:
    """The trace of a loop. Raises TraceError for an unknown name or fewer than one turn."""
    if name not in GENERATORS:
        raise TraceError(f"{name!r}", f"one of {', '.join(GENERATORS)}", "pick one of them, or pass a file")
    if turns < 1:
        raise TraceError(f"{turns} turns", "at least one", "ask for more turns")
    return GENERATORS[name](turns, seed)
