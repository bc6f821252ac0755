"""What a model can be shown: its own tower, an adapter, or nothing; and the prompt text around an image."""

from __future__ import annotations

import copy
import gc
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CONFIG_MAPPING

from agentkv.errors import InvalidInput, NonFinite, TooLong, UnsupportedModel
from agentkv.models import families
from agentkv.models.layouts import judge
from agentkv.models.media_inputs import inputs_for
from agentkv.vision import VisionAdapter, prepare, require_text, tower_of
from tests.models import tiny_model
from tests.runtime.media.cases import (
    FAMILIES,
    HIDDEN,
    TALL,
    WIDE,
    Patches,
    Piece,
    all_ids,
    laid_out,
    our_logits,
    rig,
    tokens,
)
from tests.tolerances import LOGITS
from tests.vlm_models import picture, vlm
from tests.vlm_processors import processor


def test_an_adapter_writes_embeddings_where_placeholders_stand() -> None:
    model = tiny_model("llama")
    tower = tower_of(model, adapter=Patches())
    ((ids, media),) = prepare(WIDE, tower)
    assert ids.tolist() == [96] * 3
    assert tower.placeholder_ids == (96,)
    pieces = [
        Piece(torch.tensor([5, 6]), None, 0),
        Piece(torch.from_numpy(ids), media, 2),
        Piece(torch.tensor([7]), None, 5),
    ]
    inputs = inputs_for(model, all_ids(pieces), pieces)
    assert list(inputs) == ["inputs_embeds"]
    table = model.get_input_embeddings().weight
    truth = torch.cat([table[[5, 6]], Patches().encode(WIDE), table[[7]]])
    assert torch.equal(inputs["inputs_embeds"][0], truth)
    assert torch.equal(table, tiny_model("llama").get_input_embeddings().weight)  # written to a copy


def test_an_adapter_sees_a_video_frame_by_frame() -> None:
    tower = tower_of(tiny_model("llama"), adapter=Patches())
    chunks = prepare([WIDE, picture(40, 24, seed=9), WIDE], tower)
    assert [len(ids) for ids, _ in chunks] == [3, 3, 3]
    assert tower.runs == 2  # two of them are the same
    assert {media.modality for _, media in chunks if media} == {"video"}
    with pytest.raises(InvalidInput, match="whole"):
        prepare([WIDE], tower, whole=True)


def test_what_an_adapter_is_set_to_is_part_of_identity() -> None:
    class Other(Patches):
        def digest(self) -> bytes:
            return b"other"

    model = tiny_model("llama")
    digests = {
        prepare(WIDE, tower_of(model, adapter=a))[0][1].digest for a in (Patches(), Other(), Patches())
    }  # type: ignore[union-attr]
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (torch.zeros(3, HIDDEN + 1), InvalidInput),
        (torch.zeros(0, HIDDEN), InvalidInput),
        (torch.zeros(1, 3, HIDDEN), InvalidInput),
        ([[0.0] * HIDDEN], InvalidInput),
        (torch.full((2, HIDDEN), float("nan")), NonFinite),
    ],
    ids=["width", "none", "a batch", "a list", "NaN"],
)
def test_embeddings_that_do_not_fit_are_refused(found: Any, error: type[Exception]) -> None:
    class Bad(Patches):
        def encode(self, image: Image.Image) -> Any:
            return found

    with pytest.raises(error):
        prepare(WIDE, tower_of(tiny_model("llama"), adapter=Bad()))


def test_an_adapter_needs_all_of_its_protocol() -> None:
    assert isinstance(Patches(), VisionAdapter)
    with pytest.raises(InvalidInput, match="placeholder_id"):
        tower_of(tiny_model("llama"), adapter=object())  # type: ignore[arg-type]


def test_an_adapter_beside_a_vision_tower_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="tower of its own"):
        tower_of(vlm("llava"), processor("llava"), adapter=Patches())


def test_a_text_only_model_is_shown_nothing() -> None:
    tower = tower_of(tiny_model("llama"))
    assert tower.placeholder_ids == ()
    for source in (WIDE, [WIDE]):
        with pytest.raises(UnsupportedModel, match="text-only model type 'llama'"):
            prepare(source, tower)


def test_every_model_type_that_is_shown_images_is_tested() -> None:
    assert set(FAMILIES) == {name for name, row in families.FAMILIES.items() if row.images}


