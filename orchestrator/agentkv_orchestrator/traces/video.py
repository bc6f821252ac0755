"""A window over a video."""

from ..trace import Message, Trace, Turn
from .parts import Parts

FRAMES, STEP, TOKENS, SPAN = 16, 4, 256, 16
"""Frames in the window and new ones a turn; tokens of a frame, and the position ids it takes."""
BACK = 0.1
"""How often the agent looks at an earlier scene again."""


def video(turns: int, seed: int) -> Trace:
    """The last frames and a question; sometimes the window jumps back to frames that were seen before."""
    parts = Parts("video", seed)
    rules, frames = parts.system(), list[Message]()
    played = []
    for _ in range(turns):
        frames += [
            parts.message("image", TOKENS, name=f"frame-{len(frames) + i}", fixed=True, span=SPAN)
            for i in range(STEP)
        ]
        last = len(frames)
        if last > 2 * FRAMES and parts.draw.random() < BACK:
            last = parts.draw.randrange(FRAMES, last - FRAMES)
        seen = frames[max(0, last - FRAMES) : last]
        played.append(Turn(messages=(rules, *seen, parts.message("user", 40))))
    return parts.trace(played, "a sliding window over frames, with jumps back")
