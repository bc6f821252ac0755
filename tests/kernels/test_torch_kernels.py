"""The plain-tensor kernels against the fp64 references."""

import itertools
import math

import pytest
import torch
from agentkv_kernels import errors
from agentkv_kernels.merge.reference import merge as merge_reference
from agentkv_kernels.merge.torch import merge
from agentkv_kernels.patch.reference import place as place_reference
from agentkv_kernels.patch.torch import place
from agentkv_kernels.rotate import torch as rotating
from agentkv_kernels.rotate.reference import rotate as rotate_reference
from agentkv_kernels.rotate.torch import rotate

from tests.kernels.kernel_cases import (
    HEADS,
    TOKENS,
    WIDTHS,
    assert_close,
    factors_for,
    nan_slot,
    rope_for,
    slot,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotate_matches_the_reference_at_every_size(style: str, dtype: torch.dtype) -> None:
    for tokens, width, heads in itertools.product(TOKENS, WIDTHS, HEADS):
        x = slot(3, tokens, heads, width, dtype)
        rope = rope_for(x, style=style, specs=(1, -1, 0))
        out = nan_slot(3, tokens, heads, width, dtype)
        assert rotate(x, rope, out=out) is out
        assert_close(out, rotate_reference(x, rope))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("band", "start"), [(16, 0), (20, 7), (64, 16), (2, 79 - 1)])
