"""The models that the examples look at pictures with, as engines.

    with engine() as eyes:
        window = eyes.window()
        window.append(screenshot)

``engine()`` is the closed-form encoder of `bench.models.vlm` in front of Qwen2.5-Coder-0.5B (478 MB, once),
``engine("tiny")`` the same in front of the embedded SmolLM2-135M: it encodes a screenshot as well, but the
language model makes next to nothing of it, so it shows how windows move and not how an agent does.
``engine("Qwen/Qwen2.5-VL-3B-Instruct")``, or a directory, is a vision-language model that was trained as
one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from agentkv import Engine
from agentkv.config import EngineConfig
from agentkv.errors import InvalidInput
from agentkv.models import hf
from agentkv.store.base import Store
from agentkv.vision.adapter import AdapterTower
from bench.models import ridge, vlm, vlm_words

TINY = "tiny"


def engine(model: str | None = None, *, store: Store | None = None, **settings: Any) -> Engine:
    """model: None, "tiny", or a directory or hub id of a vision-language model. settings: fields of
    `EngineConfig`. The projectors of the first two are fitted once (half a minute) and kept beside the
    embedded model. Raises ModelNotFound where a download fails, and what `Engine.from_pretrained` does.
    """
    if model not in (None, TINY):
        return Engine.from_pretrained(model, store=store, **settings)
    language = vlm.QWEN if model is None else vlm.SMOLLM2
    vision = vlm_words.load(language)
    loaded = replace(hf.load(language.ensure()), name=language.name)
    return Engine(loaded, EngineConfig(**settings), store, vision=vision)


def spelled(eyes: Engine, image: Image.Image) -> str:
    """What the encoder says of a picture: the token nearest to each of its embeddings. For the two
    closed-form models alone, whose embeddings stand for tokens. Raises InvalidInput for another one."""
    tower = eyes.tower
    if not isinstance(tower, AdapterTower):
        raise InvalidInput(got=eyes.loaded.name, expected="a closed-form model", do="ask the model instead")
    with torch.inference_mode():
        ids = ridge.nearest(tower.adapter.encode(image), tower.model.get_input_embeddings().weight)
    text: str = eyes.tokenizer.decode(ids.tolist())
    return text
