"""Patches against plain linear algebra: exactness, byte budgets, ranking, orbits, bases, refusals."""

from itertools import pairwise

import pytest
import torch
from agentkv_kernels.types import Factors

from agentkv.errors import AgentKVError, BadRank, InvalidInput, NonFinite
from agentkv.kv import KVBlock
from agentkv.patches import (
    Budget,
    OrbitMean,
    Patch,
    apply,
    calibrate_depth,
    calibrate_effect,
    decompose,
    deficit,
    form,
    removal,
    undo,
)
from agentkv.patches.basis import BasisPool
from agentkv.patches.factorise import factorise

torch.set_num_threads(1)

# (L, n, H, D) per slot: square-ish, wide, tall, odd, one token, MLA-like slots of unequal width.
SHAPES = {
    "gqa": [(3, 24, 2, 8), (3, 24, 2, 8)],
    "wide": [(3, 7, 4, 8), (3, 7, 4, 8)],
    "tall": [(2, 61, 1, 5), (2, 61, 1, 5)],
    "odd": [(5, 13, 3, 7), (5, 13, 3, 7)],
    "one token": [(2, 1, 1, 6), (2, 1, 1, 6)],
    "mla": [(4, 17, 1, 32), (4, 17, 1, 6)],
}


def spread(shapes, seed=0, dtype=torch.float64):
    """Deficits with decaying spectra whose size grows with depth, as measured ones do."""
    g = torch.Generator().manual_seed(seed)
    slots = []
    for layers, n, h, d in shapes:
        x = torch.randn(layers, n, h * d, generator=g, dtype=torch.float64)
        u, s, v = torch.linalg.svd(x, full_matrices=False)
        decay = 0.7 ** torch.arange(s.shape[1], dtype=torch.float64)
        depth = torch.arange(1, layers + 1, dtype=torch.float64)[:, None, None]
        slots.append((u * (s * decay)[:, None] @ v * depth).view(layers, n, h, d).to(dtype))
    return tuple(slots)


def dense(factors, like):
    """Left times right, written out layer by layer; zero where nothing is stored."""
    if factors is None:
        return torch.zeros_like(like)
    left, right = factors.left.to(like.dtype), factors.right.to(like.dtype)
    layers = [left[:, a:b] @ right[a:b] for a, b in pairwise(factors.offsets.tolist())]
    return torch.stack(layers).view(like.shape)


def error(patch, delta):
    """Share of the squared deficit that the patch leaves."""
    left = sum((dense(f, x) - x).square().sum() for f, x in zip(patch.factors, delta, strict=True))
    return float(left / sum(x.square().sum() for x in delta))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scheme", ["energy", "uniform"])
def test_a_rank_above_both_sides_reproduces_the_deficit(name, scheme):
    """Rank larger than min(n, d) is full rank, exact to 1e-9 in fp64."""
    delta = spread(SHAPES[name])
    patch = form(delta, Budget(rank=999), scheme, dtype=torch.float64)
    for factors, x in zip(patch.factors, delta, strict=True):
        torch.testing.assert_close(dense(factors, x), x, rtol=0, atol=1e-9)
    assert patch.energy == pytest.approx(1.0, abs=1e-12)


