"""The Triton kernels under Triton's interpreter, against the fp64 references.

Run by test_triton_interpreted.py in a process of its own: TRITON_INTERPRET has to be set before Triton is
imported, and would slow every other test down.
"""

import itertools
import math

import pytest
import torch
from agentkv_kernels import errors
from agentkv_kernels.merge.reference import merge as merge_reference
from agentkv_kernels.merge.triton import merge
from agentkv_kernels.patch.reference import place as place_reference
from agentkv_kernels.patch.triton import place
from agentkv_kernels.rotate.reference import rotate as rotate_reference
from agentkv_kernels.rotate.triton import rotate

from tests.kernels.kernel_cases import (
    HEADS,
    TOKENS,
    TOLERANCE,
    WIDTHS,
    assert_close,
    factors_for,
    nan_slot,
    rope_for,
    slot,
)

torch.set_num_threads(1)
# The interpreter cuts fp32 to bf16 where a GPU rounds: a whole unit in the last place instead of half.
TOLERANCE[torch.bfloat16] *= 2
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Every size once; the whole product takes minutes.
SIZES = ((1, 16, 1), (3, 64, 3), (17, 80, 8), (33, 128, 1), (130, 16, 3))
PRODUCT = tuple(itertools.product(TOKENS, WIDTHS, HEADS))
EVERY_SIZE = pytest.mark.parametrize(
    "sizes", [pytest.param(SIZES, id="each"), pytest.param(PRODUCT, id="product", marks=pytest.mark.slow)]
)
Sizes = tuple[tuple[int, int, int], ...]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@EVERY_SIZE
def test_rotate(sizes: Sizes, style: str, dtype: torch.dtype) -> None:
    for tokens, width, heads in sizes:
        x = slot(3, tokens, heads, width, dtype)
        rope = rope_for(x, style=style, specs=(1, -1, 0))
        wanted = rotate_reference(x, rope)
        assert_close(rotate(x, rope, out=nan_slot(3, tokens, heads, width, dtype)), wanted)
        assert_close(rotate(x, rope, out=x), wanted)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("band", "start"), [(16, 0), (20, 7), (64, 16), (2, 78)])
def test_rotate_a_partial_band_at_any_stride(style: str, band: int, start: int) -> None:
    x = slot(3, 3, 33, 90, torch.float32).transpose(1, 2)[:, ::2, :, 5:85]  # [3, 17, 3, 80]
    rope = rope_for(x, style=style, band=band, start=start)
    wanted = rotate_reference(x, rope)
    assert_close(rotate(x, rope, out=nan_slot(3, 17, 3, 80, x.dtype)), wanted)
    assert_close(rotate(x, rope, out=x), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("paged", [False, True])
@EVERY_SIZE
def test_place(sizes: Sizes, dtype: torch.dtype, paged: bool) -> None:
    for tokens, width, heads in sizes:
        src = tuple(slot(2, tokens, heads, width, dtype, seed=s) for s in (3, 4))
        rope = (rope_for(src[0], specs=(0, -1)), None)
        _assert_placed(src, rope, ((0, 5), (17, 128)), paged)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("ranks", [(32, 0, 128), (0, 0, 0), (1, 16, 33), None])
def test_place_partial_bands_and_ragged_ranks(style: str, ranks: tuple[int, ...] | None) -> None:
    src = tuple(slot(3, 33, 3, 80, torch.float32, seed=s) for s in (3, 4))
    ropes = (rope_for(src[0], style=style, band=20, start=7), rope_for(src[1], style=style, specs=(1, -1, 0)))
    for rope in (ropes, (None, ropes[0]), (None, None)):
        _assert_placed(src, rope, (ranks, ranks), True)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_place_a_head_wider_than_a_program(style: str) -> None:
    src = (slot(2, 3, 2, 300, torch.float32),)
    for band, start in ((64, 230), (300, 0), (150, 3)):
        rope = (rope_for(src[0], style=style, band=band, start=start),)
        _assert_placed(src, rope, ((5,),), True)
    _assert_placed(src, (None,), ((17,),), False)


def test_place_slots_that_cannot_share_a_launch() -> None:
    """A wide latent slot, a narrow rope slot, and an odd one out after a pair."""
    latent, key = slot(2, 17, 1, 80, torch.float32), slot(2, 17, 1, 16, torch.float32)
    turned = rope_for(key, style="interleaved")
    _assert_placed((latent, key), (None, turned), ((7,), (3,)), False)
    _assert_placed((key, key, latent), (turned, None, None), ((7,), None, (3,)), True)


def _assert_placed(src, rope, ranks, paged) -> None:
    factors = tuple(
        None if rank is None else factors_for(x, rank, seed=n)
        for n, (x, rank) in enumerate(zip(src, ranks, strict=True))
    )
    tokens = src[0].shape[1]
    shuffled = torch.randperm(tokens + 5, generator=torch.Generator().manual_seed(1))[:tokens]
    rows = shuffled if paged else torch.arange(4, 4 + tokens)
    shapes = [(x.shape[0], tokens + 5, *x.shape[2:]) for x in src]
    got = tuple(nan_slot(*shape, x.dtype) for shape, x in zip(shapes, src, strict=True))
    wanted = tuple(nan_slot(*shape, torch.float64) for shape in shapes)
    place(got, shuffled if paged else 4, src, rope, factors)
    place_reference(wanted, rows, src, rope, factors)
    others = torch.ones(tokens + 5, dtype=torch.bool).index_fill(0, rows, False)
    for a, b in zip(got, wanted, strict=True):
        assert_close(a[:, rows], b[:, rows])
        assert bool(a[:, others].isnan().all())


def test_place_refuses_what_the_plain_path_refuses() -> None:
    x, dst = slot(1, 3, 1, 16, torch.float32), nan_slot(1, 7, 1, 16, torch.float32)
    with pytest.raises(errors.RowIndexError, match="rows in 0"):
        place((dst,), torch.tensor([0, 1, 7]), (x,), (None,), (None,))
    assert bool(dst.isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 16), (3, 17, 80), (8, 33, 128)):
        out_a, out_b = (torch.randn(shape, generator=generator).to(dtype) for _ in "ab")
        lse_a, lse_b = (torch.randn(shape[:-1], generator=generator) * 20 for _ in "ab")
        lse_a[..., 0] = -math.inf
        out_a[..., 0, :] = math.nan
        lse_b[..., -1] = -math.inf
        out, lse = merge(out_a, lse_a, out_b, lse_b)
        wanted, wanted_lse = merge_reference(out_a, lse_a, out_b, lse_b)
        live = wanted_lse != -math.inf
        assert_close(out, wanted)
        assert_close(lse[live], wanted_lse[live])
        assert torch.equal(lse == -math.inf, ~live)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rows_that_stay_where_they_are_and_move_alike(style: str) -> None:
    """In place, by one row of angles; the slot that is neither turned nor added to is not written."""
    content, key = slot(2, 9, 1, 32, torch.float32), slot(2, 9, 1, 16, torch.float32, seed=3)
    rows, writes = key[:, 3:8], content._version
    rope = rope_for(rows, style=style, specs=(0, -1))
    rope = rope._replace(cos=rope.cos[:, :1], sin=rope.sin[:, :1])
    factors = factors_for(rows, (7, 0))
    wanted = torch.empty(2, 5, 1, 16, dtype=torch.float64)
    place_reference((wanted,), 0, (rows,), (rope,), (factors,))
    before = content.clone()
    place((content, key), 3, (content[:, 3:8], rows), (None, rope), (None, factors))
    assert content._version == writes
    assert torch.equal(content, before)
    assert_close(rows, wanted)
