"""Videos: frames that can leave one by one, or one chunk with the model's own positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agentkv.errors import InvalidInput, TooLong, UnsupportedModel
from agentkv.vision import Video, prepare
from agentkv.vision.positions import frame_ranges
from tests.runtime.media.cases import (
    FAMILIES,
    GRIDDED,
    Piece,
    all_ids,
    laid_out,
    our_logits,
    position_ids,
    rig,
    tokens,
)
from tests.tolerances import LOGITS
from tests.vlm_models import picture

FILMED = (*GRIDDED, "smolvlm", "llava_onevision", "internvl")
FILM = Video([picture(32, 32, seed) for seed in range(9)], fps=2.0)
"""Nine frames, which is odd, and more than a frame is high, so that time outruns height."""


def around(family: str) -> tuple[str, str]:
    """Texts in front and behind; GLM tells a video from images by these markers."""
    return ("ab<|begin_of_video|>", "<|end_of_video|>cde") if family.startswith("glm") else ("ab", "cde")


def from_pixels(family: str) -> dict[str, Any]:
    found, (front, back) = rig(family), around(family)
    meta = {"total_num_frames": 9, "fps": 2.0, "duration": 4.5, "frames_indices": list(range(9))}
    inputs = found.processor(
        text=front + found.processor.video_token + back,
        videos=[torch.stack([torch.from_numpy(np.array(frame)).permute(2, 0, 1) for frame in FILM.frames])],
        videos_kwargs={"video_metadata": [meta], "do_sample_frames": False},
        add_special_tokens=False,
        return_tensors="pt",
    )
    return {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}


def whole(family: str) -> list[Piece]:
    front, back = around(family)
    return laid_out(rig(family), [front, FILM, back], whole=True)


def frames(family: str) -> list[Piece]:
    return [piece for piece in laid_out(rig(family), [FILM]) if piece.media]


@pytest.mark.parametrize("family", FILMED)
def test_a_whole_video_is_what_transformers_makes_of_it(family: str) -> None:
    wanted, pieces = from_pixels(family), whole(family)
    assert all_ids(pieces).tolist() == wanted["input_ids"][0].tolist()
    with torch.inference_mode():
        truth = rig(family).model(**wanted).logits[0]
    assert float((our_logits(rig(family), family, pieces) - truth).abs().max()) <= LOGITS[torch.float64]


@pytest.mark.parametrize("family", GRIDDED)
def test_a_whole_video_stands_at_the_positions_of_get_rope_index(family: str) -> None:
    expected, _ = rig(family).model.base_model.get_rope_index(**from_pixels(family))
    assert torch.equal(position_ids(whole(family), 3), expected)


def test_seconds_are_positions_in_qwen2_5_vl() -> None:
    """Two frames a second, two merged: one second from chunk to chunk, four positions each."""
    times = whole("qwen2_5_vl")[1].media.offsets[0]  # type: ignore[union-attr]
    assert times.unique().tolist() == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("family", FILMED)
def test_frames_are_the_video_cut_into_pieces(family: str) -> None:
    """Same tokens, same features, and one run of the tower for all of them."""
    found = rig(family)
    runs = found.tower.runs
    pieces = laid_out(found, [FILM])
    assert found.tower.runs == runs + 1
    (one,) = laid_out(found, [FILM], whole=True)
    assert all_ids(pieces).tolist() == one.ids.tolist()
    cut = [piece.media for piece in pieces if piece.media]
    assert len(cut) == (5 if family in GRIDDED else 9)
    assert torch.equal(torch.cat([media.features.pooled for media in cut]), one.media.features.pooled)  # type: ignore[union-attr]
    for index, layer in enumerate(one.media.features.deep):  # type: ignore[union-attr]
        assert torch.equal(torch.cat([media.features.deep[index] for media in cut]), layer)
    assert {media.modality for media in cut} == {"video"}


@pytest.mark.parametrize("family", GRIDDED)
def test_every_frame_counts_its_positions_from_itself(family: str) -> None:
    """That is what lets one leave: what is behind moves by one number."""
    for piece in frames(family):
        offsets = piece.media.offsets  # type: ignore[union-attr]
        assert offsets.min() == 0
        assert int(offsets.max()) == piece.span - 1
        assert offsets[0, piece.media.placeholders].unique().numel() == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("family", "first", "last"),
    [
        ("qwen3_vl", "<0.2 seconds><|vision_start|>", "<4.0 seconds><|vision_start|>"),
        ("smolvlm", "\nFrame from 00:00:<fake_token_around_image><global-img>", "\nFrame from 00:04:"),
        ("internvl", "Frame1: <img>", "\nFrame9: <img>"),
    ],
)
def test_times_and_markers_go_with_their_frame(family: str, first: str, last: str) -> None:
    own, pieces = rig(family).processor, frames(family)
    for piece, text in ((pieces[0], first), (pieces[-1], last)):
        wanted = tokens(own, text)
        assert piece.ids[: len(wanted)].tolist() == wanted.tolist()


@pytest.mark.parametrize(("family", "time"), [("glm4v", "4"), ("glm46v", "4.0 seconds"), ("glm4v_moe", "4")])
def test_glm_writes_the_time_behind_the_frame(family: str, time: str) -> None:
    last = frames(family)[-1].ids
    wanted = tokens(rig(family).processor, f"<|end_of_image|>{time}")
    assert last[-len(wanted) :].tolist() == wanted.tolist()
    assert int(last[0]) == int(tokens(rig(family).processor, "<|begin_of_image|>"))


def test_what_introduces_a_video_stays_when_its_first_frame_leaves() -> None:
    lead, first = laid_out(rig("smolvlm"), [FILM])[:2]
    assert lead.media is None
    assert first.media is not None
    wanted = tokens(rig("smolvlm").processor, "You are provided")
    assert lead.ids[: len(wanted)].tolist() == wanted.tolist()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(FILMED)))
def test_a_model_without_videos_says_so(family: str) -> None:
    runs = rig(family).tower.runs
    with pytest.raises(UnsupportedModel, match="append the frames as images"):
        prepare(FILM, rig(family).tower)
    assert rig(family).tower.runs == runs


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v", "smolvlm"])
def test_a_model_that_tells_the_time_wants_fps(family: str) -> None:
    with pytest.raises(InvalidInput, match="fps"):
        prepare(list(FILM.frames), rig(family).tower)
    assert prepare(list(FILM.frames), rig(family).tower, fps=2.0)


@pytest.mark.parametrize("whole", [False, True])
def test_a_video_that_does_not_fit_is_refused_before_the_tower_runs(whole: bool) -> None:
    found = rig("qwen2_vl")
    runs = found.tower.runs
    with pytest.raises(TooLong, match="at most 79"):
        prepare(FILM, found.tower, whole=whole, room=79)
    assert found.tower.runs == runs
    assert sum(len(ids) for ids, _ in prepare(FILM, found.tower, whole=whole, room=80)) == 80


BROKEN = {
    "no frames": ([], "without frames"),
    "no frames in a Video": (Video([], fps=1.0), "without frames"),
    "an empty array": (np.empty((0, 8, 8, 3), np.uint8), "without frames"),
    "two sizes": ([picture(8, 8), picture(8, 16)], "different sizes"),
    "a float array": (np.zeros((2, 8, 8, 3), np.float32), "float32"),
    "no image": ([picture(8, 8), "nowhere.png"], "nowhere.png"),
    "a file without fps": ("film.mp4", "fps"),
    "a number of frames": (Video(9, fps=1.0), "type int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_video_is_refused(name: str) -> None:
    source, said = BROKEN[name]
    runs = rig("qwen2_vl").tower.runs
    with pytest.raises(InvalidInput, match=said) as caught:
        prepare(source, rig("qwen2_vl").tower)
    assert all((caught.value.got, caught.value.expected, caught.value.do))
    assert rig("qwen2_vl").tower.runs == runs


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf"), "2"])
def test_an_impossible_fps_is_refused(fps: Any) -> None:
    frames = list(FILM.frames)
    for source, given in ((frames, fps), (Video(frames, fps), None)):
        with pytest.raises(InvalidInput, match="fps"):
            prepare(source, rig("qwen2_vl").tower, fps=given)


def test_frames_without_anything_between_them_are_cut_evenly() -> None:
    assert frame_ranges(torch.ones(13, dtype=torch.bool), 3, False) == [(0, 4), (4, 8), (8, 13)]
    assert frame_ranges(torch.ones(6, dtype=torch.bool), 3, True) == [(0, 2), (2, 4), (4, 6)]
