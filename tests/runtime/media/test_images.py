"""Every kind of image becomes upright 8-bit RGB, or is refused with a reason and before anything runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.vision import prepare
from agentkv.vision.images import load_image
from tests.runtime.media.cases import FAMILIES, GRIDDED, rig
from tests.vlm_models import picture


def encoded(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def pixels(source: Any) -> np.ndarray:
    image = load_image(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def test_all_ways_to_hand_over_an_image_are_the_same(tmp_path: Path) -> None:
    image = picture(7, 5)
    path = tmp_path / "image.png"
    path.write_bytes(encoded(image))
    for source in (image, path, str(path), encoded(image), bytearray(encoded(image)), np.asarray(image)):
        assert np.array_equal(pixels(source), np.asarray(image))


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (3, 3), (4, 3)])
def test_channels_come_last_however_small_the_image(size: tuple[int, int]) -> None:
    """A library that guesses the layout from the shape reads 3 x 3 pixels sideways."""
    image = picture(*size)
    assert np.array_equal(pixels(np.asarray(image)), np.asarray(image))
    (chunk,) = prepare(image, rig("qwen2_vl").tower)
    (again,) = prepare(np.asarray(image), rig("qwen2_vl").tower)
    assert chunk[1].digest == again[1].digest  # type: ignore[union-attr]


def test_exif_orientation_is_applied() -> None:
    """6: the camera lay on its side; a viewer turns the image clockwise."""
    image = picture(6, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = pixels(encoded(image, exif=exif))
    assert np.array_equal(turned, np.rot90(np.asarray(image), -1))
    assert not load_image(encoded(image, exif=exif)).getexif()


def test_transparency_lies_on_white() -> None:
    red = np.full((2, 2, 4), (200, 0, 0, 255), np.uint8)
    red[0, 0, 3], red[1, 1, 3] = 0, 128
    seen = pixels(red)
    assert seen[0, 0].tolist() == [255, 255, 255]
    assert seen[0, 1].tolist() == [200, 0, 0]
    assert seen[1, 1].tolist() == [227, 127, 127]
    palette = Image.fromarray(red).quantize(4)
    assert pixels(encoded(palette, transparency=palette.getpixel((0, 1))))[0, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"])
def test_other_modes_of_eight_bits_are_converted_as_pillow_does(mode: str) -> None:
    grey = picture(8, 6).convert("L")
    image = picture(8, 6).convert(mode) if mode != "LAB" else Image.merge("LAB", [grey, grey, grey])
    assert np.array_equal(pixels(image), np.asarray(image.convert("RGB")))


def test_a_grey_image_has_three_equal_channels() -> None:
    grey = picture(8, 6).convert("L")
    assert np.array_equal(pixels(grey), np.stack([np.asarray(grey)] * 3, -1))


GIF = encoded(picture(4, 4), "GIF", save_all=True, append_images=[picture(4, 4, 1)])
BROKEN: dict[str, tuple[Any, str]] = {
    "no such file": (Path("/nowhere/image.png"), "nowhere"),
    "no such str": ("nowhere.png", "nowhere"),
    "a directory": (Path("/"), "cannot be read"),
    "bytes of text": (b"this is not an image", "cannot be read"),
    "no bytes": (b"", "cannot be read"),
    "a cut png": (encoded(picture(60, 60))[:500], "cannot be"),
    "a cut jpeg": (encoded(picture(60, 60), "JPEG")[:900], "cannot be"),
    "a gif of two frames": (GIF, "2 frames"),
    "an opened gif of two frames": (Image.open(io.BytesIO(GIF)), "2 frames"),
    "sixteen bits": (Image.fromarray(np.zeros((4, 4), np.uint16)), "I;16"),
    "integers": (Image.new("I", (4, 4)), "'I'"),
    "floats": (Image.new("F", (4, 4)), "'F'"),
    "no width": (Image.new("RGB", (0, 4)), "0 x 4"),
    "no height": (Image.new("RGB", (4, 0)), "4 x 0"),
    "a float array": (np.zeros((4, 4, 3), np.float32), "float32"),
    "a 16-bit array": (np.zeros((4, 4, 3), np.uint16), "uint16"),
    "a bool array": (np.zeros((4, 4, 3), bool), "bool"),
    "channels first": (np.zeros((3, 8, 8), np.uint8), r"\[3, 8, 8\]"),
    "a grey array": (np.zeros((8, 8), np.uint8), r"\[8, 8\]"),
    "two channels": (np.zeros((8, 8, 2), np.uint8), r"\[8, 8, 2\]"),
    "an empty array": (np.zeros((0, 8, 3), np.uint8), r"\[0, 8, 3\]"),
    "a sound file": ("speech.wav", "audio"),
    "samples": (np.zeros(16000, np.float32), "float32"),
    "a number": (3, "int"),
    "nothing": (None, "NoneType"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_image_is_refused_before_anything_runs(name: str) -> None:
    source, said = BROKEN[name]
    tower = rig("qwen2_vl").tower
    runs = tower.runs
    with pytest.raises(InvalidInput, match=said) as caught:
        prepare(source, tower)
    assert all((caught.value.got, caught.value.expected, caught.value.do))
    assert tower.runs == runs


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (2000, 500):  # Pillow warns above its limit and raises above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(InvalidInput, match="cannot be read"):
            load_image(encoded(picture(60, 60)))


def test_without_pillow_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(UnsupportedModel, match="pillow"):
        load_image(b"")


SLIVERS = {"a pixel": (1, 1), "a row": (600, 2), "a column": (2, 600)}
REFUSED = {(family, shape) for family in (*GRIDDED, "mistral3") for shape in ("a row", "a column")}
REFUSED |= {("mistral3", "a pixel")}


@pytest.mark.parametrize("shape", SLIVERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sliver_is_taken_or_refused(family: str, shape: str) -> None:
    image = picture(*SLIVERS[shape])
    if (family, shape) in REFUSED:
        with pytest.raises(InvalidInput, match="does not take") as caught:
            prepare(image, rig(family).tower)
        assert all((caught.value.got, caught.value.expected, caught.value.do))
    else:
        ((ids, media),) = prepare(image, rig(family).tower)
        assert media is not None
        assert int(media.placeholders.sum()) == len(media.features.pooled) <= len(ids)
