"""Hypothesis strategies shared by the tests, and round figures to plan with."""

from __future__ import annotations

import numpy as np
from agentkv_orchestrator.chunks import Chunk, Ids
from agentkv_orchestrator.cost import KL, CostTable, Mended, Point, Time
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
    kl=KL(
        slide=(Point(share=0.2, kl=0.01), Point(share=0.4, kl=0.03)),
        hole=(Point(share=0.2, kl=0.02, affected=0.5),),
        inserted=(Point(share=0.2, kl=0.01),),
        permuted=0.02,
        canonical=0.05,
        patch=0.002,
        orbit=0.008,
        removal=0.15,
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