def test_a_model_type_that_nobody_has_run_is_shown_nothing() -> None:
    """llava_next would go through the same code; whether its positions and features fit is not known."""
    found = rig("llava")
    config = copy.deepcopy(found.model.config)
    config.model_type = "llava_next"
    with pytest.raises(UnsupportedModel, match="'llava_next'"):
        prepare(WIDE, tower_of(SimpleNamespace(config=config), found.processor))


def test_a_missing_processor_is_named_only_when_an_image_comes() -> None:
    tower = tower_of(vlm("llava"))
    with pytest.raises(UnsupportedModel, match="without its processor"):
        prepare(WIDE, tower)
    assert tower.placeholder_ids  # text must be checked all the same


@pytest.mark.parametrize("model_type", ["qwen2_5_omni", "gemma3n"])
def test_models_that_hear_are_not_loaded(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=model_type):
        judge(CONFIG_MAPPING[model_type]())


def test_the_lock_is_held_while_the_tower_runs() -> None:
    lock, held = threading.RLock(), []
    found = rig("llava")
    tower = tower_of(found.model, found.processor, lock=lock)
    hook = found.model.model.vision_tower.register_forward_pre_hook(lambda *_: held.append(lock._is_owned()))  # type: ignore[attr-defined]
    try:
        prepare(WIDE, tower)
    finally:
        hook.remove()
    assert held == [True]


def test_a_tower_that_returns_nan_stores_nothing() -> None:
    model = vlm("llava")
    with torch.no_grad():
        model.model.multi_modal_projector.linear_1.weight.fill_(float("nan"))
    with pytest.raises(NonFinite, match="vision tower"):
        prepare(WIDE, tower_of(model, processor("llava")))


def test_a_processor_of_another_model_is_found_out() -> None:
    """Twice as many patches a side as the tower makes features for."""
    own = processor("llava")
    own.patch_size = 4
    with pytest.raises(InvalidInput, match="64 placeholders"):
        prepare(WIDE, tower_of(rig("llava").model, own))


def test_a_placeholder_in_text_does_not_take_an_image_from_another() -> None:
    """transformers would fill placeholders in order, and the text's with the image's first feature."""
    found = rig("qwen2_vl")
    pieces = laid_out(found, ["ab", WIDE])
    stray = [pieces[0]._replace(ids=torch.tensor([found.tower.placeholder_ids[0]])), pieces[1]]
    with pytest.raises(InvalidInput, match="16 tokens 5 for 15 features"):
        inputs_for(found.model, all_ids(stray), stray)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_may_not_hold_a_placeholder(family: str) -> None:
    tower = rig(family).tower
    require_text(torch.tensor([3, 40]), tower)
    require_text(np.array([3, 40]), tower)
    for token in tower.placeholder_ids:
        with pytest.raises(InvalidInput, match=str(token)) as caught:
            require_text(np.array([40, token, 41]), tower)
        assert all((caught.value.got, caught.value.expected, caught.value.do))
    require_text(np.arange(90), tower_of(tiny_model("llama")))


def test_half_an_image_is_refused() -> None:
    found = rig("qwen2_vl")
    (piece,) = laid_out(found, [WIDE])
    half = piece._replace(ids=piece.ids[:7])
    with pytest.raises(InvalidInput, match="as a whole"):
        inputs_for(found.model, half.ids, [half])


def test_features_are_used_as_often_as_the_chunk_is_placed() -> None:
    """The stored features are not consumed, and the tower does not run again."""
    found = rig("qwen3_vl")
    pieces = laid_out(found, ["ab", WIDE, "c"])
    runs = found.tower.runs
    first = our_logits(found, "qwen3_vl", pieces)
    assert torch.equal(our_logits(found, "qwen3_vl", pieces), first)
    twice = [*pieces, pieces[1]._replace(position=pieces[-1].position + 1)]
    again = our_logits(found, "qwen3_vl", twice)[: len(first)]
    assert float((again - first).abs().max()) <= LOGITS[torch.float64]
    assert found.tower.runs == runs


def test_an_adapter_stops_at_the_first_frame_that_does_not_fit() -> None:
    tower = tower_of(tiny_model("llama"), adapter=Patches())
    frames = [picture(16, 16, seed) for seed in range(5)]  # two tokens each
    with pytest.raises(TooLong, match="at most 5"):
        prepare(frames, tower, room=5)
    assert tower.runs == 3


