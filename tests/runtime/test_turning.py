"""A patch belongs to a chunk, not to the row it was measured at; half-precision rotations do not add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentkv import Engine, Policy
from agentkv.cache import Run
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import STRICT, trusting
from tests.tolerances import KV, kv_error

A: Ids = np.arange(3, 26, dtype=np.int64)
B: Ids = np.arange(30, 49, dtype=np.int64)


def conditioned(engine: Engine, start: int) -> KVBlock:
    """KV(B|A) with A at row ``start``."""
    kv = engine.backend.new_kv(start + len(A) + len(B))
    kv.start, kv.end = start, start + len(A) + len(B)
    engine.backend.prefill(kv, [Run(start, np.concatenate([A, B]))], keep=0)
    return engine.backend.read(kv, start + len(A), kv.end)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3"])
def test_a_patch_formed_at_one_row_is_exact_at_every_other(family: str) -> None:
    model = tiny_model(family)
    with full_precision(model), Engine.from_model(model, tiny_tokenizer(), patch_rank=999) as engine:
        canonical = engine.backend.canonical(B)
        patch = engine.backend.form(conditioned(engine, 211), canonical)
        for start in (0, 1, 7, 300):
            kv, row = engine.backend.new_kv(400), start + len(A)
            engine.backend.place(kv, row, canonical, patch)
            got = engine.backend.read(kv, row, row + len(B))
            for slot, want in zip(got.slots, conditioned(engine, start).slots, strict=True):
                assert kv_error(slot, want) < KV[torch.float64]


def test_a_patch_is_right_after_the_window_has_slid() -> None:
    """Formed before a slide, applied behind it: the recalled chunk is what a re-prefill gives."""
    model = tiny_model("llama")
    with full_precision(model), Engine.from_model(model, tiny_tokenizer(), patch_rank=999) as engine:
        window = engine.window(Policy(kl_budget=9.0))
        window.append_ids(A, kind="system", pin=True)
        first = window.append_ids(B, kind="document")
        second = window.append_ids(np.arange(50, 80, dtype=np.int64), kind="document")
        window.commit()
        window.evict(first)
        window.commit()
        window.settle()
        window.policy = Policy(kl_budget=0.02)  # a patch fits, the bare canonical does not
        window.evict(second)
        window.recall(first)
        plan = window.commit()
        assert {"apply_patch"} <= {op.op for op in plan.ops}
        assert window.kv.start > 0
        assert window.ids().tolist() == [*A.tolist(), *B.tolist()]
        assert window.audit(question=first).kl < 1e-12


def test_a_removal_patch_is_right_where_the_survivor_moves_and_where_it_stays() -> None:
    model = tiny_model("llama")
    with (
        full_precision(model),
        Engine.from_model(model, tiny_tokenizer(), patch_rank=999, costs=trusting()) as engine,
    ):
        # A short prompt moves towards the survivor, a long one lets it come; only the patch meets the budget.
        for copies in (1, 9):
            window = engine.window(STRICT)
            window.append_ids(np.tile(A, copies), kind="system", pin=True)
            leaving = window.append_ids(B, kind="document")
            stays = window.append_ids(np.arange(50, 80, dtype=np.int64), kind="document")
            window.commit()
            assert window.learn_removal(leaving) == 1
            window.evict(leaving)
            names = {op.op for op in window.commit().ops}
            assert "apply_removal" in names
            assert "prefill" not in names
            assert window.audit(question=stays).kl < 1e-12


def test_fifty_slides_in_bf16_cost_the_pinned_prompt_one_rotation() -> None:
    """Every slide moves the prompt, and starts from the prompt as it was computed."""
    model = tiny_model("llama", dtype=torch.bfloat16)
    engine = Engine.from_model(model, tiny_tokenizer(), first_rows=2048)
    window = engine.window(Policy(kl_budget=1e9))
    window.append_ids(A, kind="system", pin=True)
    steps = np.random.default_rng(0).integers(3, 97, (60, 17))
    live = [window.append_ids(ids, kind="step") for ids in steps[:8]]
    window.commit()
    computed = engine.backend.read(window.kv, 0, len(A))

    def error() -> float:
        """Of the prompt's keys, against the computed ones turned once, in fp32."""
        start, kv = window.kv.start, engine.backend.new_kv(window.kv.end)
        once = KVBlock(computed.slots, computed.positions)
        engine.backend.place(kv, start, once)
        return kv_error(window.kv.slots[0][:, start : start + len(A)], kv.slots[0][:, start : start + len(A)])

    for ids in steps[8:58]:
        window.evict(live.pop(0))
        live.append(window.append_ids(ids, kind="step"))
        window.commit()
    assert window.kv.start >= 50 * 17
    assert error() == 0.0


def test_a_copy_taken_before_a_move_goes_when_its_chunk_does() -> None:
    """Also when the chunk is divided, which no op of a plan says, and when nothing else is written."""
    with Engine.from_model(tiny_model("llama", dtype=torch.bfloat16), tiny_tokenizer()) as engine:
        window = engine.window("fast")
        text = [f"w{20 + i}" for i in range(30)]
        head = window.append(" ".join(text))
        left, rest = window.append_ids(A), window.append_ids(B)
        window.commit()
        window.evict(left)
        window.commit()
        assert len(window.kv.sources) == 1  # the head has moved
        text[15] = "w90"
        new = window.replace(head, " ".join(text))
        window.commit()
        assert window.kv.sources.keys() <= {p.uid for p in window.graph.placements}
        window.move(new)
        window.commit()
        window.evict(new)
        window.commit()
        assert window.kv.end - window.kv.start == rest.tokens
        assert window.kv.sources.keys() <= {p.uid for p in window.graph.placements}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"patch_scheme": "uniform"},
        {"patch_depth": 0.5},
        {"patch_dtype": "model"},
        {"patch_dtype": "float16"},
    ],
    ids=lambda settings: "-".join(str(part) for pair in settings.items() for part in pair) or "default",
)
def test_an_engine_forms_patches_as_it_is_told(settings: dict[str, object]) -> None:
    model = tiny_model("llama", dtype=torch.float32)
    with Engine.from_model(model, tiny_tokenizer(), patch_rank=4, **settings) as engine:
        canonical, behind = engine.backend.canonical(B), conditioned(engine, 40)
        patch = engine.backend.form(behind, canonical)
        layers, ranks = engine.layout.layers, [f.offsets.diff() for f in patch.factors if f is not None]
        stored = {"model": torch.float32, "float16": torch.float16}.get(
            str(settings.get("patch_dtype")), torch.bfloat16
        )
        assert all(f.left.dtype == f.right.dtype == stored for f in patch.factors if f)
        numbers = 4 * sum(s.features + len(B) for s in engine.layout.slots) * layers
        assert patch.nbytes <= numbers * stored.itemsize
        if "patch_scheme" in settings:
            assert all((r[1:] == 4).all() for r in ranks)  # nothing is missing in layer 0
        if "patch_depth" in settings:
            assert all((r[: layers // 2] == 0).all() for r in ranks)
        kv = engine.backend.new_kv(100)
        errors = []
        for applied in (None, patch):
            engine.backend.place(kv, 40 + len(A), canonical, applied)
            placed = engine.backend.read(kv, 40 + len(A), 40 + len(A) + len(B))
            errors.append(
                sum(float((a - b).square().sum()) for a, b in zip(placed.slots, behind.slots, strict=True))
            )
        assert errors[1] < errors[0]
