"""Pictures for a vision-language model: its own processor and its own vision tower."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from agentkv.errors import AgentKVError, InvalidInput, NonFinite, OutOfMemory, UnsupportedModel
from agentkv.forward import out_of_memory
from agentkv.inputs import Ids, marker_ids
from agentkv.media import Features, Media, Modality, Tokens
from agentkv.models.media_spec import MediaSpec
from agentkv.vision.identity import Remembered, configuration_of, forgotten, media_digest
from agentkv.vision.markup import markup
from agentkv.vision.positions import frame_ranges, offsets_of, stretches
from agentkv.vision.room import require_room

if TYPE_CHECKING:
    from PIL.Image import Image

Outline = tuple[Ids, Media]
"""A chunk that has no features yet: int64 ids [T], and all else of its media."""


class ModelTower:
    """The `VisionTower` of a transformers model.

    processor: the model's own ProcessorMixin. lock: held while the tower runs.
    """

    def __init__(
        self, model: Any, processor: Any, spec: MediaSpec, lock: AbstractContextManager[Any]
    ) -> None:
        self.model, self.processor, self.spec, self.lock = model, processor, spec, lock
        self.placeholder_ids, self.runs = spec.placeholder_ids, 0
        self.seen: WeakValueDictionary[tuple[bytes, bytes], Media] = WeakValueDictionary()
        self.remembered: Remembered = forgotten

    def image(self, image: Image, room: int | None = None) -> list[Tokens]:
        """One chunk: the image with the markers that template and processor write around it."""
        front, back = markup(self.processor, "image", self.processor.image_token)
        found = self._processed(f"{front}{self.processor.image_token}{back}", images=[image])
        outline = self._outline("image", found["input_ids"][0], [image], found.get("image_grid_thw"))
        return self._filled([outline], found, room)

    def video(
        self, frames: Sequence[Image], fps: float | None, whole: bool, room: int | None = None
    ) -> list[Tokens]:
        """A chunk a frame (or merged pair of frames), behind the text that introduces them if the processor
        writes one; or all of it in one chunk.

        Each frame stands, with its time, between what the template writes around a video: whichever of them
        leave, move or come back, the others are shown as the model knows it.
        """
        front, back = self._video_markup(fps)
        text = f"{front}{self.processor.video_token}{back}" if whole else self.processor.video_token
        found = self._processed(text, videos=[_stack(frames)], **_metadata(frames, fps))
        ids, grid = found["input_ids"][0], found.get("video_grid_thw")
        if whole:
            outline = self._outline("video", ids, frames, grid, self._interval(found))
            return self._filled([outline], found, room)
        count = len(frames) if grid is None else int(grid[0, 0])
        merged = -(-len(frames) // count)  # frames that one chunk shows
        one = None if grid is None else torch.tensor([[1, *grid[0, 1:].tolist()]])
        ranges = frame_ranges(self._placeholders(ids), count, self.spec.time_behind)
        before, behind = torch.from_numpy(self._tokens(front)), torch.from_numpy(self._tokens(back))
        outlines = [
            self._outline(
                "video",
                torch.cat([before, ids[a:b], behind]),
                frames[index * merged : (index + 1) * merged],
                one,
            )
            for index, (a, b) in enumerate(ranges)
        ]
        lead = ids[: ranges[0][0]].numpy()
        return [*([Tokens(lead)] if len(lead) else ()), *self._filled(outlines, found, room)]

    def _video_markup(self, fps: float | None) -> tuple[str, str]:
        """Text around a video. Raises UnsupportedModel where the model, or this machine, takes none."""
        token = getattr(self.processor, "video_token", None)
        if token is None or getattr(self.processor, "video_processor", None) is None:
            raise UnsupportedModel(
                got=f"a video for {type(self.processor).__name__} without a video processor",
                expected="a model that takes videos, and the package torchvision",
                do="append the frames as images, or pip install torchvision and load the model again",
            )
        if fps is None and self._writes_times():
            raise InvalidInput(
                got="a video without fps",
                expected="frames a second: this model's positions or prompt tell the time of a frame",
                do="pass fps=, or Video(frames, fps)",
            )
        return markup(self.processor, "video", token)

    def _writes_times(self) -> bool:
        # transformers hands metadata through exactly for the models that use it, and guesses 24 without.
        defaults = getattr(type(self.processor), "videos_kwargs", None) or {}
        return bool(defaults.get("return_metadata"))

    def _interval(self, found: Any) -> float:
        """Positions from one frame of a whole video to the next."""
        if self.spec.tokens_per_second is None or "second_per_grid_ts" not in found:
            return 1.0
        return self.spec.tokens_per_second * float(found["second_per_grid_ts"][0])

    def _processed(self, text: str, **media: Any) -> Any:
        kind = type(self.processor).__name__
        try:
            return self.processor(text=text, add_special_tokens=False, return_tensors="pt", **media)
        except ImportError as error:
            raise UnsupportedModel(
                got=f"{kind}, which lacks a package ({error})", expected="its packages", do="install them"
            ) from error
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            raise InvalidInput(
                got=f"an image or video that {kind} does not take ({str(error)[:160]})",
                expected="a size and shape that the model was built for",
                do="resize or crop it",
            ) from error

    def _features(self, found: Any) -> Features:
        """One run of the vision tower. Raises InvalidInput, OutOfMemory, NonFinite."""
        base = self.model.base_model
        encode: Callable[..., Any] = base.get_image_features
        if "pixel_values_videos" in found:
            encode = base.get_video_features
        takes = inspect.signature(encode).parameters
        device = next(self.model.parameters()).device
        inputs = {name: value.to(device) for name, value in found.items() if name in takes}
        with self.lock, torch.inference_mode():
            try:
                out = encode(**inputs, return_dict=True)
            except (MemoryError, RuntimeError, ValueError) as error:
                raise _failed(error) from error
            self.runs += 1
        features = _features(out)
        if not torch.isfinite(features.pooled).all():
            raise NonFinite(
                got="NaN or infinity from the vision tower",
                expected="finite features",
                do="load the model in float32",
            )
        return features

    def _outline(
        self,
        modality: Modality,
        ids: Tensor,
        frames: Sequence[Image],
        grid: Tensor | None,
        interval: float = 1.0,
    ) -> Outline:
        """A chunk of tokens int64 [T] that shows ``frames``, all but its features."""
        placeholders = self._placeholders(ids)
        offsets, span = offsets_of(placeholders, self.spec.axes, grid, self.spec.merge, interval)
        media = Media(
            modality=modality,
            digest=media_digest(modality, frames, offsets, configuration_of(self.processor)),
            offsets=offsets,
            span=span,
            placeholders=placeholders,
            features=None,
            both_ways=tuple(stretches(placeholders)) if self.spec.both_ways else (),
        )
        return ids.numpy(), media

    def _filled(self, outlines: list[Outline], found: Any, room: int | None) -> list[Tokens]:
        """The chunks with their features: those of an earlier run where somebody still holds all of them.

        Raises TooLong for more than ``room`` tokens before the tower runs.
        """
        require_room(sum(len(ids) for ids, _ in outlines), room)
        keys = [(media.digest, ids.tobytes()) for ids, media in outlines]
        held = [
            self.seen.get(key) or self._remembered(key, media)
            for key, (_, media) in zip(keys, outlines, strict=True)
        ]
        if None in held:
            counts = [int(media.placeholders.sum()) for _, media in outlines]
            parts = _split(self._features(found), counts)
            fresh = (replace(media, features=own) for (_, media), own in zip(outlines, parts, strict=True))
            held = [self.seen.setdefault(key, media) for key, media in zip(keys, fresh, strict=True)]
        return [Tokens(ids, media) for (ids, _), media in zip(outlines, held, strict=True)]

    def _remembered(self, key: tuple[bytes, bytes], outline: Media) -> Media | None:
        known = self.remembered(outline.digest)
        if known is None or not torch.equal(known.placeholders, outline.placeholders):
            return None
        return self.seen.setdefault(key, replace(outline, features=known.features))

    def _placeholders(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(self.placeholder_ids))

    def _tokens(self, text: str) -> Ids:
        return marker_ids(self.processor.tokenizer, text)


def _failed(error: BaseException) -> AgentKVError:
    why = str(error)[:160]
    if out_of_memory(error):
        return OutOfMemory(
            got=f"no memory for a run of the vision tower ({why})",
            expected="memory for one image or video",
            do="make it smaller, or append a video in pieces; nothing was stored",
        )
    return InvalidInput(
        got=f"an image or video that the vision tower does not take ({why})",
        expected="a size and shape that the model was built for",
        do="resize or crop it",
    )


def _features(out: Any) -> Features:
    """From transformers' output: pooled features are a tensor or a list by family."""
    pooled, deep = out.pooler_output, getattr(out, "deepstack_features", None) or ()
    listed = not isinstance(pooled, Tensor)
    return Features(
        pooled=(torch.cat(tuple(pooled)) if listed else pooled.flatten(0, -2)),  # [n, hidden]
        deep=tuple(torch.cat(tuple(layer)) for layer in deep),
        listed=listed,
    )


