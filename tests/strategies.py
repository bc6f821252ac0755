"""Hypothesis strategies shared by the tests, and round figures to plan with."""

from __future__ import annotations

import numpy as np
from agentkv_orchestrator.chunks import Chunk, Ids
from agentkv_orchestrator.cost import CostTable, Time
from agentkv_orchestrator.errors_model import Curve, ErrorModel, Mended
from agentkv_orchestrator.policy import Policy
from hypothesis import strategies as st

COSTS = CostTable(
    model="round figures",
    hardware="none",
    threads=1,
    measured_on="never",
    ms={
        "rotate": Time(per_token=0.01),
        "load": Time(per_token=0.02),
        "place_canonical": Time(per_token=0.02),
        "apply_patch": Time(per_token=0.01),
        "apply_orbit": Time(per_token=0.01),
        "apply_removal": Time(per_token=0.01),
        "stash": Time(per_token=0.005),
        "prefill": Time(base=10, per_token=1, per_token_row=0.001),
        "form_canonical": Time(base=10, per_token=1, per_token_row=0.001),
        "form_patch": Time(base=50),
    },
    kl=ErrorModel(
        level=0.9,
        bound=1.0,
        slide=Curve(scale=0.016, power=1),
        hole=Curve(scale=0.05, power=1),
        inserted=Curve(scale=0.04, power=1),
        recalled=Curve(scale=0.04, power=1),
        reordered=0.02,
        canonical=0.15,
        patch=0.004,
        orbit=0.01,
        removal=0.15,
        rank=32,
        rank_power=1.0,
        first=0.004,
        near=1e9,  # so far that distance does not matter: a chunk weighs its share of the tokens
        kinds={},
    ),
)
MENDING = COSTS.model_copy(
    update={
        "kl": COSTS.kl.model_copy(
            update={
                "repair": Mended(share=0.25, leaves=0.5),
                "estimated": Mended(share=0.25, leaves=0.2),
            }
        )
    }
)
"""The same, where it is known what computing some rows of a chunk does."""


def chunk(name: str, length: int, span: int | None = None) -> Chunk:
    """A chunk whose id is its name, so that golden plans read well; with a span it is an image."""
    return Chunk(id=name, kind="doc" if span is None else "image", length=length, span=span or length)


def token_ids(seed: int, size: int, vocabulary: int = 50_000) -> Ids:
    """Reproducible token ids, int64 [size]."""
    return np.random.default_rng(seed).integers(0, vocabulary, size, dtype=np.int64)


seeds = st.integers(0, 2**32 - 1)
chunk_lengths = st.integers(1, 40)
policies = st.builds(
    Policy,
    name=st.sampled_from(["exact", "balanced", "fast"]),
    kl_budget=st.sampled_from([0.0, 0.005, 0.05, 1.0]),
    stash=st.booleans(),
)

EDITS = ("append", "again", "evict", "recall", "move", "clean", "settle")
"""New content, known content again, take out, bring back, move, switch a clean view, idle work."""
edits = st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 99), st.integers(0, 99)), max_size=25)
"""(edit, which, where); whoever plays them takes the numbers modulo what there is."""
