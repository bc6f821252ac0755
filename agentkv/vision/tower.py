"""From frames to chunks, through a vision encoder that runs once for each image or video."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from agentkv.errors import InvalidInput, UnsupportedModel
from agentkv.media import Tokens
from agentkv.models.families import FAMILIES
from agentkv.models.media_spec import MediaSpec, media_spec
from agentkv.vision.adapter import AdapterTower, VisionAdapter
from agentkv.vision.identity import Remembered, forgotten
from agentkv.vision.images import load_image
from agentkv.vision.model_tower import ModelTower
from agentkv.vision.videos import is_video, load_video

if TYPE_CHECKING:
    from PIL.Image import Image


class VisionTower(Protocol):
    """What turns pictures into chunks for one model.

    runs: how often the encoder has run. placeholder_ids: token ids that no text may contain. remembered: is
    asked for a picture, by its digest, before the encoder runs.
    """

    runs: int
    remembered: Remembered
    placeholder_ids: tuple[int, ...]

    def image(self, image: Image, room: int | None = None) -> list[Tokens]:
        """One RGB image as one chunk."""
        ...

    def video(
        self, frames: Sequence[Image], fps: float | None, whole: bool, room: int | None = None
    ) -> list[Tokens]:
        """RGB frames of one size as chunks that can leave one by one, or as one chunk."""
        ...


def prepare(
    source: Any,
    tower: VisionTower,
    *,
    whole: bool = False,
    fps: float | None = None,
    room: int | None = None,
) -> list[Tokens]:
    """The chunks of an image or a video, in order, their features computed.

    source: an image (PIL, path, encoded bytes, uint8 [H, W, 3 or 4]) or a video (`Video`, a sequence of
    images, uint8 [F, H, W, 3 or 4], a video file). whole: a video as one chunk with the model's own
    positions; otherwise each frame (or pair that the model merges) is a chunk with positions of its own.
    fps: frames a second of the frames given, or to take from a file. room: tokens that there is room for.
    Raises InvalidInput, TooLong (for more than ``room``, as a rule before the encoder ran), and
    UnsupportedModel for a model that cannot take this; nothing is kept then.
    """
    if is_video(source):
        frames, fps = load_video(source, fps)
        return tower.video(frames, fps, whole, room)
    return tower.image(load_image(source), room)


def tower_of(
    model: Any,
    processor: Any = None,
    adapter: VisionAdapter | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> VisionTower:
    """The vision side of a loaded model. Nothing runs yet.

    processor: the model's own, or None. adapter: an encoder for a text-only model. lock: held during a run.
    Raises UnsupportedModel for an adapter beside a model that has a vision tower.
    """
    spec, lock = media_spec(model.config), lock or nullcontext()
    if adapter is not None:
        if spec is not None:
            raise UnsupportedModel(
                got=f"a vision adapter for {model.config.model_type!r}, which has a vision tower of its own",
                expected="a text-only model",
                do="leave the adapter out",
            )
        return AdapterTower(model, adapter, lock)
    if spec is None:
        return BlindTower(_text_only(model.config.model_type), ())
    refusal = _refusal(spec, processor)
    if refusal is not None:
        return BlindTower(refusal, spec.placeholder_ids)
    return ModelTower(model, processor, spec, lock)


def _text_only(model_type: str) -> UnsupportedModel:
    return UnsupportedModel(
        got=f"an image or video for the text-only model type {model_type!r}",
        expected="a model with a vision tower",
        do="load a vision-language model, or pass vision=, an encoder for this one",
    )


def _refusal(spec: MediaSpec, processor: Any) -> UnsupportedModel | None:
    """Why a multimodal model cannot be shown anything; None for one that can."""
    if not spec.shown:
        return UnsupportedModel(
            got=f"an image or video for model type {spec.model_type!r}, whose images were not proven to move",
            expected=f"one of {', '.join(name for name, family in FAMILIES.items() if family.images)}",
            do="use it for text, or load one of these",
        )
    if processor is None:
        return UnsupportedModel(
            got=f"an image or video for {spec.model_type!r}, loaded without its processor",
            expected="the processor that the model was published with",
            do="load the model from a directory with its preprocessor_config.json, install what the "
            "processor needs (torchvision where the model takes videos as well, num2words for smolvlm), or "
            "pass processor=",
        )
    return None


def require_text(ids: Any, tower: VisionTower) -> None:
    """Raises InvalidInput for text (token ids [T], array or tensor) that holds a placeholder of ``tower``.

    Such a token stands for features, and transformers would give it those of the next image.
    """
    stray = sorted(set(tower.placeholder_ids).intersection(ids.tolist()))
    if stray:
        raise InvalidInput(
            got=f"text with the placeholder tokens {stray}",
            expected="text; an image is appended as an image",
            do="append the image itself, or take its placeholder out of the text",
        )


class BlindTower:
    """Of a model that cannot be shown anything: says why when it is."""

    def __init__(self, refusal: UnsupportedModel, placeholder_ids: tuple[int, ...]) -> None:
        self.refusal, self.placeholder_ids, self.runs = refusal, placeholder_ids, 0
        self.remembered: Remembered = forgotten

    def image(self, image: Image, room: int | None = None) -> list[Tokens]:
        """Raises UnsupportedModel."""
        raise self._again()

    def video(
        self, frames: Sequence[Image], fps: float | None, whole: bool, room: int | None = None
    ) -> list[Tokens]:
        """Raises UnsupportedModel."""
        raise self._again()

    def _again(self) -> UnsupportedModel:
        # A new one each time: a raised error keeps its traceback, and with it the image.
        return UnsupportedModel(self.refusal.got, self.refusal.expected, self.refusal.do)