def test_a_full_rank_patch_turns_the_relocated_block_into_the_conditioned_one():
    conditioned, relocated = spread(SHAPES["odd"], 1), spread(SHAPES["odd"], 2)
    block = KVBlock(relocated, torch.arange(13))
    patch = form(deficit(conditioned, relocated), Budget(rank=99), dtype=torch.float64)
    patched = apply(block, patch)
    for got, want, back, was in zip(
        patched.slots, conditioned, undo(patched, patch).slots, relocated, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
        torch.testing.assert_close(back, was, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scheme", ["energy", "uniform"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 3.5])
def test_the_byte_budget_is_never_exceeded(name, scheme, dtype, rank):
    shapes = SHAPES[name]
    patch = form(spread(shapes), Budget(rank=rank), scheme, dtype=dtype)
    cost = sum(layers * (n + h * d) for layers, n, h, d in shapes) * dtype.itemsize
    assert 0 < patch.nbytes <= rank * cost
    assert patch.nbytes == sum(f.left.nbytes + f.right.nbytes for f in patch.factors if f is not None)


def test_a_byte_budget_and_a_page_share_mean_the_same_bytes():
    delta = spread(SHAPES["gqa"])
    page = sum(x.numel() for x in delta) * 4
    by_share, by_bytes = form(delta, Budget(share=0.25)), form(delta, Budget(nbytes=page // 4))
    assert by_share.nbytes == by_bytes.nbytes <= page / 4
    assert form(delta, Budget(share=0.25, page_itemsize=2)).nbytes <= page / 8


def test_energy_is_the_share_of_the_squared_deficit_that_the_factors_reproduce():
    delta = spread(SHAPES["mla"])
    for scheme in ("energy", "uniform"):
        patch = form(delta, Budget(rank=3), scheme, dtype=torch.float64)
        assert 1 - error(patch, delta) == pytest.approx(patch.energy, abs=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 4, 6])
def test_energy_beats_a_uniform_rank_at_equal_bytes(rank):
    delta = spread(SHAPES["gqa"])
    uniform = form(delta, Budget(rank=rank), "uniform")
    energy = form(delta, Budget(nbytes=uniform.nbytes))
    assert energy.nbytes <= uniform.nbytes
    assert energy.energy > uniform.energy + 1e-3


def test_energy_takes_the_largest_singular_values_of_all_layers():
    """With equal costs the kept σ² are exactly the top ones, found here by a plain SVD."""
    delta = spread(SHAPES["odd"])
    patch = form(delta, Budget(rank=2), dtype=torch.float64)
    every = torch.cat([torch.linalg.svdvals(x.flatten(2)).flatten() for x in delta]).square()
    best = every.sort(descending=True).values[: 2 * 2 * 5].sum() / every.sum()
    assert patch.energy == pytest.approx(float(best), abs=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 8, 3)])
def test_directions_without_energy_are_finite(shape):
    x = torch.zeros(shape, dtype=torch.float64)
    x[0, :2, :2] = torch.tensor([[1.0, 2.0], [2.0, 4.0]])  # rank 1
    parts = factorise(x)
    assert all(torch.isfinite(part).all() for part in parts)
    torch.testing.assert_close(parts.left @ parts.right, x)
    assert parts.power[0].sort().values[:-1].max() < 1e-20


def test_deficits_of_partly_rotated_keys_are_factorised_on_any_processor():
    """Few of many columns: on some processors the fp32 eigensolver fails for one in five, in two ways."""
    columns = [16 * head + dim for head in range(5) for dim in range(4)]
    for seed in range(60):
        x = torch.zeros(1, 90, 80)
        x[:, :, columns] = torch.randn(90, 20, generator=torch.Generator().manual_seed(seed))
        for each in (x, x.mT.contiguous()):
            parts = factorise(each)
            torch.testing.assert_close(parts.left @ parts.right, each, rtol=0, atol=1e-4)


def test_slots_of_unequal_width_are_ranked_by_energy_per_byte():
    """At equal σ² the narrow slot's component is the cheaper one, and is bought first."""
    wide, narrow = torch.zeros(1, 4, 1, 60), torch.zeros(1, 4, 1, 4)
    wide[0, 0, 0, 0], narrow[0, 1, 0, 1] = 1.0, 0.9
    patch = form((wide, narrow), Budget(nbytes=64 * 4))
    assert patch.factors[0] is None
    assert patch.factors[1].right.shape == (1, 4)


def test_a_layer_far_below_the_others_survives_a_full_rank_patch():
    delta = spread(SHAPES["gqa"])
    delta[0][0] *= 1e-11
    patch = form(delta, Budget(rank=99), dtype=torch.float64)
    torch.testing.assert_close(dense(patch.factors[0], delta[0])[0], delta[0][0], rtol=1e-3, atol=1e-18)


def test_slot_weights_move_bytes_to_that_slot():
    delta = spread(SHAPES["gqa"])
    plain, keyed = form(delta, Budget(rank=3)), form(delta, Budget(rank=3), weights=(100.0, 1.0))
    assert keyed.factors[0].right.shape[0] > plain.factors[0].right.shape[0]
    assert keyed.nbytes <= plain.nbytes


def test_layer_weights_move_bytes_to_those_layers():
    delta = spread(SHAPES["odd"])
    first = torch.tensor([1e12, 1, 1, 1, 1])
    patch = form(delta, Budget(rank=3), weights=(first, first))
    assert patch.factors[0].offsets[1] == 13  # all of layer 0
    assert patch.energy < form(delta, Budget(rank=3)).energy
    deep = form(delta, Budget(rank=2), layers=[1, 4], weights=(first, torch.tensor([0.0, 0, 0, 0, 1])))
    assert deep.factors[1].offsets.tolist()[:5] == [0, 0, 0, 0, 0]
    with pytest.raises(InvalidInput, match="1 weights"):
        form(delta, Budget(rank=2), weights=(1.0,))


@pytest.mark.parametrize("scheme", ["energy", "uniform"])
def test_only_the_named_layers_are_patched(scheme):
    delta = spread(SHAPES["odd"])
    half = form(delta, Budget(rank=2), scheme, layers=0.4)
    named = form(delta, Budget(rank=2), scheme, layers=[4, 3])
    for factors in half.factors:
        assert factors.offsets[:4].tolist() == [0, 0, 0, 0]
        assert factors.offsets[-1] > 0
    assert half.nbytes == named.nbytes
    assert half.energy == pytest.approx(named.energy)


def test_a_zero_deficit_stores_nothing():
    zero = tuple(torch.zeros(s) for s in SHAPES["gqa"])
    patch = form(zero, Budget(rank=4))
    assert patch == Patch((None, None), "conditioned", 1.0)
    assert patch.nbytes == 0
    block = KVBlock(spread(SHAPES["gqa"], dtype=torch.float32), torch.arange(24))
    for got, was in zip(apply(block, patch).slots, block.slots, strict=True):
        assert torch.equal(got, was)
        assert got.data_ptr() != was.data_ptr()


def test_a_slot_without_a_deficit_has_no_factors():
    delta = spread(SHAPES["gqa"])
    patch = form((delta[0], torch.zeros_like(delta[1])), Budget(rank=4))
    assert isinstance(patch.factors[0], Factors)
    assert patch.factors[1] is None


def test_apply_rounds_once_to_the_dtype_of_the_block():
    slots = spread(SHAPES["gqa"], 3, torch.float32)
    patch = form(spread(SHAPES["gqa"]), Budget(rank=5))
    block = KVBlock(tuple(x.bfloat16() for x in slots), torch.arange(24))
    for got, x, factors in zip(apply(block, patch).slots, block.slots, patch.factors, strict=True):
        want = (x.float() + dense(factors, x.float())).bfloat16()
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, want)


