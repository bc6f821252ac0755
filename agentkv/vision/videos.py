"""From whatever a caller has to the frames of a video, all of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.vision.images import load_image

if TYPE_CHECKING:
    from PIL.Image import Image

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg"})
DECODERS = {"torchcodec": "torchcodec", "pyav": "av", "opencv": "cv2"}
"""transformers' name of a decoder and the module it needs, in the order they are tried."""


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
    frames of different sizes or frames that are no images; UnsupportedModel naming the packages when a
    file cannot be decoded here.
    """
    if fps is not None and not fps > 0:
        raise InvalidInput(got=f"fps={fps}", expected="frames a second above 0", do="pass another fps")
    if isinstance(source, str | Path):
        source = _decoded(Path(source).expanduser(), fps)
    if isinstance(source, Video):
        source, fps = source.frames, source.fps if fps is None else fps
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
    return frames, fps


def _decoded(path: Path, fps: float | None) -> Video:
    from transformers.video_utils import load_video as decode

    if fps is None:
        raise InvalidInput(
            got=f"the video {str(path)!r} without fps",
            expected="how many frames a second to look at",
            do="pass fps=, for instance 2.0",
        )
    backend = next((name for name, module in DECODERS.items() if find_spec(module)), None)
    if backend is None:
        raise UnsupportedModel(
            got=f"the video file {str(path)!r}, and no decoder",
            expected=f"one of the packages {', '.join(DECODERS.values())}",
            do="pip install av, or pass the frames as a list of images",
        )
    try:
        frames, meta = decode(str(path), fps=fps, backend=backend)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(
            got=f"{str(path)!r}, which {backend} cannot read ({str(error)[:120]})",
            expected="a video file",
            do="check path and file",
        ) from error
    return Video(list(np.asarray(frames)), len(frames) / meta.duration if meta.duration else fps)
