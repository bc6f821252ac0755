"""The page about images shows only what runs: every snippet, in order, over tiny models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models import tiny_model, tiny_tokenizer
from tests.runtime.media.cases import WIDE
from tests.runtime.media.test_video_files import film
from tests.runtime.media.windows import engine

PAGE = Path(__file__).parents[2] / "docs/images.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 7
    film(tmp_path / "recording.mp4", [index / 4 for index in range(9)])
    monkeypatch.chdir(tmp_path)
    with engine("qwen2_vl") as built:
        scope = {
            "engine": built,
            "screenshot": WIDE,
            "model": tiny_model("llama"),
            "tokenizer": tiny_tokenizer(),
        }
        for snippet in snippets:
            exec(compile(snippet, str(PAGE), "exec"), scope)