def test_apply_leaves_the_block_it_was_given_alone_even_when_it_is_a_view():
    cache = torch.randn(3, 40, 2, 8)
    before = cache.clone()
    block = KVBlock((cache[:, 5:29], cache[:, 5:29]), torch.arange(24))
    apply(block, form(spread(SHAPES["gqa"]), Budget(rank=2)))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("n", [23, 25])
def test_a_patch_of_another_length_is_refused(n):
    patch = form(spread(SHAPES["gqa"]), Budget(rank=2))
    with pytest.raises(InvalidInput, match="24 tokens"):
        apply(KVBlock((torch.zeros(3, n, 2, 8),) * 2, torch.arange(n)), patch)
    with pytest.raises(InvalidInput, match="2 slots"):
        apply(KVBlock((torch.zeros(3, 24, 2, 8),), torch.arange(24)), patch)


def test_the_orbit_mean_does_not_depend_on_the_order_of_the_orders():
    deltas = [spread(SHAPES["odd"], seed) for seed in range(6)]
    forward, backward = OrbitMean(), OrbitMean()
    for x, y in zip(deltas, reversed(deltas), strict=True):
        forward.add(x)
        backward.add(y)
    assert forward.count == 6
    for a, b, parts in zip(forward.mean, backward.mean, zip(*deltas, strict=True), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        torch.testing.assert_close(a, torch.stack(parts).mean(0), rtol=0, atol=1e-12)
    patch = forward.form(Budget(rank=99), dtype=torch.float64)
    assert patch.kind == "orbit"
    assert error(patch, forward.mean) < 1e-20


def test_an_orbit_keeps_its_own_copy_of_the_first_order():
    delta = spread(SHAPES["gqa"])
    before = delta[0].clone()
    orbit = OrbitMean()
    orbit.add(delta)
    orbit.add(spread(SHAPES["gqa"], 1))
    assert torch.equal(delta[0], before)


def test_a_removal_patch_takes_the_survivor_to_the_window_without_the_antecedent():
    without, kept = spread(SHAPES["gqa"], 1), spread(SHAPES["gqa"], 2)
    patch = removal(without, kept, Budget(rank=99), dtype=torch.float64)
    assert patch.kind == "removal"
    for got, want in zip(apply(KVBlock(kept, torch.arange(24)), patch).slots, without, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["gqa", "odd", "mla"])
def test_a_basis_pooled_over_one_pair_projects_that_pair_as_its_own_svd_does(name):
    delta = spread(SHAPES[name])
    pool = BasisPool()
    pool.add(delta)
    patch = pool.basis(3, torch.float64).project(delta, torch.float64)
    assert 1 - error(patch, delta) == pytest.approx(patch.energy, abs=1e-12)
    if len({x.shape[3] for x in delta}) == 1:  # with one cost both rank by σ² alone
        assert patch.energy == pytest.approx(form(delta, Budget(rank=3)).energy, abs=1e-6)


def test_a_shared_basis_is_not_counted_as_the_bytes_of_a_patch():
    pool = BasisPool()
    for seed in range(4):
        pool.add(spread(SHAPES["odd"], seed))
    patch = pool.basis(2).project(spread(SHAPES["odd"], 9))
    assert patch.shared
    assert patch.nbytes == 2 * (2 * 5) * 13 * 4  # rank, slots x layers, tokens, bytes
    assert 0 < patch.energy < 1


def test_a_full_basis_projects_a_deficit_it_never_saw_exactly():
    pool = BasisPool()
    pool.add(spread(SHAPES["gqa"]))
    unseen = spread(SHAPES["gqa"], 5)
    assert error(pool.basis(16, torch.float64).project(unseen, torch.float64), unseen) < 1e-18


def test_the_depth_by_energy_counts_from_the_deepest_layer():
    delta = tuple(torch.zeros(4, 3, 1, 2) for _ in range(2))
    delta[0][3, 0, 0, 0], delta[1][2, 0, 0, 0], delta[0][0, 0, 0, 0] = 3.0, 2.0, 1.0  # powers 9, 4, 1
    assert calibrate_depth([delta], 9 / 14) == 0.25
    assert calibrate_depth([delta], 0.9) == 0.5
    assert calibrate_depth([delta], 0.95) == 1.0
    assert calibrate_depth([delta, tuple(10 * x for x in delta)], 0.9) == 0.5


def test_the_depth_by_effect_is_the_smallest_share_that_reaches_the_target():
    asked = []

    def effect(share):
        asked.append(share)
        return 0.9 * min(1.0, share / 0.7)

    assert calibrate_effect(effect, 30, target=1.0) == 21 / 30
    assert len(asked) <= 6
    assert calibrate_effect(lambda share: share, 10, target=0.5) == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget(rank=0.5),
        lambda: Budget(rank=0),
        lambda: Budget(rank=-3),
        lambda: Budget(rank=float("nan")),
        lambda: Budget(),
        lambda: Budget(rank=1, share=0.1),
        lambda: form(spread(SHAPES["gqa"]), Budget(nbytes=39 * 4)),
        lambda: form(spread(SHAPES["gqa"]), Budget(nbytes=40 * 4 * 5), "uniform"),
        lambda: form(spread(SHAPES["gqa"]), Budget(rank=2), layers=0.0),
        lambda: form(spread(SHAPES["gqa"]), Budget(rank=2), layers=[3]),
        lambda: form(spread(SHAPES["gqa"]), Budget(rank=2), layers=[]),
        lambda: BasisPool().basis(0),
    ],
)
def test_a_budget_that_buys_nothing_is_refused_with_got_expected_and_do(make):
    with pytest.raises(BadRank) as caught:
        make()
    assert caught.value.got is not None
    assert caught.value.expected
    assert caught.value.do


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("slot", [0, 1])
def test_nan_and_infinity_are_refused(value, slot):
    delta = spread(SHAPES["gqa"])
    delta[slot][1, 2, 0, 3] = value
    for call in (
        lambda: form(delta, Budget(rank=2)),
        lambda: OrbitMean().add(delta),
        lambda: BasisPool().add(delta),
        lambda: calibrate_depth([delta]),
    ):
        with pytest.raises(NonFinite, match=rf"slot \[{slot}\]"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda: form([], Budget(rank=2)),
        lambda: form([torch.zeros(2, 3, 4)], Budget(rank=2)),
        lambda: form([torch.zeros(2, 0, 1, 4)], Budget(rank=2)),
        lambda: form([torch.zeros(2, 3, 1, 4), torch.zeros(2, 5, 1, 4)], Budget(rank=2)),
        lambda: deficit([torch.zeros(2, 3, 1, 4)], [torch.zeros(2, 4, 1, 4)]),
        lambda: OrbitMean().mean,
        lambda: BasisPool().basis(2),
        lambda: calibrate_depth([]),
        lambda: calibrate_depth([spread(SHAPES["gqa"])], 1.5),
        lambda: calibrate_effect(lambda share: share, 0),
    ],
)
def test_slots_that_do_not_line_up_are_refused(make):
    with pytest.raises(AgentKVError) as caught:
        make()
    assert caught.value.do


