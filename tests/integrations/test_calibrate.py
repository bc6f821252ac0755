"""`agentkv calibrate`: what it measures over, what it makes of it, and how it goes on after a stop."""

from __future__ import annotations

import importlib.metadata
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.diff import Change, Wanted
from agentkv_orchestrator.errors_model import Curve, ErrorModel, Where
from agentkv_orchestrator.plan import Keep, Rotate
from agentkv_orchestrator.planner import make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import FrozenResidency
from agentkv_orchestrator.window import Frame
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import Engine, cli, exits
from agentkv.calibrate import arms, baselines, command, fit, judge, measure, prices, texts, windows
from agentkv.calibrate.cases import Books, Case
from agentkv.calibrate.report import ArmRecord, EditRecord, Measurements, WindowRecord
from agentkv.calibrate.texts import Text
from agentkv.demo.errors import TooFewDocuments
from agentkv.diagnose.errors import BadText, BrokenState, OtherRun
from agentkv.diagnose.probe import Probe
from tests.runtime import cases
from tests.strategies import COSTS

RECALLED = Curve(scale=0.1, power=0.5)
TRUE = COSTS.kl.model_copy(
    update={
        "kinds": {"code": 2.0, "note": 0.5},
        "near": 8.0,
        "first": 0.3,
        "patch": 0.02,
        "recalled": RECALLED,
    }
)
TEXTS = [
    Text(f"source{i}", kind, cases.words(90, seed=10 * i)) for i in range(9) for kind in ("code", "note")
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions in words that the tiny tokenizer knows, small windows, ops timed in short ones."""
    monkeypatch.setattr(measure, "QUESTIONS", ("w20 w31 w42", "w21 w22 w23 w24"))
    monkeypatch.setattr(measure, "QUOTE", "w33 {words} w34")
    monkeypatch.setattr(windows, "SIZES", (3, 5, 9))
    monkeypatch.setattr(windows, "CHUNKS", (4, 6))
    monkeypatch.setattr(prices, "ROWS", 256)
    monkeypatch.setattr(command, "EDITS", 2)
    monkeypatch.setattr(measure, "ONE", 1)
    monkeypatch.setattr(measure, "MIXED", 1)
    monkeypatch.setattr(judge, "RESAMPLES", 60)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with cases.engine("llama", torch.float64, chat=True) as built:
        yield built


def drawn(seed: int, edits: int = 3) -> windows.Drawn:
    pools = texts.pools(TEXTS, lambda text: [int(word[1:]) for word in text.split()])
    return windows.draw(pools, random.Random(seed), edits)


def books(window: windows.Drawn, edit: windows.Edit) -> Books:
    lengths = {i: len(piece.ids) for i, piece in enumerate(window.pieces)} | {-1: 7}
    kinds = {i: piece.kind for i, piece in enumerate(window.pieces)} | {-1: "system"}
    return Books(lengths, kinds, [-1] if window.headed else [], edit.live, edit.wanted)


@given(st.integers(0, 10**6))
def test_an_edit_asks_for_pieces_that_are_there_each_once(seed: int) -> None:
    window = drawn(seed)
    assert len({edit.name for edit in window.edits}) == 3
    for edit in window.edits:
        for order in (edit.live, edit.wanted):
            assert order
            assert len(set(order)) == len(order)
            assert set(order) <= set(range(len(window.pieces)))
        assert edit.live != edit.wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_cases_are_what_the_planner_sees(seed: int) -> None:
    """The fast plan of the same edit predicts what the model says of the cases."""
    window = drawn(seed, edits=len(windows.EDITS))
    costs = COSTS.model_copy(update={"kl": TRUE})
    for edit in window.edits:
        if edit.wanted[-1] not in edit.live:
            continue  # to the planner a new chunk at the end is the question
        one = books(window, edit)
        found = 0.0
        for i in edit.wanted:
            if i not in edit.live:
                continue
            antecedents = edit.live[: edit.live.index(i)]
            change = one.change(i, antecedents)
            if change.kind != "kept":
                bare = one.bare(antecedents)
                found += (one.case(i, "canonical") if bare else one.case(i, "stale", change)).kl(TRUE)
        wanted = [Wanted(uid=i + 2, chunk=one.chunk(i)) for i in one.wanted]
        frame = Frame(start=0, capacity=4096)
        plan = make_plan(one.graph, wanted, FrozenResidency(), costs, Policy(name="fast"), frame, 4096)
        standing = [op.kl for op in plan.ops if isinstance(op, Keep | Rotate)]  # what is computed inherits
        assert sum(standing) == pytest.approx(found, abs=1e-5)


def made_up(count: int, noise: float, seed: int = 0) -> list[WindowRecord]:
    """Windows whose KL is what TRUE says, times log-normal noise."""
    draw, rng, found = random.Random(seed), np.random.default_rng(seed), []
    treatments = list(arms.ODDS)
    for number in range(count):
        window, records = drawn(1000 * seed + number), []
        for edit in window.edits:
            one, measured = books(window, edit), []
            for _ in range(4):
                chosen = draw.sample(edit.wanted, draw.randint(1, len(edit.wanted)))
                some = [_case(one, edit, i, draw.choice(treatments), draw) for i in chosen]
                kl = sum(case.kl(TRUE) for case in some) * float(np.exp(noise * rng.normal()))
                measured.append(ArmRecord(cases=tuple(some), kl=(kl,)))
            records.append(EditRecord(name=edit.name, arms=tuple(measured)))
        part = command.TURNS[number % len(command.TURNS)]
        found.append(WindowRecord(part=part, sources=(), edits=tuple(records)))
    return found


def _case(one: Books, edit: windows.Edit, i: int, treatment: Any, draw: random.Random) -> Case:
    order = tuple(draw.sample(edit.wanted, draw.randint(0, len(edit.wanted))))
    change = one.change(i, [j for j in order if j != i])
    if treatment in ("stale", "near", "removal") and change.kind == "kept":
        treatment = "canonical"
    ranked = draw.choice(arms.RANKS) if treatment in ("patch", "near") else 0
    return one.case(i, treatment, change if treatment in ("stale", "near", "removal") else None, ranked)


def test_columns_give_what_the_model_gives_case_by_case() -> None:
    found = fit.rows(made_up(8, noise=0.0))
    assert fit.expected(TRUE, found) == pytest.approx(found.kl, rel=1e-9, abs=1e-12)


def test_the_fit_finds_what_windows_were_made_of() -> None:
    learned, unseen = fit.rows(made_up(60, noise=0.5)), fit.rows(made_up(20, noise=0.0, seed=1))
    model = fit.fit(learned, TRUE.rank, 0.9)
    expected = fit.expected(model, unseen)
    assert judge.spearman(expected, unseen.kl) > 0.97
    off = np.log((expected + fit.FLOOR) / (unseen.kl + fit.FLOOR))
    assert np.std(off) < 0.25
    assert model.kinds["code"] / model.kinds["note"] == pytest.approx(4.0, rel=0.3)
    assert fit.expected(model, learned).sum() == pytest.approx(learned.kl.sum())


def test_the_bound_holds_on_windows_that_nobody_has_seen_and_beats_simpler_ones() -> None:
    model, found = judge.calibrated(made_up(80, noise=0.8), TRUE.rank, baselines.BASELINES)
    assert found.model.coverage.value >= model.level == judge.LEVEL
    assert found.model.rank_correlation.low > max(x.rank_correlation.value for x in found.others.values())
    assert found.model.slack.value < min(x.slack.value for x in found.others.values())
    assert found.others["a constant"].rank_correlation.value == 0.0
    assert (found.windows, found.bounded_windows, found.fitted_windows) == (20, 20, 40)
    assert set(found.edits) <= set(windows.EDITS)
    assert model.bound > 1


def test_sources_are_in_one_part_only() -> None:
    parts = texts.split(TEXTS, 0)
    sources = [{text.source for text in parts[part]} for part in texts.PARTS]
    assert all(sources)
    assert sum(map(len, sources)) == len(set.union(*sources)) == 9
    with pytest.raises(BadText, match="2 texts"):
        texts.split(TEXTS[:4], 0)


def test_files_are_taken_for_what_their_suffix_says(tmp_path: Path) -> None:
    for name in ("a.md", "b.py", "c.json", "d.png", "e.log"):
        (tmp_path / name).write_text("words and more words")
    found = {Path(text.source).name: text.kind for text in texts.read([tmp_path])}
    assert found == {"a.md": "document", "b.py": "code", "c.json": "tool", "e.log": "note"}
    assert texts.read([tmp_path / "d.png"])[0].kind == "document"


def test_installed_packages_have_every_kind_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [importlib.metadata.distribution(name) for name in ("typer", "rich", "pytest")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: known)
    found = texts.installed()
    assert {text.kind for text in found} == {"document", "code", "tool", "note"}
    schema = next(text.text for text in found if text.kind == "tool").splitlines()[0]
    assert set(json.loads(schema)) == {"name", "description", "parameters"}


def test_too_little_text_is_refused() -> None:
    with pytest.raises(TooFewDocuments):
        windows.draw(texts.pools([Text("a", "note", "")], lambda text: [1]), random.Random(0), 1)


@pytest.mark.parametrize("seed", range(2))
def test_an_exact_arm_has_no_error_and_a_treated_one_has(engine: Engine, seed: int) -> None:
    """KV of the wanted window put together block by block answers as the re-prefill does."""
    probe, asked = Probe(engine, 400), measure.Asked(engine)
    window = drawn(seed, edits=len(windows.EDITS))
    one = measure.Measured(probe, asked, window, str(seed))
    for edit in window.edits:
        record = one.edit(edit)
        assert record.arms
        for arm in record.arms:
            for kl in arm.kl:
                assert 0 <= kl < 10
            if {case.treatment for case in arm.cases} & {"canonical", "stale"}:
                assert max(arm.kl) > 1e-12
    again = measure.Measured(probe, asked, window, str(seed)).edit(window.edits[0])
    assert again == measure.Measured(probe, asked, window, str(seed)).edit(window.edits[0])


def test_a_patch_of_full_rank_leaves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "RANKS", (99,))
    monkeypatch.setattr(arms, "ODDS", {**dict.fromkeys(arms.ODDS, 0), "patch": 1})
    probe, asked = Probe(engine, 400), measure.Asked(engine)
    window = drawn(4, edits=len(windows.EDITS))
    one, seen = measure.Measured(probe, asked, window, "4"), 0
    for edit in window.edits:
        for arm in one.edit(edit).arms:
            if {case.treatment for case in arm.cases} == {"patch"}:
                seen += 1
                assert max(arm.kl) < 1e-9
    assert seen > 3


def collected(engine: Engine, folder: Path, count: int, seed: int = 0) -> Measurements:
    return command.collect(engine, TEXTS, folder / "run.json", count, seed, lambda what, done: None)


def test_a_run_goes_on_where_it_was_stopped(engine: Engine, tmp_path: Path) -> None:
    whole = collected(engine, tmp_path, 3)
    (tmp_path / "again").mkdir()
    collected(engine, tmp_path / "again", 1)
    assert collected(engine, tmp_path / "again", 3) == whole
    assert [w.part for w in whole.windows] == list(command.TURNS[:3])
    with pytest.raises(OtherRun, match="seed"):
        collected(engine, tmp_path, 3, seed=1)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BrokenState, match="agentkv calibrate"):
        collected(engine, tmp_path, 3)
    assert (tmp_path / "run.json").read_text() == "{}"


def test_bytes_are_those_of_the_tensors_and_times_grow_with_rank(engine: Engine) -> None:
    moved = prices.sizes(engine)
    kv = engine.backend.new_kv(64)
    assert moved["load"].of(10) == 10 * kv.row_bytes
    kv.end = 40
    for slot in kv.slots:
        slot.normal_()
    patch = engine.backend.form(kv.view(0, 40), engine.backend.canonical(np.arange(3, 43)))
    rank = min(engine.config.patch_rank, 8)
    assert moved["apply_patch"].of(40, rank) <= patch.nbytes * 1.5
    assert set(prices.times(engine)) == set(moved)


def test_nonnegative_least_squares_drops_what_would_be_negative() -> None:
    n = np.array([1.0, 2, 4, 8])
    assert prices.nonnegative(np.stack([n**0, n], 1), 3 + 2 * n) == pytest.approx([3, 2])
    base, slope = prices.nonnegative(np.stack([n**0, n], 1), 2 * n - 1)
    assert base == 0
    assert slope > 0


@pytest.fixture
def call(engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """`agentkv calibrate` over the tiny model: exit code, stdout, stderr."""

    @contextmanager
    def loaded(source: Any, device: str) -> Iterator[Engine]:
        yield engine

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agentkv", "calibrate", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    monkeypatch.setattr(command.Engine, "from_pretrained", loaded)
    monkeypatch.setattr(command.texts, "installed", lambda: TEXTS)
    monkeypatch.setattr(command.embedded, "ensure", lambda say: None)
    monkeypatch.chdir(tmp_path)
    return run


def test_the_command_writes_a_calibration_that_an_engine_takes(call: Any, tmp_path: Path) -> None:
    code, out, err = call("--windows", 4, "--out", "made.json")
    assert (code, err.strip()) == (0, "")
    assert "rank correlation" in out
    assert "CostTable.load(Path('made.json'))" in out
    table = CostTable.load(tmp_path / "made.json")
    assert table.evaluation is not None
    assert table.moved("load", 1) > 0
    with cases.engine(costs=table) as engine:
        assert engine.costs.kl == table.kl
    code, out, _ = call("--windows", 4, "--out", "made.json", "--json")
    assert code == 0
    assert CostTable.model_validate_json(out).kl == table.kl


def test_what_cannot_work_is_refused_before_the_model_is_loaded(call: Any, tmp_path: Path) -> None:
    assert call("--windows", 3)[0] == 2
    code, _, err = call("--windows", 4, "--out", "nowhere/made.json")
    assert code == exits.FAILED
    assert "nowhere" in err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_the_windows_that_are_finished(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = command.measure, iter(range(9))

    def stopped(*args: Any) -> WindowRecord:
        if next(count) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(command, "measure", stopped)
    code, _, err = call("--windows", 4, "--out", "made.json")
    assert code == exits.INTERRUPTED
    assert "made.windows.json" in err
    assert not (tmp_path / "made.json").exists()
    run = Measurements.model_validate_json((tmp_path / "made.windows.json").read_bytes())
    assert len(run.windows) == 2


def test_a_case_says_what_the_planner_would() -> None:
    where = Where("code", 10, 40, 60)
    change = Change(1, COSTS_CHUNK, "survivor", lost=1, lost_tokens=5, gained=1, gained_tokens=10)
    case = Case("stale", "code", 10, 40, 60, 5, 10)
    assert case.kl(TRUE) == TRUE.stale(change, where)
    assert case._replace(treatment="removal").kl(TRUE) == TRUE.removal * TRUE.stale(change, where)
    assert case._replace(treatment="near", rank=32).kl(TRUE) == pytest.approx(
        TRUE.stale(change, where) + TRUE.patched(where)
    )
    assert Case("canonical", "code", 10, 40, 60).kl(TRUE) == TRUE.bare(where)
    assert Case("orbit", "code", 10, 40, 60).kl(TRUE) == TRUE.orbited(where)
    coarse: ErrorModel = TRUE.at_rank(8)
    assert Case("patch", "code", 10, 40, 60, rank=8).kl(TRUE) == pytest.approx(coarse.patched(where))


COSTS_CHUNK = Wanted(uid=1, chunk={"id": "a", "kind": "code", "length": 10}).chunk  # type: ignore[arg-type]
