"""Backends do the same job: the recording one to the bit, the tensor one to the tolerance of its dtype."""

from __future__ import annotations

import pytest
import torch

from agentkv.backends.base import Backend
from agentkv.backends.torch import TorchBackend
from agentkv.engine import Engine
from agentkv.testing import BackendConformance, RecordingBackend
from tests.models import VOCAB, tiny_tokenizer
from tests.runtime.cases import model
from tests.tolerances import KV


class TestRecordingBackend(BackendConformance):
    def make(self) -> Backend:
        return RecordingBackend()


class TestTorchBackend(BackendConformance):
    tolerance = KV[torch.float64]
    vocabulary = VOCAB

    @pytest.fixture(autouse=True, params=["llama", "gpt_neox", "qwen3"])
    def _family(self, request: pytest.FixtureRequest) -> None:
        self.model = model(request.param, torch.float64)

    def make(self) -> Backend:
        backend = Engine.from_model(self.model, tiny_tokenizer(), patch_rank=999, patch_dtype="model").backend
        assert isinstance(backend, TorchBackend)
        return backend


class TestTorchBackendInFp32(TestTorchBackend):
    tolerance = KV[torch.float32]

    @pytest.fixture(autouse=True, params=["llama", "gpt_neox", "qwen3"])
    def _family(self, request: pytest.FixtureRequest) -> None:
        self.model = model(request.param, torch.float32)


def test_a_patch_is_told_from_a_plain_placement() -> None:
    backend = RecordingBackend()
    kv = backend.new_kv(8)
    block = backend.canonical(backend_ids := torch.arange(4).numpy())
    backend.place(kv, 0, block)
    backend.place(kv, 4, block, backend.form(block, backend.canonical(backend_ids)))
    assert [call[0] for call in backend.calls] == ["canonical", "place", "canonical", "form", "patch"]


def test_the_recorder_refuses_a_patch_on_another_chunk() -> None:
    backend = RecordingBackend()
    a, b = (backend.canonical(torch.arange(n, n + 4).numpy()) for n in (0, 1))
    with pytest.raises(AssertionError, match="another"):
        backend.form(a, b)
