"""Whether a picture fits, asked before an encoder spends time on it."""

from __future__ import annotations

from agentkv.errors import TooLong


def require_room(tokens: int, room: int | None) -> None:
    """Raises TooLong for more tokens than there is room for. room: None where nobody counts."""
    if room is not None and tokens > room:
        raise TooLong(
            got=f"an image or video of {tokens} tokens",
            expected=f"at most {max(room, 0)}, which is what the window has room for",
            do="evict or slide first, or show fewer or smaller frames",
        )