def test_the_same_deficit_gives_the_same_patch():
    delta = spread(SHAPES["odd"], dtype=torch.float32)
    first, second = form(delta, Budget(rank=2)), form(delta, Budget(rank=2))
    for a, b in zip(first.factors, second.factors, strict=True):
        assert torch.equal(a.left, b.left)
        assert torch.equal(a.right, b.right)


@pytest.mark.parametrize("share", [0.4, 0.75, 1.0])
def test_one_factorisation_serves_any_depth(share):
    """The deepest layers of a spectrum are what a factorisation of those layers alone gives."""
    delta = spread(SHAPES["mla"])
    found = decompose(delta).deepest(share).patch(Budget(rank=3), dtype=torch.float64)
    wanted = form(delta, Budget(rank=3), layers=share, dtype=torch.float64)
    assert found.energy == pytest.approx(wanted.energy)
    for a, b, x in zip(found.factors, wanted.factors, delta, strict=True):
        torch.testing.assert_close(dense(a, x), dense(b, x), rtol=0, atol=1e-9)


def test_a_part_of_a_spectrum_keeps_what_it_does_not_hold_out():
    spectrum = decompose(spread(SHAPES["odd"]), layers=[0, 3])
    assert spectrum.deepest(0.4).layers == (3,)
    assert spectrum.deepest(1.0).layers == (0, 3)
    with pytest.raises(BadRank):
        spectrum.deepest(0.0)
