"""What else a window does with images: answers, audits, forks, chats, and models without a tower."""

from __future__ import annotations

import pytest
import torch

from agentkv import Engine
from agentkv.errors import InvalidInput
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import FULL, STRICT, trusting
from tests.runtime.media.cases import (
    FAMILIES,
    TALL,
    WIDE,
    Patches,
    Rig,
    block_ids,
    laid_out,
    our_logits,
    rig,
)
from tests.runtime.media.windows import (
    assert_shows,
    engine,
)
from tests.tolerances import LOGITS
from tests.vlm_processors import processor


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_behind_an_image_is_the_greedy_one(family: str) -> None:
    """The window ends with an image, which has to run again as a whole for its last logits."""
    with engine(family) as built:
        window = built.window("exact")
        window.append("ab")
        window.append(WIDE)
        window.commit()
        runs = built.tower.runs
        window.generate(max_new_tokens=4, stop=False)
        said = window.ids()[-4:].tolist()
        base = rig(family)
        pieces = laid_out(Rig(base.model, base.processor, built.tower), ["ab", WIDE])
        for token in said:
            logits = our_logits(base, family, pieces, **block_ids(pieces))[-1]
            assert int(logits.argmax()) == token
            end = pieces[-1].position + pieces[-1].span
            pieces.append(pieces[0]._replace(ids=torch.tensor([token]), position=end))
        assert built.tower.runs == runs


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "gemma3", "internvl"])
def test_other_edits_take_images_as_they_take_text(family: str) -> None:
    with engine(family) as built:
        window = built.window(STRICT)
        head = window.append("head", pin=True)
        wide, tall = window.append(WIDE), window.append(TALL)
        window.append(["see ", WIDE, " there"])
        window.commit()
        assert_shows(family, window, "head", WIDE, TALL, "see ", WIDE, " there")
        assert window.audit(attribute=False).kl <= LOGITS[torch.float64]
        fork = window.fork()
        fork.evict(wide)
        fork.commit()
        assert_shows(family, fork, "head", TALL, "see ", WIDE, " there")
        assert window.slide(len(window) - 1) == [wide]
        window.commit()
        assert_shows(family, window, "head", TALL, "see ", WIDE, " there")
        window.clean_view(tall)
        window.commit()
        window.clean_view(tall, on=False)
        window.commit()
        assert_shows(family, window, "head", TALL, "see ", WIDE, " there")
        with pytest.raises(InvalidInput, match="shows an image"):
            window.replace(tall, "text")
        assert [entry.handle for entry in window.content.live()][:2] == [head, tall]
        assert built.tower.runs == 2


def test_a_text_model_with_an_adapter_sees() -> None:
    """Embeddings in place of placeholders, through every edit, against transformers' inputs_embeds."""
    adapter, model = Patches(), tiny_model("llama")
    with (
        full_precision(model),
        Engine.from_model(
            model, tiny_tokenizer(), vision=adapter, patch_rank=FULL, patch_dtype="model", costs=trusting()
        ) as built,
    ):
        window = built.window(STRICT)
        window.append("w5 w6 w7")
        shown = window.append(WIDE)
        window.append("w8 w9")
        window.commit()
        window.evict(shown)
        window.commit()
        window.recall(shown)
        window.append("w4")
        window.commit(keep=1)
        table = model.get_input_embeddings().weight
        embedded = torch.cat([table[[5, 6, 7, 8, 9]], adapter.encode(WIDE), table[[4]]])
        with torch.inference_mode():
            truth = model(inputs_embeds=embedded[None]).logits[0, -1:]
        found = window.last_outcome.logits
        assert found is not None
        assert float((found - truth).abs().max()) <= LOGITS[torch.float64]
        assert built.tower.runs == 1
        with pytest.raises(InvalidInput, match="placeholder"):
            window.append("w96")


CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}</s>\n{% endfor %}"
)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_chat_with_images_is_the_one_that_transformers_renders(family: str) -> None:
    """From messages to logits by transformers alone: chat template, processor, get_rope_index, pixels."""
    model, own = rig(family).model, processor(family, CHAT)
    image = {"type": "image"}
    messages = [
        {"role": "system", "content": "abc"},
        {"role": "user", "content": [{"type": "text", "text": "see "}, image, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [image]},
    ]
    text = own.apply_chat_template(messages, chat_template=CHAT, tokenize=False)
    inputs = own(text=text, images=[WIDE, TALL], add_special_tokens=False, return_tensors="pt")
    inputs["pixel_values"] = inputs["pixel_values"].double()
    # Same positions on both sides, so that what transformers rounds to fp32 is the same as well.
    with Engine.from_model(model, own.tokenizer, processor=own, patch_dtype="model") as built:
        with torch.inference_mode():
            truth = model(**inputs).logits[0, -1:]
        window = built.window("exact")
        window.append("abc", kind="system")
        window.append(["see ", WIDE, "?"], kind="user")
        window.append("ok", kind="assistant")
        window.append(TALL, kind="user")
        window.commit(keep=1)
        assert window.ids().tolist() == inputs["input_ids"][0].tolist()
        found = window.last_outcome.logits
        assert found is not None
        assert float((found - truth).abs().max()) <= LOGITS[torch.float64]
