"""The closed-form vision-language model: drawing, cutting, encoders, projectors, and what it reads."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
)

from agentkv.errors import InvalidInput
from agentkv.vision import VisionAdapter
from bench.models import (
    drawing,
    efficientnet,
    ridge,
    segments,
    vlm,
    vlm_scores,
)


def test_ridge_finds_a_linear_map_and_shrinks_with_the_penalty():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 7, generator=generator) * torch.arange(1, 8) + 3
    features[:, 6] = 5.0  # never varies
    weight, bias = torch.randn(7, 5, generator=generator), torch.randn(5, generator=generator)
    targets = features @ weight + bias
    exact = ridge.fit(features, targets, penalty=1e-9)
    torch.testing.assert_close(exact(features), targets, atol=1e-4, rtol=0)
    shrunk = ridge.fit(features, targets, penalty=1.0)
    # With standardised, nearly uncorrelated features a penalty of 1 halves every weight.
    assert 0.4 < (shrunk.weight.norm() / exact.weight.norm()).item() < 0.6
    assert torch.equal(ridge.nearest(targets, targets), torch.arange(400))


def test_a_screenshot_comes_apart_into_rows_icons_and_text():
    icon = drawing.Icon("blue", "star")
    rows = [drawing.Row("Total due 48.20"), drawing.Row("i.e. the pilot", icon), drawing.Row(icon=icon)]
    image = drawing.screenshot(rows, random.Random(0))
    found = segments.rows(image)
    assert [[part.coloured for part in row] for row in found] == [[False], [False, True], [True]]
    assert all(part.image.height < image.height / 3 for row in found for part in row)


def test_a_picture_of_one_colour_is_refused():
    with pytest.raises(InvalidInput, match="one colour"):
        segments.rows(Image.new("RGB", (40, 30), (250, 250, 250)))


def test_every_icon_is_drawn_alike_by_seed_and_unlike_any_other():
    def draw(icon, seed):
        return drawing.draw_icon(icon, random.Random(seed), 40).tobytes()

    first = {draw(icon, 0) for icon in drawing.icons()}
    assert len(first) == 64 == len(set(drawing.icons()))
    assert draw(drawing.icons()[0], 0) in first
    assert draw(drawing.icons()[0], 1) not in first


def test_kinds_held_out_of_the_fit_leave_every_colour_and_shape_in_it():
    unseen = vlm.held_out()
    assert len(set(unseen)) == 16
    assert Counter(icon.colour for icon in unseen) == dict.fromkeys(drawing.COLOURS, 2)
    assert Counter(icon.shape for icon in unseen) == dict.fromkeys(drawing.SHAPES, 2)


def test_folding_a_batch_norm_leaves_the_convolution_with_it():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(32, eps=efficientnet.EPSILON).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        torch.nn.init.normal_(tensor)
    convolution = torch.nn.Conv2d(3, 32, 3, bias=False)
    state = {"_conv_stem.weight": convolution.weight.detach(), "_conv_head.weight": torch.zeros(1, 1, 1, 1)}
    state |= {f"_bn0.{name}": value for name, value in norm.state_dict().items()}
    state |= {f"_bn1.{name}": value for name, value in torch.nn.BatchNorm2d(1).state_dict().items()}
    weights = efficientnet.folded(state)
    image = torch.randn(1, 3, 9, 9)
    got = torch.nn.functional.conv2d(image, weights["stem.weight"], weights["stem.bias"])
    torch.testing.assert_close(got, norm(convolution(image)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("a", "b", "edits"), [("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)])
def test_edit_distance(a, b, edits):
    assert vlm_scores.distance(a, b) == vlm_scores.distance(b, a) == edits


@pytest.mark.slow
def test_the_adapter_says_what_a_screenshot_shows():
    vision = vlm.load()
    assert isinstance(vision, VisionAdapter)
    tokenizer = AutoTokenizer.from_pretrained(vision.language.ensure())
    table = vlm.embeddings(vision.language.ensure())
    icon = drawing.Icon("green", "heart")
    rows = [drawing.Row("pilot", icon), drawing.Row("Total due 48.20")]
    image = drawing.screenshot(rows, random.Random(3))
    encoded = vision.encode(image)
    words = tokenizer.convert_ids_to_tokens(ridge.nearest(encoded, table).tolist())
    expected = [*"pilot", "Ġ", "Ġgreen", "Ġheart", "Ċ", *"TotalĠdueĠ48.20"]
    assert words == expected
    assert torch.equal(encoded, vlm.load().encode(image))
    assert len(vision.digest()) == 16
    assert vision.digest() == vlm.load().digest()
    assert vision.digest() != replace(vision, marks=-vision.marks).digest()
