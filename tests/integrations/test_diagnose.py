"""The figures of a diagnosis, against plain transformers forwards and computations of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from agentkv import Engine
from agentkv.audit import divergence
from agentkv.demo.errors import CheckFailed, TooFewDocuments
from agentkv.diagnose import documents, edits, gates, measure, pair
from agentkv.diagnose.probe import Truth, plain
from agentkv.diagnose.report import Diagnosis
from agentkv.diagnose.sample import Sample
from agentkv.diagnose.summary import functional_rank
from agentkv.errors import TooLong
from agentkv.kv import KVBlock
from agentkv.media import Tokens
from agentkv.metrics import eta, interval
from bench.eval.reference import Reference, split
from tests.integrations.diagnose_case import (
    CHUNKS,
    QUESTIONS,
    TOKENS,
    WINDOWS,
    close,
    diagnosed,
    first_sample,
    ids,
)
from tests.models import tiny_model, tiny_tokenizer
from tests.runtime import cases
from tests.tolerances import LOGITS, kv_error

OTHERS = ("deepseek_v3", "deepseek_v2", "gemma3_text", "gpt_oss", "cohere2", "qwen2_5_vl", "llama4_text")
"""Latents with a rope key of their own, half-split and interleaved; two thetas and sliding layers; attention
sinks; layers without positions; three axes of positions; a query scale that depends on them."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions in words that the tiny tokenizer knows, and ops timed in short windows."""
    monkeypatch.setattr(measure, "QUESTIONS", QUESTIONS)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An fp64 llama with a chat template, its rotary angles in fp64."""
    with cases.engine("llama", torch.float64, chat=True) as built:
        yield built


@pytest.fixture
def one(engine: Engine) -> Sample:
    return first_sample(engine)


class Oracle:
    """A sample's windows by transformers' own forwards, rotation written out in `bench.eval.reference`."""

    def __init__(self, one: Sample) -> None:
        self.one, self.reference = one, Reference(one.probe.engine.loaded.model)
        self.sink = one.probe.engine.sink
        self.full = self.prefill(range(CHUNKS))
        self.canonical = [self.prefill([i])[1] for i in range(CHUNKS)]

    def prefill(self, order: range | list[int]) -> list[KVBlock]:
        """[sink, chunks in ``order``]."""
        parts = [self.sink, *(self.one.chunks[i].ids for i in order)]
        return split(self.reference.prefill(ids(*parts)), [len(p) for p in parts])

    def kl(self, truth: list[KVBlock], window: list[KVBlock]) -> float:
        """Of the question, each block of ``window`` turned to where that of ``truth`` stands."""
        moved = [self.reference.move(b, int(t.positions[0])) for b, t in zip(window, truth, strict=True)]
        question = ids(self.one.question)
        return float(
            divergence(self.reference.logits(truth, question), self.reference.logits(moved, question)).mean()
        )


def test_blind_reuse_is_what_transformers_says(one: Sample) -> None:
    oracle = Oracle(one)
    wanted = oracle.kl(oracle.full, [*oracle.full[:-1], oracle.canonical[-1]])
    found = one.behind_the_rest((one.canonical[-1], None))
    assert wanted > 1e-3
    assert close(found, wanted)


@pytest.mark.parametrize("name", ["slide_1", "slide_2", "hole", "reorder", "recall", "insert"])
def test_edits_are_what_transformers_says(one: Sample, name: str) -> None:
    """Both arms of every edit, from prefills and rotations that share no code with the runtime."""
    oracle, seed, middle = Oracle(one), 5, CHUNKS // 2
    order = list(edits.permutations(CHUNKS - 1, seed)[0])
    sink, full, canonical = oracle.full[0], oracle.full[1:], oracle.canonical
    left = [i for i in range(CHUNKS) if i != middle]
    inserted = oracle.prefill([1, 2, 3])
    shuffled = oracle.prefill([*order, 3])[1:]
    windows: dict[str, tuple[list[KVBlock], list[KVBlock], list[KVBlock]]] = {
        "slide_1": (oracle.prefill([1, 2, 3]), [sink, *full[1:]], [sink, *canonical[1:]]),
        "slide_2": (oracle.prefill([2, 3]), [sink, *full[2:]], [sink, *canonical[2:]]),
        "hole": (oracle.prefill(left), [sink, *(full[i] for i in left)], [sink, *full[:2], canonical[3]]),
        "reorder": (
            oracle.full,
            [sink, *(shuffled[order.index(i)] for i in range(3)), shuffled[3]],
            [sink, *canonical],
        ),
        "recall": (
            oracle.prefill([*left, middle]),
            [*oracle.prefill(left), full[middle]],
            [*oracle.prefill(left), canonical[middle]],
        ),
        "insert": (oracle.full, [sink, full[0], *inserted[1:]], [sink, full[0], *canonical[1:]]),
    }
    truth, keep, fresh = windows[name]
    found = edits.measure(one, seed)[0][name]
    assert oracle.kl(truth, keep) > 1e-6
    assert close(found.keep, oracle.kl(truth, keep))
    assert close(found.canonical, oracle.kl(truth, fresh))


def test_removal_and_orbit_patches_of_full_rank_are_exact() -> None:
    """A removal patch of everything is a re-prefill; an orbit patch is its mean deficit."""
    with cases.engine("llama", torch.float64, patch_rank=cases.FULL) as engine:
        one = first_sample(engine)
        assert edits.removed(one, edits.after(one, [0])) < 1e-12
        assert edits.orbit(one, [one.target]) < 1e-12
        other = one.prefill([], [1, 0, 2, 3])[-1]
        assert edits.orbit(one, [other]) > 1e-9
        mixed = [(a + b) / 2 for a, b in zip(one.target.slots, other.slots, strict=True)]
        wanted = one.error(plain([*one.full[:-1], KVBlock(tuple(mixed), one.target.positions)]))
        assert close(edits.orbit(one, [one.target, other]), wanted)


def test_full_rank_is_exact_and_errors_shrink(one: Sample) -> None:
    found = pair.by_rank(one)
    assert list(found) == list(pair.RANKS)
    assert found[128] < 1e-12
    assert found[4] > found[8] > 1e-9
    assert pair.by_depth(one)["all"] == found[32]
    assert pair.by_depth(one)["1/4"] > 1e-6


def test_a_rank_is_worth_what_numpy_s_svd_says() -> None:
    """Scheme "uniform": every layer and slot of Δ truncated on its own."""
    with cases.engine("llama", torch.float64, patch_scheme="uniform") as engine:
        one = first_sample(engine)
        moved, slots = one.probe.moved(one.canonical[-1], one.target), []
        for base, wanted in zip(moved.slots, one.target.slots, strict=True):
            u, s, v = np.linalg.svd((wanted - base).flatten(2).numpy(), full_matrices=False)
            delta = np.einsum("lnr,lr,lrd->lnd", u[..., :4], s[:, :4], v[:, :4])
            slots.append(base + torch.tensor(delta).view_as(base))
        wanted = one.error(plain([*one.full[:-1], KVBlock(tuple(slots), one.target.positions)]))
        assert close(pair.by_rank(one, [4])[4], wanted)


def test_all_tokens_exact_is_exact_and_none_is_blind(one: Sample) -> None:
    order = pair.worst_first(one.delta)
    assert sorted(order.tolist()) == list(range(TOKENS))
    sizes = torch.stack([x.square().sum((0, 2, 3)) for x in one.delta]).sum(0)
    assert sizes[order].tolist() == sorted(sizes.tolist(), reverse=True)
    found = pair.by_tokens(one, [0, 30, 100], order)
    assert found[100] < 1e-12
    assert close(found[0], one.behind_the_rest((one.canonical[-1], None)))
    assert found[0] > found[30] > 1e-9


def test_a_shared_basis_of_this_pair_alone_is_its_own_svd(one: Sample) -> None:
    from agentkv.patches.basis import BasisPool

    pool = BasisPool()
    pool.add(one.delta)
    assert pair.shared(one, pool.basis(TOKENS)) < 1e-9  # a basis is stored in fp32


def test_profile_and_components(one: Sample, engine: Engine) -> None:
    profile = pair.profile(one, engine.layout)
    assert list(profile) == ["keys", "values"]
    moved = one.probe.moved(one.canonical[-1], one.target)
    for name, base, wanted in zip(profile, moved.slots, one.target.slots, strict=True):
        ratio = [float((w - b).norm() / w.norm()) for b, w in zip(base, wanted, strict=True)]
        assert profile[name] == pytest.approx(ratio, abs=1e-9)
        assert ratio[0] < 1e-9 < 1e-2 < ratio[1]
    silent = {name: [x < 1e-9 for x in each] for name, each in profile.items()}
    counts = []
    for layer in range(1, engine.layout.layers):
        s = np.linalg.svd(one.delta[0][layer].flatten(1).numpy(), compute_uv=False)
        counts.append(int(np.searchsorted(np.cumsum(s**2) / np.sum(s**2), 0.9)) + 1)
    assert pair.components(one.spectrum, engine.layout, silent)["keys"] == np.mean(counts)


def test_truth_is_the_divergence() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 50, generator=draw) * 6 for _ in range(2))
    assert close(Truth(a).kl(b), float(divergence(a, b).mean()))
    assert Truth(a).kl(a) < 1e-12


@pytest.mark.parametrize("family", [*cases.FAMILIES, *OTHERS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gates_pass(family: str, dtype: torch.dtype) -> None:
    with cases.engine(family, dtype) as engine:
        found = gates.check(first_sample(engine))
    assert len(found) == 5
    assert found["full-rank patch, logits"].limit == LOGITS[dtype]


@pytest.mark.parametrize("family", [*cases.FAMILIES, "deepseek_v2", "gemma3_text"])
def test_gates_of_half_precision_measure_their_own_limit(family: str) -> None:
    model = tiny_model(family, torch.bfloat16)
    with Engine.from_model(model, tiny_tokenizer()) as engine:
        one = first_sample(engine)
        found = gates.check(one)
    pieces: list[KVBlock] = []
    for i in range(CHUNKS):
        pieces = one.prefill(pieces, [i])
    floor = float((one.logits(plain(pieces)) - one.truth.logits).abs().max())
    assert found["full-rank patch, logits"].limit == gates.FLOORS * floor > LOGITS[torch.float32]


def broken_patch(one: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    real = one.probe.placed
    monkeypatch.setattr(one.probe, "placed", lambda patch, base: real(patch, one.target))


def broken_turn(one: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.probe, "start", lambda block: int(block.positions[0]) + 1)


def broken_place(one: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    base = one.canonical[-1]
    one.canonical[-1] = KVBlock(base.slots, base.positions + 1)


def broken_forward(one: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    real = one.probe.prefill

    def off(front: list[KVBlock], chunks: list[Tokens]) -> list[KVBlock]:
        return [KVBlock(tuple(s * 1.01 for s in b.slots), b.positions) for b in real(front, chunks)]

    monkeypatch.setattr(one.probe, "prefill", off)


def no_effect(one: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    one.canonical[-1] = one.target


@pytest.mark.parametrize(
    ("breaks", "gate"),
    [
        (broken_patch, "full-rank patch"),
        (broken_turn, "rotation there and back"),
        (broken_place, "layer 0"),
        (broken_forward, "all rows recomputed"),
        (no_effect, "blind reuse"),
    ],
)
def test_a_broken_gate_stops(
    one: Sample, breaks: Callable[..., None], gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(one, monkeypatch)
    with pytest.raises(CheckFailed, match=gate):
        gates.check(one)


def test_a_whole_run(engine: Engine, tmp_path: Path) -> None:
    """Every figure of the summary follows from the windows."""
    found = diagnosed(engine, tmp_path)
    summary = found.summary
    assert summary is not None
    assert (summary.n, len(found.windows), len(found.gates)) == (WINDOWS, WINDOWS, 5)
    blind = [w.blind for w in found.windows]
    assert (summary.blind.value, summary.blind.low, summary.blind.high) == interval(blind)
    assert summary.eta.shared.value == pytest.approx(1 - sum(w.shared for w in found.windows) / sum(blind))
    assert summary.eta.rank[128].value == pytest.approx(1.0)
    assert summary.eta.orbit.value == eta([w.orbit for w in found.windows], blind)[0]
    assert summary.page_bytes == TOKENS * engine.layout.token_bytes(torch.float64)
    assert summary.noise.value < 1e-12
    assert summary.profile["keys"][0] < 1e-9
    assert all(len(each) == engine.layout.layers for each in summary.profile.values())
    assert found.windows[0] != found.windows[1]
    assert Diagnosis.model_validate_json((tmp_path / "run.json").read_text()) == found


def test_a_latent_cache_is_measured_as_it_is(tmp_path: Path) -> None:
    """Bytes and deficits are those of the latent and its rope key, and a patch covers both."""
    with cases.engine("deepseek_v3", torch.float64) as engine:
        found = diagnosed(engine, tmp_path, windows=1)
        config, layers = engine.loaded.model.config, engine.layout.layers
        one = first_sample(engine)
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    assert [(s.heads, s.dim, s.rotates) for s in found.model.slots] == [(1, latent, False), (1, rope, True)]
    assert found.model.token_bytes == 8 * layers * (latent + rope)
    assert [tuple(x.shape[2:]) for x in one.delta] == [(1, latent), (1, rope)]
    assert all(float(x[1:].abs().min(0).values.max()) > 0 for x in one.delta)
    window = found.windows[0]
    assert window.blind > 1e-3
    assert window.rank[128] < 1e-12
    rotated = one.probe.moved(one.canonical[-1], one.target)
    half = KVBlock((one.target.slots[0], rotated.slots[1]), rotated.positions)
    assert one.behind_the_rest((half, None)) > 1e-6


def test_functional_rank() -> None:
    windows = [SimpleNamespace(blind=1.0, rank={4: 0.5, 8: 0.06, 16: 0.02})] * 3
    assert functional_rank(windows).value == 16
    assert functional_rank([SimpleNamespace(blind=1.0, rank={4: 0.5, 8: 0.4})]).value is None
    mixed = [SimpleNamespace(blind=1.0, rank={4: x, 8: 0.01}) for x in (0.0, 0.0, 0.14)]
    found = functional_rank(mixed)
    assert (found.value, found.low, found.high) == (4, 4, 8)


def test_windows_do_not_depend_on_their_number_and_training_is_apart() -> None:
    pool = [documents.Document(f"d{i}", tuple(range(100 * i, 100 * i + 10 * (i + 1)))) for i in range(12)]
    measured, training = documents.split(pool, 3, seed=4)
    assert not {d.name for d in measured} & {d.name for d in training}
    assert len(measured) + len(training) == 12
    few, many = (documents.windows(measured, count, 3, 10, seed=4) for count in (2, 6))
    assert many[:2] == few
    for window in many:
        assert len({piece.name for piece in window}) == 3
        for piece in window:
            assert piece.start % 10 == 0
            assert piece.ids == tuple(range(piece.ids[0], piece.ids[0] + 10))
    assert len({piece.start for window in many for piece in window}) > 1
    with pytest.raises(TooFewDocuments, match="5 texts"):
        documents.split(pool[:5], 3, seed=4)


def test_too_long_for_the_model(engine: Engine, tmp_path: Path) -> None:
    long = [(f"t{i}", cases.words(1300, seed=i)) for i in range(8)]
    with pytest.raises(TooLong, match="4096"):
        diagnosed(engine, tmp_path, long, chunk_tokens=1200)


def test_rows_of_a_moved_block(one: Sample) -> None:
    """What gates call moved is what a forward there gives at layer 0, and not elsewhere."""
    moved = one.probe.moved(one.canonical[-1], one.target)
    errors: list[Tensor] = [
        torch.tensor([kv_error(a, b) for a, b in zip(x, y, strict=True)])
        for x, y in zip(moved.slots, one.target.slots, strict=True)
    ]
    assert all(e[0] < 1e-9 < 1e-2 < e[1:].min() for e in errors)
