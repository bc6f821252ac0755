"""Which picture a chunk shows: placeholders share their ids, so pixels must be part of its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agentkv.errors import UnsupportedModel
from agentkv.media import Media

if TYPE_CHECKING:
    from PIL.Image import Image


Remembered = Callable[[bytes], Media | None]
"""What is still known of a picture, by its digest; None for one that has to be encoded."""


def forgotten(digest: bytes) -> Media | None:
    """Nobody remembers anything."""
    return None


def media_digest(modality: str, frames: Sequence[Image], offsets: Tensor, configuration: bytes) -> bytes:
    """32 bytes over every pixel, size and mode of the frames, the positions their tokens take (a video at
    another speed), the modality, and how pixels become features. BLAKE2b, since pixels are compared by their
    digest alone: nobody can make two pictures of one.

    offsets: int64 [A, T]. configuration: of processor or encoder, see `configuration_of`.
    """
    digest = hashlib.blake2b(digest_size=32)

    def field(tag: str, value: bytes) -> None:
        digest.update(f"{tag}:{len(value)}:".encode())  # the length keeps fields from running together
        digest.update(value)

    field("modality", modality.encode())
    field("configuration", configuration)
    field("offsets", f"{tuple(offsets.shape)}".encode() + offsets.contiguous().numpy().tobytes())
    for frame in frames:
        field("frame", f"{frame.mode} {frame.size}".encode())
        field("pixels", frame.tobytes())
    return digest.digest()


def configuration_of(processor: Any) -> bytes:
    """Everything a transformers processor is set to, as canonical JSON.

    Which class scales the pixels counts as well: Pillow's and torchvision's results differ.
    """
    parts = {name: getattr(processor, name, None) for name in ("image_processor", "video_processor")}
    classes = {name: type(part).__name__ for name, part in parts.items()}
    return json.dumps([classes, processor.to_dict()], sort_keys=True, default=_plain).encode()


def _plain(value: Any) -> Any:
    """What JSON does not know. Never the `repr` of an object: its address would be another in each run."""
    for method in ("to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise UnsupportedModel(
        got=f"a processor set to an object of type {type(value).__name__}",
        expected="numbers, texts and what can be written as such",
        do="load the processor that the model was published with",
    )