def test_an_adapter_may_use_its_buffer_again() -> None:
    class Reusing(Patches):
        def encode(self, image: Image.Image) -> torch.Tensor:
            self.buffer = super().encode(image)
            return self.buffer

    adapter = Reusing()
    ((_, media),) = prepare(WIDE, tower_of(tiny_model("llama"), adapter=adapter))
    before = adapter.buffer.clone()
    with torch.inference_mode():
        adapter.buffer.zero_()
    assert media is not None
    assert torch.equal(media.features.pooled, before)


@pytest.mark.parametrize("placeholder", [-1, 97, None])
def test_an_adapter_s_placeholder_is_a_token_of_the_model(placeholder: Any) -> None:
    adapter = Patches()
    adapter.placeholder_id = placeholder
    with pytest.raises(InvalidInput, match="placeholder_id"):
        tower_of(tiny_model("llama"), adapter=adapter)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_picture_shown_again_costs_no_run_while_somebody_holds_it(adapted: bool) -> None:
    """An agent sends its whole history every turn: the same screenshot must not be encoded again."""
    found = rig("qwen3_vl")
    tower = (
        tower_of(tiny_model("llama"), adapter=Patches())
        if adapted
        else tower_of(found.model, found.processor)
    )
    (first,) = prepare(WIDE, tower)
    (again,) = prepare(np.asarray(WIDE), tower)
    (other,) = prepare(TALL, tower)
    assert tower.runs == 2
    assert again.media is first.media  # one object: features live as long as any window that shows them
    assert other.media is not first.media
    assert again.ids.tolist() == first.ids.tolist()
    del first, again
    gc.collect()
    prepare(WIDE, tower)
    assert tower.runs == 3


def test_a_video_is_encoded_again_only_with_a_new_frame() -> None:
    found = rig("qwen2_vl")
    tower = tower_of(found.model, found.processor)
    film = [picture(16, 16, seed) for seed in range(6)]
    held = prepare(film, tower)
    tail = prepare(film[2:], tower)
    assert tower.runs == 1
    assert [chunk.media for chunk in tail] == [chunk.media for chunk in held[1:]]
    longer = prepare([*film, *film[:1]], tower)
    assert tower.runs == 2
    assert [chunk.media for chunk in longer[:3]] == [chunk.media for chunk in held]


QWEN_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}</s>{% endfor %}"
)
IMAGES_FIRST = (
    "{% for m in messages %}USER: {% for part in m['content'] if part['type'] == 'image' %}<image>\n"
    "{% endfor %}{% for part in m['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endfor %}"
)


def test_markers_of_the_chat_template_are_part_of_the_image() -> None:
    own = processor("qwen2_vl", QWEN_TEMPLATE)
    ((ids, media),) = prepare(WIDE, tower_of(rig("qwen2_vl").model, own))
    assert ids.tolist() == tokens(own, "<|vision_start|>" + "<|image_pad|>" * 15 + "<|vision_end|>").tolist()
    assert media is not None
    assert media.span == 5 + 2
    assert media.offsets[:, [0, 1, -2, -1]].tolist() == [[0, 1, 1, 6], [0, 1, 3, 6], [0, 1, 5, 6]]


def test_every_frame_has_the_markers_of_a_video() -> None:
    """A frame leaves and comes back alone, and is shown as the template shows a video of one."""
    own = processor("qwen2_vl", QWEN_TEMPLATE)
    tower = tower_of(rig("qwen2_vl").model, own)
    chunks = prepare([TALL] * 4, tower)
    ((one, _),) = prepare([TALL] * 2, tower, whole=True)
    assert [ids.tolist() for ids, _ in chunks] == [one.tolist()] * 2
    assert own.tokenizer.decode(one[[0, -1]]) == "<|vision_start|> <|vision_end|>"


def test_a_template_that_shows_images_first_is_understood() -> None:
    own = processor("llava", IMAGES_FIRST)
    ((ids, _),) = prepare(WIDE, tower_of(rig("llava").model, own))
    assert ids.tolist() == tokens(own, "<image>" * 16 + "\n").tolist()


@pytest.mark.parametrize(
    "template", ["{{ messages[0]['content'][0]['text'] }}", "{{ nothing.at.all }}", "{% for %}"]
)
def test_a_template_without_a_place_for_images_is_refused(template: str) -> None:
    with pytest.raises(InvalidInput, match="chat template"):
        prepare(WIDE, tower_of(rig("llava").model, processor("llava", template)))
