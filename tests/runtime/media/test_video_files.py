"""Video files: what is on the screen at the times asked for, decoded for real."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.vision import prepare
from agentkv.vision.videos import load_video
from tests.runtime.cases import STRICT
from tests.runtime.media.cases import rig
from tests.runtime.media.windows import assert_shows, engine

av = pytest.importorskip("av")

STEP = 20
"""Brightness of the upper half of frame i is STEP * i, so that a decoded frame tells its number."""
WIDTH, HEIGHT = 32, 48


def film(path: Path, times: list[float]) -> Path:
    """A file whose frames start at these times, in seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=1000)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for index, time in enumerate(times):
            pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            pixels[: HEIGHT // 2] = STEP * index
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(1000 * time), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def numbers(path: Path, fps: float) -> list[int]:
    frames, said = load_video(path, fps)
    assert said == fps
    return [round(frame.getpixel((5, 5))[0] / STEP) for frame in frames]  # type: ignore[index]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_frames_are_taken_at_even_times(tmp_path: Path, suffix: str) -> None:
    """Also of files that do not say how many frames they hold (Matroska)."""
    path = film(tmp_path / f"film{suffix}", [index / 10 for index in range(11)])
    assert numbers(path, 2.0) == [0, 5, 10]
    assert numbers(path, 10.0) == list(range(11))
    assert numbers(path, 0.5) == [0]


def test_a_screen_that_stands_still_is_shown_again(tmp_path: Path) -> None:
    """Recordings of a screen have a frame where something changed; times must be right all the same."""
    path = film(tmp_path / "film.mp4", [0.0, 0.1, 3.0, 3.1])
    assert numbers(path, 2.0) == [0, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("matrix", "bright"), [((0, 1, -1, 0), "right"), ((0, -1, 1, 0), "left")])
def test_a_phone_held_upright_is_seen_upright(tmp_path: Path, matrix: tuple[int, ...], bright: str) -> None:
    """The track header notes (a, b, c, d): (x, y) is shown at (ax + cy, bx + dy)."""
    path = film(tmp_path / "film.mp4", [0.0, 0.1, 0.2, 0.3])
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    (frame, *_) = load_video(path, 10.0)[0][3:]
    assert frame.size == (HEIGHT, WIDTH)
    left, right = (frame.getpixel((x, WIDTH // 2))[0] for x in (3, HEIGHT - 4))  # type: ignore[index]
    assert (left < right) == (bright == "right")


def test_a_file_is_its_frames(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4", [index / 10 for index in range(11)])
    frames, _ = load_video(path, 5.0)
    assert len(frames) == 6
    with engine("qwen2_vl") as built:
        window = built.window(STRICT)
        _, second, _ = window.append(path, fps=5.0)
        window.append("ab")
        window.commit()
        assert_shows("qwen2_vl", window, frames, "ab")
        window.evict(second)
        window.commit()
        assert_shows("qwen2_vl", window, frames[:2], frames[4:], "ab")
        assert built.tower.runs == 1


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    sound = tmp_path / "sound.mp4"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate, frame.pts = 8000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(b"no video" * 99)
    for path in (sound, noise, tmp_path / "nothing.mp4"):
        with pytest.raises(InvalidInput, match=path.name):
            load_video(path, 1.0)


def test_more_frames_than_any_window_holds_are_refused(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4", [0.0, 1.0])
    with pytest.raises(InvalidInput, match="lower fps"):
        load_video(path, 1e9)


def test_a_file_without_a_decoder_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.vision.videos.find_spec", lambda _: None)
    with pytest.raises(UnsupportedModel, match="pip install av"):
        prepare(tmp_path / "film.mp4", rig("qwen2_vl").tower, fps=1.0)
