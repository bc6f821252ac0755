"""A directory with weights and a processor, as a checkpoint has them, through `Engine.from_pretrained`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkv import Engine
from agentkv.errors import UnsupportedModel
from agentkv.models import hf
from tests.runtime.media.cases import TALL, WIDE, Rig, block_ids, laid_out, our_logits, rig
from tests.tolerances import LOGITS


def saved(family: str, directory: Path, with_processor: bool = True) -> Path:
    found = rig(family, torch.float32)
    found.model.save_pretrained(directory)
    found.processor.tokenizer.save_pretrained(directory)
    if with_processor:
        found.processor.image_processor.save_pretrained(directory)
        file = directory / "preprocessor_config.json"
        settings: dict[str, Any] = json.loads(file.read_text())
        # What a processor is called says how it is loaded again; its own settings lie in a file of its own.
        named = {**settings, "processor_class": type(found.processor).__name__}
        file.write_text(json.dumps(named))
        own = {key: value for key, value in found.processor.to_dict().items() if key != "video_processor"}
        (directory / "processor_config.json").write_text(json.dumps(own))
    return directory


@pytest.mark.parametrize("family", ["llava", "gemma3", "idefics3", "deepseek_vl"])
def test_a_checkpoint_is_loaded_with_its_processor(family: str, tmp_path: Path) -> None:
    with Engine.from_pretrained(saved(family, tmp_path), chat_template=False) as built:
        window = built.window("exact")
        window.append("abc")
        window.append(WIDE)
        window.append("d")
        window.append(TALL)
        window.append("?")
        window.commit(keep=1)
        base = rig(family, torch.float32)
        pieces = laid_out(Rig(base.model, base.processor, built.tower), ["abc", WIDE, "d", TALL, "?"])
        wanted = our_logits(base, family, pieces, **block_ids(pieces))[-1:]
        found = window.last_outcome.logits
        assert found is not None
        assert float((found - wanted).abs().max()) <= LOGITS[torch.float32]
        assert built.tower.runs == 2


def test_without_a_processor_there_is_text(tmp_path: Path) -> None:
    with Engine.from_pretrained(saved("llava", tmp_path, with_processor=False)) as built:
        window = built.window()
        window.append("text")
        window.commit()
        with pytest.raises(UnsupportedModel, match="without its processor"):
            window.append(WIDE)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="about a machine without torchvision")
def test_without_the_packages_of_a_processor_there_is_text(tmp_path: Path) -> None:
    """transformers cannot build a processor that takes videos without torchvision."""
    with Engine.from_pretrained(saved("qwen2_vl", tmp_path)) as built:
        window = built.window()
        window.append("text")
        window.commit()
        with pytest.raises(UnsupportedModel, match="torchvision"):
            window.append(WIDE)


def test_a_directory_whose_processor_nobody_knows_has_none(tmp_path: Path) -> None:
    directory = saved("llava", tmp_path)
    for name in ("processor_config.json", "preprocessor_config.json"):
        settings = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**settings, "processor_class": "Nobody"}))
    assert hf.load(directory).processor is None
