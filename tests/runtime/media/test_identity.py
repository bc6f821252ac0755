"""Two images share their token ids; what tells them apart is the digest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agentkv.media import Media
from agentkv.vision import Video, prepare, tower_of
from agentkv.vision.identity import configuration_of, media_digest
from tests.runtime.media.cases import FAMILIES, WIDE, rig
from tests.vlm_models import picture
from tests.vlm_processors import processor


def shown(source: Any, family: str = "qwen2_vl", **settings: Any) -> Media:
    """The first chunk's media."""
    media = prepare(source, rig(family).tower, **settings)[0][1]
    assert media is not None
    return media


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_image_has_the_same_digest_and_any_pixel_changes_it(family: str) -> None:
    digest = shown(WIDE, family).digest
    assert len(digest) == 32
    assert shown(WIDE.copy(), family).digest == digest
    for at in ((0, 0, 0), (23, 39, 2), (11, 17, 1)):
        pixels = np.array(WIDE)
        pixels[at] ^= 1
        other = shown(pixels, family)
        assert other.digest != digest


def test_shape_counts_as_well_as_bytes() -> None:
    flat = np.asarray(picture(4, 6)).reshape(-1)
    digests = {shown(flat.reshape(h, w, 3)).digest for h, w in ((6, 4), (4, 6), (2, 12), (12, 2), (24, 1))}
    assert len(digests) == 5


def test_an_image_is_not_a_frame() -> None:
    assert shown(WIDE).digest != shown([WIDE, WIDE]).digest
    assert media_digest("image", [WIDE], torch.zeros(1, 1), b"") != media_digest(
        "video", [WIDE], torch.zeros(1, 1), b""
    )


def test_a_frame_is_the_same_in_two_videos() -> None:
    frames = [picture(16, 16, seed) for seed in range(6)]
    one = [media for _, media in prepare(frames, rig("qwen2_vl").tower) if media]
    two = [media for _, media in prepare(frames[2:], rig("qwen2_vl").tower) if media]
    assert [media.digest for media in one[1:]] == [media.digest for media in two]
    assert len({media.digest for media in one}) == 3
    swapped = [media for _, media in prepare([frames[1], frames[0]], rig("qwen2_vl").tower) if media]
    assert swapped[0].digest != one[0].digest


def test_a_whole_video_at_another_speed_is_another_chunk() -> None:
    """qwen2_5_vl: same pixels and ids, but other positions."""
    frames = [picture(16, 16, seed) for seed in range(4)]
    slow = shown(Video(frames, 1.0), "qwen2_5_vl", whole=True)
    fast = shown(Video(frames, 4.0), "qwen2_5_vl", whole=True)
    assert slow.digest != fast.digest


@pytest.mark.parametrize(
    "setting",
    [{"size": {"shortest_edge": 64, "longest_edge": 2048}}, {"image_mean": [0.4, 0.5, 0.5]}, {"resample": 0}],
    ids=str,
)
def test_another_processor_configuration_is_another_chunk(setting: dict[str, Any]) -> None:
    """Same pixels, same number of tokens, other features."""
    found, other = rig("qwen2_vl"), processor("qwen2_vl")
    for name, value in setting.items():
        setattr(other.image_processor, name, value)
    ((ids, media),) = prepare(WIDE, tower_of(found.model, other))
    ((same_ids, same),) = prepare(WIDE, found.tower)
    assert ids.tolist() == same_ids.tolist()
    assert media.digest != same.digest  # type: ignore[union-attr]


def test_who_scales_the_pixels_is_part_of_the_configuration() -> None:
    """Pillow's and torchvision's resize give other pixels under the same settings."""
    own, other = processor("qwen2_vl"), processor("qwen2_vl")
    assert configuration_of(own) == configuration_of(other)
    other.image_processor.__class__ = type("Qwen2VLImageProcessor", (type(own.image_processor),), {})
    assert configuration_of(own) != configuration_of(other)


def test_fields_do_not_run_together() -> None:
    offsets = torch.zeros((1, 1), dtype=torch.int64)
    assert media_digest("image", [WIDE], offsets, b"ab") != media_digest("image", [WIDE], offsets, b"a")
    assert media_digest("imagea", [WIDE], offsets, b"b") != media_digest("image", [WIDE], offsets, b"ab")
