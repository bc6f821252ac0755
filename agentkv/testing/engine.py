"""An engine without a model."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from agentkv.backends.base import Backend
from agentkv.backends.recording import VOCABULARY, RecordingBackend
from agentkv.cache import LiveCache, Overlay, Run
from agentkv.config import EngineConfig
from agentkv.engine import Engine
from agentkv.forward import Runner
from agentkv.inputs import Ids
from agentkv.models.hf import LoadedModel
from agentkv.store.base import Store


class FakeTokenizer:
    """One token per word: "w3 w4" is [3, 4]; other words get an id from their letters."""

    eos_token_id = 0
    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [self._id(word) for word in text.split()]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(f"w{token}" for token in ids)

    def _id(self, word: str) -> int:
        number = word[1:] if word.startswith("w") else ""
        return (int(number) if number.isdigit() else sum(word.encode())) % VOCABULARY


class _NoModel(nn.Module):
    """What an engine reads of a model: its device, its type and the size of its vocabulary."""

    config = SimpleNamespace(model_type="none")

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding


class _RecordingRunner(Runner):
    """Decode steps, which go past the backend, are recorded like any prefill."""

    def __init__(self, model: nn.Module, backend: RecordingBackend) -> None:
        super().__init__(model)
        self.backend = backend

    def run(self, runs: Sequence[Run], cache: LiveCache | Overlay, keep: int) -> Tensor:
        assert isinstance(cache, LiveCache)  # overlays are for audits, which need a model
        return self.backend.prefill(cache.kv, runs, keep)


class RecordingEngine(Engine):
    """An engine over a `RecordingBackend`: everything but the model is real. See `recording_engine`."""

    backend: RecordingBackend

    def __init__(self, recorder: RecordingBackend, store: Store | None, config: EngineConfig) -> None:
        self._recorder, model = recorder, _NoModel()
        super().__init__(
            LoadedModel(model, FakeTokenizer(), recorder.layout, "0" * 40, "none"), config, store
        )
        self.runner = _RecordingRunner(model, recorder)

    def __enter__(self) -> RecordingEngine:
        return self

    def _backend(self, sink: Ids) -> Backend:
        return self._recorder


def recording_engine(
    max_positions: int = 4096, store: Store | None = None, **settings: Any
) -> RecordingEngine:
    """An engine without a model: ``engine.backend.calls`` tells what plans did, `rows` what a window holds.

    Windows do all they do elsewhere but `audit`, which compares with a model. settings: fields of
    `EngineConfig`.
    """
    return RecordingEngine(RecordingBackend(max_positions), store, EngineConfig(**settings))