def _split(features: Features, counts: list[int]) -> list[Features]:
    """The shares of several chunks. Cloned where there are several, or each would keep all of them alive.

    Raises InvalidInput when there are more or fewer features than ``counts`` ask for.
    """
    if sum(counts) != len(features.pooled):
        raise InvalidInput(
            got=f"{len(features.pooled)} features for {sum(counts)} placeholders",
            expected="one feature a placeholder",
            do="use the processor of this very model: image size, patch size and token counts must agree",
        )
    if len(counts) == 1:
        return [features]
    deep = zip(*(layer.split(counts) for layer in features.deep), strict=True)
    layers = list(deep) or [()] * len(counts)
    return [
        Features(pooled.clone(), tuple(layer.clone() for layer in own), features.listed)
        for pooled, own in zip(features.pooled.split(counts), layers, strict=True)
    ]


def _stack(frames: Sequence[Image]) -> Tensor:
    """uint8 [F, 3, H, W]."""
    return (
        torch.from_numpy(np.stack([np.asarray(frame) for frame in frames])).permute(0, 3, 1, 2).contiguous()
    )


def _metadata(frames: Sequence[Image], fps: float | None) -> dict[str, Any]:
    """Keyword arguments that make a processor take every frame as it is, and name its time."""
    count = len(frames)
    meta = {
        "total_num_frames": count,
        "fps": fps,
        "duration": count / fps if fps else None,
        "frames_indices": list(range(count)),
        "width": frames[0].width,
        "height": frames[0].height,
    }
    return {
        "videos_kwargs": {
            "video_metadata": [meta],
            "do_sample_frames": False,
            "input_data_format": "channels_first",
        }
    }
