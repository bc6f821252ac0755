"""Stored features with our own positions give what transformers gives from pixels, in every family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentkv.media import Features
from agentkv.models.media_inputs import inputs_for
from agentkv.models.media_spec import media_spec
from tests.runtime.media.cases import (
    FAMILIES,
    GRIDDED,
    TALL,
    WIDE,
    Rig,
    all_ids,
    axes_of,
    block_ids,
    laid_out,
    our_logits,
    position_ids,
    rig,
)
from tests.tolerances import LOGITS
from tests.vlm_models import picture

DTYPES = (torch.float64, torch.float32)


def prompt(rig: Rig, dtype: torch.dtype, texts: tuple[str, ...], images: list) -> dict:
    """What the family's processor makes of texts with images between them."""
    own = rig.processor
    found = own(
        text=own.image_token.join(texts), images=images, add_special_tokens=False, return_tensors="pt"
    )
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in found.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_over_stored_features_is_one_over_pixels(family: str, dtype: torch.dtype) -> None:
    found = rig(family, dtype)
    wanted = prompt(found, dtype, ("ab", "cde", "f"), [WIDE, TALL])
    pieces = laid_out(found, ["ab", WIDE, "cde", TALL, "f"])
    assert all_ids(pieces).tolist() == wanted["input_ids"][0].tolist()
    with torch.inference_mode():
        truth = found.model(**wanted).logits[0]
    ours = our_logits(found, family, pieces, **block_ids(pieces))
    assert float((ours - truth).abs().max()) <= LOGITS[dtype]
    other = laid_out(found, ["ab", WIDE, "cde", picture(*TALL.size, seed=3), "f"])
    assert all_ids(other).tolist() == all_ids(pieces).tolist()
    blind = our_logits(found, family, other, **block_ids(other))
    assert float((blind[-1] - truth[-1]).abs().max()) > 1e-2  # the image does matter


@pytest.mark.parametrize("family", FAMILIES)
def test_axes_and_ids_are_those_of_the_model(family: str) -> None:
    spec = media_spec(rig(family).model.config)
    assert spec is not None
    assert spec.axes == axes_of(family)
    assert rig(family).tower.placeholder_ids == spec.placeholder_ids


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("family", GRIDDED)
def test_positions_are_those_of_get_rope_index(family: str, first: int) -> None:
    """An image takes max(h, w) / merge positions and not one for each token; get_rope_index counts from 0."""
    found = rig(family)
    texts = ("x" * first, "ab", "y" * 9)
    wanted = prompt(found, torch.float64, texts, [WIDE, TALL])
    expected, _ = found.model.base_model.get_rope_index(**wanted)
    pieces = laid_out(
        found, [texts[0], WIDE, texts[1], TALL, texts[2]] if first else [WIDE, "ab", TALL, texts[2]]
    )
    assert torch.equal(position_ids(pieces, 3), expected)
    images = [piece for piece in pieces if piece.media]
    assert [(piece.span, len(piece.ids)) for piece in images] == [(5, 15), (7, 14)]
    moved = laid_out(found, [WIDE, "ab"], start=100)
    assert torch.equal(position_ids(moved, 3), position_ids(laid_out(found, [WIDE, "ab"]), 3) + 100)


@pytest.mark.parametrize("family", GRIDDED)
def test_rope_deltas_of_an_image_session_reach_no_text_session(family: str) -> None:
    """transformers leaves `rope_deltas` on the model; with explicit positions nothing reads them."""
    found = rig(family)
    text = laid_out(found, ["abcdefgh"])
    before = our_logits(found, family, text)
    with torch.inference_mode():
        found.model(**prompt(found, torch.float64, ("a", "b"), [WIDE]))
    assert int(found.model.base_model.rope_deltas) != 0
    assert torch.equal(our_logits(found, family, text), before)
    mixed = laid_out(found, ["ab", TALL, "c"])
    seen = our_logits(found, family, mixed)
    found.model.base_model.rope_deltas = None
    assert torch.equal(our_logits(found, family, mixed), seen)
    assert found.model.base_model.rope_deltas is None


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone_is_ids_and_nothing_else(family: str) -> None:
    pieces = laid_out(rig(family), ["abc", "de"])
    assert list(inputs_for(rig(family).model, all_ids(pieces), pieces)) == ["input_ids"]


def test_deepstack_features_travel() -> None:
    """qwen3_vl adds features behind its first layers too: embeddings alone are another model."""
    found = rig("qwen3_vl")
    pieces = laid_out(found, ["ab", WIDE, "c", TALL, "d"])
    whole = our_logits(found, "qwen3_vl", pieces)
    flat = []
    for piece in pieces:
        if piece.media:
            features = piece.media.features
            assert [layer.shape for layer in features.deep] == [features.pooled.shape] * 2
            none = Features(features.pooled, tuple(torch.zeros_like(layer) for layer in features.deep), True)
            piece = piece._replace(media=replace(piece.media, features=none))
        flat.append(piece)
    assert float((our_logits(found, "qwen3_vl", flat) - whole).abs().max()) > 1e-2


def test_both_ways_are_exactly_the_image_tokens_of_gemma3() -> None:
    found = rig("gemma3")
    (piece,) = laid_out(found, [WIDE])
    wanted = prompt(found, torch.float64, ("", ""), [WIDE])
    assert block_ids([piece])["token_type_ids"].tolist() == wanted["token_type_ids"].tolist()
    causal = our_logits(found, "gemma3", [piece])
    both = our_logits(found, "gemma3", [piece], **block_ids([piece]))
    assert float((both - causal).abs().max()) > 1e-2


@pytest.mark.parametrize("family", set(FAMILIES) - {"gemma3"})
def test_every_other_family_looks_back_only(family: str) -> None:
    assert not any(piece.media.both_ways for piece in laid_out(rig(family), [WIDE]) if piece.media)
