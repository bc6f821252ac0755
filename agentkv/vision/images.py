"""From whatever a caller has to one kind of image: 8-bit RGB, upright.

What is decided here, once for every model:
EXIF orientation is applied, so that the model sees what a viewer shows. Transparency is laid over white.
Greyscale, palette, CMYK and other 8-bit modes become RGB by Pillow's conversion (no colour profile).
More than 8 bits a channel is refused: how to scale it is the caller's to say.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkv.errors import InvalidInput, UnsupportedModel

if TYPE_CHECKING:
    from PIL.Image import Image

EIGHT_BIT = frozenset(
    {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
)
AUDIO_SUFFIXES = frozenset({".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus", ".aac"})


def pillow() -> Any:
    """The PIL package. Raises UnsupportedModel naming it when it is not installed."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise UnsupportedModel(
            got="an image, and no Pillow to read it",
            expected="the package pillow",
            do="pip install pillow",
        ) from error
    return PIL


def load_image(source: Any) -> Image:
    """An RGB image from a PIL image, a path, encoded bytes, or an array uint8 [H, W, 3 or 4].

    Raises InvalidInput for anything that is not one whole image of 8 bits a channel.
    """
    pil = pillow()
    if isinstance(source, np.ndarray):
        image = pil.Image.fromarray(_checked(source))
    elif isinstance(source, str | Path | bytes | bytearray | memoryview):
        image = _decoded(pil, source)
    elif isinstance(source, pil.Image.Image):
        image = source
    else:
        raise _refused(f"an object of type {type(source).__name__}", "pass a PIL image, path, bytes or array")
    return _upright_rgb(pil, image)


def _refused(got: str, do: str) -> InvalidInput:
    return InvalidInput(
        got=got, expected="one image: PIL, a path, encoded bytes or a uint8 array [H, W, 3 or 4]", do=do
    )


def _checked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4) or array.size == 0:
        raise _refused(
            f"an array {array.dtype} {list(array.shape)}",
            "scale to 0..255 as uint8, channels last; greyscale: np.stack([a] * 3, -1)",
        )
    return np.ascontiguousarray(array)


def _decoded(pil: Any, source: str | Path | bytes | bytearray | memoryview) -> Image:
    name = str(source) if isinstance(source, str | Path) else f"{len(source)} bytes"
    if isinstance(source, str | Path) and Path(source).suffix.lower() in AUDIO_SUFFIXES:
        raise _refused(f"the sound file {name!r}", "transcribe it first: no model here takes audio")
    opened = Path(source).expanduser() if isinstance(source, str | Path) else io.BytesIO(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.Image.DecompressionBombWarning)
            with pil.Image.open(opened) as image:
                _one_frame(image, name)
                image.load()
                return image
    except InvalidInput:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Warning, pil.Image.DecompressionBombError) as error:
        raise _refused(
            f"{name!r}, which cannot be read as an image ({str(error)[:120]})", "check path and file"
        ) from error


def _one_frame(image: Image, name: str) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames != 1:
        raise _refused(
            f"{name!r} with {frames} frames", "pass its frames as a video: a list of images, or one of them"
        )


def _upright_rgb(pil: Any, image: Image) -> Image:
    if image.mode not in EIGHT_BIT:
        raise _refused(
            f"an image of mode {image.mode!r}",
            "convert it to 8 bits a channel first, scaled as it should look",
        )
    if 0 in image.size:
        raise _refused(f"an image of {image.width} x {image.height} pixels", "pass one with pixels in it")
    try:
        _one_frame(image, "an image")
        upright = pil.ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            clear = upright.convert("RGBA")
            white = pil.Image.new("RGBA", clear.size, (255, 255, 255, 255))
            upright = pil.Image.alpha_composite(white, clear)
        rgb = upright.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:  # pixels are decoded only now
        raise _refused(f"an image that cannot be decoded ({str(error)[:120]})", "check the file") from error
    # Bare pixels: no EXIF or palette is left for a processor to read a second time.
    return pil.Image.frombytes("RGB", rgb.size, rgb.tobytes())