def test_rotate_touches_only_its_band(style: str, dtype: torch.dtype, band: int, start: int) -> None:
    x = slot(2, 17, 3, 80, dtype)
    rope = rope_for(x, style=style, band=band, start=start)
    out = rotate(x, rope)
    assert_close(out, rotate_reference(x, rope))
    assert torch.equal(out[..., :start], x[..., :start])
    assert torch.equal(out[..., start + band :], x[..., start + band :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotate_in_place_equals_out_of_place(style: str, dtype: torch.dtype) -> None:
    x = slot(3, 33, 3, 64, dtype)
    rope = rope_for(x, style=style, specs=(0, -1))
    wanted = rotate(x, rope)
    assert rotate(x, rope, out=x) is x
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotate_by_one_delta_for_all_tokens_or_all_but_one(style: str, dtype: torch.dtype) -> None:
    x = slot(3, 33, 3, 80, dtype)
    rope = rope_for(x, style=style, band=32, start=16, specs=(1, 0))
    shared = rope._replace(cos=rope.cos[:, :1].repeat(1, 33, 1), sin=rope.sin[:, :1].repeat(1, 33, 1))
    odd_one = shared._replace(cos=shared.cos.clone(), sin=shared.sin.clone())
    odd_one.cos[1, 20], odd_one.sin[1, 20] = rope.cos[1, 20], rope.sin[1, 20]
    one_row = shared._replace(cos=shared.cos[:, :1], sin=shared.sin[:, :1])
    assert torch.equal(rotate(x, one_row), rotate(x, shared))
    for case in (shared, odd_one):
        wanted = rotate_reference(x, case)
        assert_close(rotate(x, case), wanted)
        assert_close(rotate(x.clone(), case, out=x.clone()), wanted)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotate_takes_any_strides(style: str) -> None:
    """Head-major storage seen token-major, a row step, and an odd offset."""
    storage = slot(3, 8, 33, 70, torch.float32)
    x = storage.transpose(1, 2)[:, ::2, :, 3:67]  # [3, 17, 8, 64]
    rope = rope_for(x, style=style)
    assert_close(rotate(x, rope), rotate_reference(x, rope))
    wanted = rotate_reference(x, rope)
    rotate(x, rope, out=x)
    assert_close(x, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize(("tokens", "blocks"), [(7, 15), (33 * 2, 2)])
def test_scratch_crosses_block_borders(
    dtype: torch.dtype, uniform: bool, tokens: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 7 tokens of one layer, or of two of the three layers."""
    monkeypatch.setattr(rotating, "BLOCK_NUMBERS", tokens * 3 * 16)
    x = slot(3, 33, 3, 16, dtype)
    assert len(list(rotating.blocks(x))) == blocks
    rope, factors = rope_for(x, specs=(0, -1, 1)), factors_for(x, (5, 0, 3))
    if uniform:
        rope = rope._replace(cos=rope.cos[:, :1], sin=rope.sin[:, :1])
    assert_close(rotate(x, rope), rotate_reference(x, rope))
    index = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:33]
    for where in (index, 4):
        got, wanted = nan_slot(3, 40, 3, 16, x.dtype), nan_slot(3, 40, 3, 16, torch.float64)
        place((got,), where, (x,), (rope,), (factors,))
        place_reference((wanted,), where, (x,), (rope,), (factors,))
        rows = where if isinstance(where, torch.Tensor) else torch.arange(4, 37)
        assert_close(got[:, rows], wanted[:, rows])


def test_a_rotation_and_its_inverse_cancel() -> None:
    x = slot(2, 17, 3, 64, torch.float64)
    rope = rope_for(x)
    back = rope._replace(sin=-rope.sin)
    assert float((rotate(rotate(x, rope), back) - x).abs().max()) < 1e-14


RANKS = [(32,), (0, 5, 128), (1, 16, 0), (64, 33, 17)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_place_matches_the_reference_and_leaves_other_rows(
    dtype: torch.dtype, paged: bool, ranks: tuple[int, ...]
) -> None:
    for tokens, width, heads in ((1, 16, 1), (3, 80, 8), (17, 64, 3), (130, 128, 1)):
        src = tuple(slot(3, tokens, heads, width, dtype, seed=s) for s in (3, 4))
        rope = (rope_for(src[0], specs=(0, 1, -1)), None)
        factors = tuple(factors_for(x, ranks, seed=9) for x in src)
        shuffled = torch.randperm(tokens + 5, generator=torch.Generator().manual_seed(1))[:tokens]
        index = shuffled if paged else 4
        got = tuple(nan_slot(3, tokens + 5, heads, width, dtype) for _ in src)
        wanted = tuple(nan_slot(3, tokens + 5, heads, width, torch.float64) for _ in src)
        place(got, index, src, rope, factors)
        place_reference(wanted, index, src, rope, factors)
        rows = shuffled if paged else torch.arange(4, 4 + tokens)
        others = torch.ones(tokens + 5, dtype=torch.bool).index_fill(0, rows, False)
        for a, b in zip(got, wanted, strict=True):
            assert_close(a[:, rows], b[:, rows])
            assert bool(a[:, others].isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_rope", [False, True])
@pytest.mark.parametrize("with_factors", [False, True])
def test_place_with_parts_left_out(dtype: torch.dtype, with_rope: bool, with_factors: bool) -> None:
    x = slot(2, 17, 3, 64, dtype)
    rope = rope_for(x, style="interleaved", band=32, start=16) if with_rope else None
    factors = factors_for(x, (7,)) if with_factors else None
    got, wanted = nan_slot(2, 17, 3, 64, dtype), nan_slot(2, 17, 3, 64, torch.float64)
    place((got,), 0, (x,), (rope,), (factors,))
    place_reference((wanted,), 0, (x,), (rope,), (factors,))
    assert_close(got, wanted)
    if not with_rope and not with_factors:
        assert torch.equal(got, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [(), (7, 0)])
def test_rows_that_only_change_their_position_are_placed_where_they_stand(
    dtype: torch.dtype, ranks: tuple[int, ...]
) -> None:
    """An MLA cache: nothing about the content depends on the position, and nothing is written to it."""
    content, key = nan_slot(2, 9, 1, 32, dtype), nan_slot(2, 9, 1, 16, dtype)
    content[:, 3:8], key[:, 3:8] = slot(2, 5, 1, 32, dtype), slot(2, 5, 1, 16, dtype, seed=3)
    rows = key[:, 3:8]
    rope, factors = rope_for(rows, specs=(0, -1)), factors_for(rows, ranks) if ranks else None
    before, wanted = content.clone(), torch.empty(2, 5, 1, 16, dtype=torch.float64)
    place_reference((wanted,), 0, (rows,), (rope,), (factors,))
    writes = content._version
    place((content, key), 3, (content[:, 3:8], rows), (None, rope), (None, factors))
    assert content._version == writes
    assert torch.equal(content[:, 3:8], before[:, 3:8])
    assert_close(rows, wanted)
    assert bool(key[:, [0, 1, 2, 8]].isnan().all())


@pytest.mark.parametrize("index", [-1, 5, torch.tensor([0, 1, 20]), torch.tensor([-1, 1, 2])], ids=str)
def test_a_row_outside_the_slot_raises_before_anything_is_written(index: torch.Tensor | int) -> None:
    x = slot(1, 3, 1, 16, torch.float32)
    good, bad = nan_slot(1, 30, 1, 16, x.dtype), nan_slot(1, 7, 1, 16, x.dtype)
    with pytest.raises(errors.RowIndexError, match="rows in 0"):
        place((good, bad), index, (x, x), (None, None), (None, None))
    assert bool(good.isnan().all())
    assert bool(bad.isnan().all())


def test_ill_fitting_arguments_raise_before_anything_is_written() -> None:
    x = slot(2, 3, 1, 16, torch.float32)
    rope, factors = rope_for(x), factors_for(x, (4,))
    bad_ropes = [
        rope._replace(style="neox"),
        rope._replace(cos=rope.cos[:, :2]),
        rope._replace(start=1),
        rope._replace(spec_of_layer=torch.tensor([0, 1], dtype=torch.int32)),
        rope._replace(spec_of_layer=torch.zeros(3, dtype=torch.int32)),
    ]
    bad_factors = [
        factors._replace(left=factors.left[:2]),
        factors._replace(right=factors.right[:, :15]),
        factors._replace(offsets=factors.offsets[:2]),
        factors._replace(offsets=torch.tensor([0, 9, 8], dtype=torch.int32)),
    ]
    dst = nan_slot(2, 3, 1, 16, torch.float32)
    for turn, low_rank in [(bad, None) for bad in bad_ropes] + [(None, bad) for bad in bad_factors]:
        with pytest.raises(errors.ShapeError, match="expected"):
            place((dst, dst), 0, (x, x), (None, turn), (None, low_rank))
    with pytest.raises(errors.ShapeError, match="dtype"):
        place((dst,), 0, (x.half(),), (None,), (None,))
    with pytest.raises(errors.ShapeError, match="equal counts"):
        place((dst,), 0, (x,), (None, None), (None,))
    assert bool(dst.isnan().all())


@pytest.mark.parametrize("shape", ["layers, rows", "slots inside a layer", "one layer"])
def test_sharing_a_cache_is_refused_exactly_where_rows_meet(shape: str) -> None:
    """Every pair of row ranges of one cache, checked against the set of bytes each one covers."""
    if shape == "layers, rows":
        cache = torch.arange(3 * 6 * 4, dtype=torch.float32).view(3, 6, 2, 2)
    elif shape == "slots inside a layer":
        cache = torch.arange(3 * 2 * 6 * 4, dtype=torch.float32).view(3, 2, 6, 2, 2)[:, 1]
    else:
        cache = torch.arange(6 * 4, dtype=torch.float32).view(1, 6, 2, 2)
    before = cache.clone()
    for tokens, source, target, paged in itertools.product((1, 2, 3), range(4), range(4), (False, True)):
        cache.copy_(before)
        src = cache[:, source : source + tokens]
        index = torch.arange(target, target + tokens).flip(0) if paged else target
        if source == target and not paged:
            place((cache,), index, (src,), (None,), (None,))
            assert torch.equal(cache, before)
        elif set(range(source, source + tokens)) & set(range(target, target + tokens)):
            with pytest.raises(errors.OverlapError, match="overlapping"):
                place((cache,), index, (src,), (None,), (None,))
            assert torch.equal(cache, before)
        else:
            place((cache,), index, (src,), (None,), (None,))
            moved = before[:, source : source + tokens]
            assert torch.equal(cache[:, target : target + tokens], moved.flip(1) if paged else moved)


def test_rotate_refuses_a_partly_shared_out() -> None:
    x = slot(1, 8, 1, 16, torch.float32)
    rope = rope_for(x[:, :6])
    with pytest.raises(errors.OverlapError, match="overlapping"):
        rotate(x[:, :6], rope, out=x[:, 1:7])
    with pytest.raises(errors.ShapeError, match="out"):
        rotate(x[:, :6], rope, out=x[:, :5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_matches_the_reference(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    log_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    for shape in ((1, 16), (3, 17, 80), (2, 8, 33, 128)):
        out_a, out_b = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in "ab")
        lse_a, lse_b = ((torch.randn(shape[:-1], generator=generator) * 20).to(log_dtype) for _ in "ab")
        out, lse = merge(out_a, lse_a, out_b, lse_b)
        wanted, wanted_lse = merge_reference(out_a, lse_a, out_b, lse_b)
        assert out.dtype == dtype
        assert_close(out, wanted)
        assert_close(lse, wanted_lse)


def test_merging_equals_attending_over_all_keys_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 16, generator=generator, dtype=torch.float64) for n in (5, 12, 12))
    halves = [(q @ k[part].T, v[part]) for part in (slice(0, 7), slice(7, 12))]
    states = [(score.softmax(-1) @ value, score.logsumexp(-1)) for score, value in halves]
    out, lse = merge(*states[0], *states[1])
    assert float((out - (q @ k.T).softmax(-1) @ v).abs().max()) < 1e-14
    assert float((lse - (q @ k.T).logsumexp(-1)).abs().max()) < 1e-14


def test_an_empty_side_is_ignored_even_when_its_output_is_nan() -> None:
    out = torch.randn(2, 4)
    lse = torch.tensor([3.0, -math.inf])
    empty = torch.full((2, 4), math.nan)
    for merged, log in (
        merge(out, lse, empty, torch.full((2,), -math.inf)),
        merge(empty, torch.full((2,), -math.inf), out, lse),
    ):
        assert torch.equal(merged[0], out[0])
        assert torch.equal(merged[1], torch.zeros(4))
        assert log.tolist() == [3.0, -math.inf]


def test_merge_refuses_states_of_different_queries() -> None:
    out, lse = torch.zeros(2, 4), torch.zeros(2)
    with pytest.raises(errors.ShapeError, match="out_b"):
        merge(out, lse, torch.zeros(3, 4), lse)
    with pytest.raises(errors.ShapeError, match="lse_b"):
        merge(out, lse, out, torch.zeros(3))
