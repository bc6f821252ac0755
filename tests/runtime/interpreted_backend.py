"""The tensor backend over Triton kernels, in Triton's interpreter; `test_triton_backend` runs it."""

from __future__ import annotations

import pytest
import torch

from agentkv.backends.base import Backend
from agentkv.backends.triton import TritonBackend
from agentkv.engine import Engine
from agentkv.testing import BackendConformance
from tests.models import VOCAB, tiny_tokenizer
from tests.runtime.cases import model
from tests.tolerances import KV


class TestTritonBackend(BackendConformance):
    tolerance = KV[torch.float32]
    vocabulary = VOCAB

    @pytest.fixture(autouse=True, params=["llama", "gpt_neox", "qwen3"])
    def _family(self, request: pytest.FixtureRequest) -> None:
        self.model = model(request.param, torch.float32)

    def make(self) -> Backend:
        engine = Engine.from_model(
            self.model, tiny_tokenizer(), patch_rank=64, patch_dtype="model", backend="triton"
        )
        assert isinstance(engine.backend, TritonBackend)
        return engine.backend
