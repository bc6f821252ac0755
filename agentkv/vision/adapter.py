"""Pictures for a text-only model: an encoder of its own writes embeddings where placeholder tokens stand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from agentkv.errors import InvalidInput, NonFinite
from agentkv.media import Features, Media, Modality, Tokens
from agentkv.vision.identity import Remembered, forgotten, media_digest
from agentkv.vision.room import require_room

if TYPE_CHECKING:
    from PIL.Image import Image


@runtime_checkable
class VisionAdapter(Protocol):
    """An encoder whose outputs live in the embedding space of a language model."""

    placeholder_id: int
    """A token of the model's vocabulary that no text contains."""

    def encode(self, image: Image) -> Tensor:
        """Embeddings [n, hidden] of an RGB image, n ≥ 1."""
        ...

    def digest(self) -> bytes:
        """Identity of encoder and projection: two adapters that give other embeddings differ here."""
        ...


class AdapterTower:
    """The `VisionTower` of a text-only model with an adapter. An image is its placeholders, nothing else."""

    def __init__(self, model: Any, adapter: VisionAdapter, lock: AbstractContextManager[Any]) -> None:
        if not isinstance(adapter, VisionAdapter):
            raise InvalidInput(
                got=f"vision={type(adapter).__name__}",
                expected="an object with encode(image), digest() and placeholder_id",
                do="see agentkv.vision.VisionAdapter",
            )
        known = model.get_input_embeddings().num_embeddings
        if not isinstance(adapter.placeholder_id, int) or not 0 <= adapter.placeholder_id < known:
            raise InvalidInput(
                got=f"placeholder_id={adapter.placeholder_id!r} of the vision adapter",
                expected=f"a token of this model, 0 to {known - 1}",
                do="take one that no text contains, such as an unused special token",
            )
        self.model, self.adapter, self.lock = model, adapter, lock
        self.placeholder_ids: tuple[int, ...] = (adapter.placeholder_id,)
        self.runs = 0
        self.seen: WeakValueDictionary[bytes, Media] = WeakValueDictionary()
        self.remembered: Remembered = forgotten

    def image(self, image: Image, room: int | None = None) -> list[Tokens]:
        """One chunk. Raises InvalidInput or NonFinite for embeddings that do not fit the model."""
        return self._chunks("image", [image], room)

    def video(
        self, frames: Sequence[Image], fps: float | None, whole: bool, room: int | None = None
    ) -> list[Tokens]:
        """A chunk a frame. Raises InvalidInput for ``whole``: an adapter sees one image at a time."""
        if whole:
            raise InvalidInput(
                got="whole=True", expected="frames one by one with a vision adapter", do="leave it out"
            )
        return self._chunks("video", frames, room)

    def _chunks(self, modality: Modality, images: Sequence[Image], room: int | None) -> list[Tokens]:
        """Only the encoder knows how many tokens an image takes: it stops at the first that does not fit."""
        found, tokens = [], 0
        for image in images:
            found.append(self._chunk(modality, image))
            tokens += len(found[-1].ids)
            require_room(tokens, room)
        return found

    def _chunk(self, modality: Modality, image: Image) -> Tokens:
        # How many tokens an image takes follows from its pixels and the encoder, which the digest covers.
        digest = media_digest(modality, [image], torch.empty(1, 0), self.adapter.digest())
        media = self.seen.get(digest)
        if media is None and (known := self.remembered(digest)) is not None:
            media = self.seen.setdefault(digest, known)
        if media is None:
            embeddings = self._encoded(image)
            count = len(embeddings)
            media = self.seen.setdefault(
                digest,
                Media(
                    modality=modality,
                    digest=digest,
                    offsets=torch.arange(count)[None],
                    span=count,
                    placeholders=torch.ones(count, dtype=torch.bool),
                    features=Features(embeddings),
                ),
            )
        return Tokens(np.full(media.span, self.adapter.placeholder_id, dtype=np.int64), media)

    def _encoded(self, image: Image) -> Tensor:
        table = self.model.get_input_embeddings().weight
        with self.lock, torch.inference_mode():
            found = self.adapter.encode(image)
            self.runs += 1
        if (
            not isinstance(found, Tensor)
            or found.dim() != 2
            or not len(found)
            or found.shape[1] != table.shape[1]
        ):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(
                got=f"embeddings {shape} from the vision adapter",
                expected=f"[n, {table.shape[1]}] with n of at least 1",
                do="project the encoder's outputs to the model's hidden size",
            )
        if not torch.isfinite(found).all():
            raise NonFinite(
                got="NaN or infinity from the vision adapter",
                expected="finite embeddings",
                do="check encoder and image",
            )
        return found.to(table.device, table.dtype, copy=True)  # an encoder may use its buffer again
