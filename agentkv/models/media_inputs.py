"""The keyword arguments that carry token ids and what stands behind them into one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from agentkv.errors import InvalidInput
from agentkv.media import Features, Media
from agentkv.models.media_spec import MediaSpec, media_spec


class MediaRun(Protocol):
    """Tokens of one chunk in a forward: int64 ids [T], array or tensor, and its media if it is an image."""

    @property
    def ids(self) -> Any: ...

    @property
    def media(self) -> Media | None: ...


@dataclass
class EncoderOutput(BaseModelOutputWithPooling):
    """transformers' vision output, with what qwen3_vl adds to it: per layer a list of [n, hidden]."""

    deepstack_features: list[list[Tensor]] | None = None


def inputs_for(model: Any, ids: Tensor, runs: Sequence[MediaRun]) -> dict[str, Any]:
    """What to pass to ``model`` for ``ids`` (int64 [T], the runs' ids one after the other).

    Text alone is ``{"input_ids": [1, T]}``. A multimodal model gets the features it computed earlier
    (`mm_encoder_outputs`), so its vision tower does not run; a text model with a vision adapter gets
    embeddings. Positions and cache are the caller's. Raises InvalidInput where placeholders and features
    do not match, which includes text that holds a placeholder id.
    """
    if all(run.media is None for run in runs):
        return {"input_ids": ids[None]}
    for run in runs:
        _check(run)
    spec = media_spec(model.config)
    if spec is None:
        return {"inputs_embeds": _embeddings(model, ids, runs)}
    return {"input_ids": ids[None], "mm_encoder_outputs": _encoder_outputs(spec, ids, runs)}


def _check(run: MediaRun) -> None:
    if run.media is None:
        return
    got = (len(run.ids), int(run.media.placeholders.sum()))
    expected = (len(run.media.placeholders), len(run.media.features.pooled))
    if got != expected:
        raise InvalidInput(
            got=f"a chunk of {got[0]} tokens, {got[1]} of them placeholders",
            expected=f"{expected[0]} tokens and {expected[1]} placeholders, as prepared",
            do="run an image or a frame as a whole",
        )


def _encoder_outputs(spec: MediaSpec, ids: Tensor, runs: Sequence[MediaRun]) -> dict[str, Any]:
    """Per modality one output that looks like transformers' own over all images of the forward."""
    by_token: dict[int, list[Features]] = {}
    for run in runs:
        if run.media is not None:
            token = int(run.ids[int(run.media.placeholders.nonzero()[0])])
            by_token.setdefault(token, []).append(run.media.features)
    names = {spec.image_id: "image", spec.video_id: "video"}
    for token, features in by_token.items():
        rows, places = sum(len(f.pooled) for f in features), int((ids == token).sum())
        if token not in names or rows != places:
            raise InvalidInput(
                got=f"{places} tokens {token} for {rows} features",
                expected="one placeholder a feature, and none in text",
                do="take placeholder ids out of the text, or append the image that they stand for",
            )
    return {names[token]: _combined(features) for token, features in by_token.items()}


def _combined(features: list[Features]) -> EncoderOutput:
    pooled = [f.pooled for f in features]
    return EncoderOutput(
        pooler_output=pooled if features[0].listed else torch.cat(pooled)[None],  # [1, Σn, hidden]
        deepstack_features=[list(layer) for layer in zip(*(f.deep for f in features), strict=True)],
    )


def _embeddings(model: Any, ids: Tensor, runs: Sequence[MediaRun]) -> Tensor:
    """Token embeddings [1, T, hidden] with the features written over the placeholders."""
    embedded, first = model.get_input_embeddings()(ids), 0
    for run in runs:
        if run.media is not None:
            rows = first + run.media.placeholders.nonzero()[:, 0].to(ids.device)
            embedded[rows] = run.media.features.pooled.to(embedded)
        first += len(run.ids)
    return embedded[None]
