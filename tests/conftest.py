"""Settings of every test: no network, one torch thread (two collapse on a busy small machine)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch

if TYPE_CHECKING:
    from agentkv.models.hf import LoadedModel

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded() -> LoadedModel:
    """The embedded SmolLM2 in fp32. `make setup` has built its cache; without it this takes 20 s."""
    from agentkv.models.embedded import ensure
    from agentkv.models.hf import load

    return load(ensure())
