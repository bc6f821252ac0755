"""From whatever a caller has to the frames of a video, all of one size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.vision.images import load_image

if TYPE_CHECKING:
    from PIL.Image import Image

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg"})
MOST_FRAMES = 4096
"""Taken from a file: no model's window holds more, and a broken time stamp must not fill the memory."""


@dataclass(frozen=True, eq=False)
class Video:
    """Frames to show, as they are: nothing is sampled or dropped.

    fps: frames a second, for models that write times into the prompt; None where unknown.
    """

    frames: Sequence[Any]
    fps: float | None = None


def is_video(source: Any) -> bool:
    """Whether a source means a video: a `Video`, a sequence of frames, an array [F, H, W, C], or a file by
    its suffix."""
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in VIDEO_SUFFIXES
    if isinstance(source, np.ndarray):
        return source.ndim == 4
    return isinstance(source, Video | list | tuple)


def load_video(source: Any, fps: float | None = None) -> tuple[list[Image], float | None]:
    """RGB frames of one size, and frames a second where known.

    fps: of the frames given, or how many a second to take from a file. Raises InvalidInput for no frames,
    frames of different sizes or frames that are no images; UnsupportedModel naming the package when a file
    cannot be decoded here.
    """
    if isinstance(source, Video):
        source, fps = source.frames, source.fps if fps is None else fps
    if fps is not None and not (isinstance(fps, Real) and isfinite(fps) and fps > 0):
        raise InvalidInput(got=f"fps={fps!r}", expected="frames a second above 0", do="pass another fps")
    if isinstance(source, str | Path):
        source = _decoded(Path(source).expanduser(), fps)
    if not isinstance(source, Iterable):
        raise InvalidInput(
            got=f"a video of type {type(source).__name__}",
            expected="a sequence of frames, or the path of a video file",
            do="pass the frames as a list of images",
        )
    frames = [load_image(frame) for frame in source]
    if not frames:
        raise InvalidInput(got="a video without frames", expected="at least one frame", do="skip it")
    sizes = sorted({frame.size for frame in frames})
    if len(sizes) > 1:
        raise InvalidInput(
            got=f"frames of different sizes ({', '.join(f'{w} x {h}' for w, h in sizes)})",
            expected="frames of one size",
            do="resize them, or append them as images",
        )
    return frames, None if fps is None else float(fps)


def _decoded(path: Path, fps: float | None) -> list[Any]:
    """uint8 [H, W, 3] of a file's frames, ``fps`` a second."""
    if fps is None:
        raise InvalidInput(
            got=f"the video {str(path)!r} without fps",
            expected="how many frames a second to look at",
            do="pass fps=, for instance 2.0",
        )
    if find_spec("av") is None:
        raise UnsupportedModel(
            got=f"the video file {str(path)!r}, and no decoder",
            expected="the package av",
            do="pip install av, or pass the frames as a list of images",
        )
    import av

    try:
        with av.open(str(path)) as container:
            shown = on_screen(container.decode(video=0), Fraction(fps))
            found = [_upright(frame) for frame in islice(shown, MOST_FRAMES + 1)]
    except (OSError, ValueError, IndexError, av.FFmpegError) as error:  # IndexError: sound without pictures
        raise InvalidInput(
            got=f"{str(path)!r}, which cannot be read as a video ({str(error)[:120]})",
            expected="a video file",
            do="check path and file",
        ) from error
    if len(found) > MOST_FRAMES:
        raise InvalidInput(
            got=f"more than {MOST_FRAMES} frames of {str(path)!r} at fps={fps}",
            expected=f"at most {MOST_FRAMES}",
            do="pass a lower fps, or a part of the video",
        )
    return found


def on_screen(frames: Iterable[Any], fps: Fraction) -> Iterator[Any]:
    """What is shown at 0, 1/fps, 2/fps, ... seconds after the first frame, up to the last one.

    By the frames' own times and not by counting them: screen recordings have no constant rate, and many
    files do not say how many frames they hold. A frame that stays is taken again, so that every time is
    right. frames: of PyAV, in order of time. Raises ValueError for a frame without a time.
    """
    shown, start, taken = None, Fraction(0), 0
    for frame in frames:
        if frame.pts is None:
            raise ValueError("a frame without a time")
        time = frame.pts * frame.time_base
        start = time if shown is None else start
        while shown is not None and taken / fps < time - start:
            yield shown
            taken += 1
        shown = frame
    if shown is not None and taken / fps <= time - start:
        yield shown


def _upright(frame: Any) -> np.ndarray[Any, Any]:
    """RGB as a player shows it: phones record lying and note how to turn the picture."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
