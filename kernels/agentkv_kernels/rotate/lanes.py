"""How a Triton program lays out one head: lanes of two dims, the rope pairs first, the rest paired after."""

# mypy: disable-error-code="no-untyped-def"
# A @triton.jit function takes pointers and traced values that Python has no types for.

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.types import Rope

COMPUTE = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), tl.float32) | {
    torch.float64: tl.float64
}


def lanes(width: int, half: int) -> int:
    """Lanes that cover `width` dims of which 2 · `half` turn; a power of two, 16 at least for tl.dot."""
    return max(16, triton.next_power_of_2(used_lanes(width, half)))


def used_lanes(width: int, half: int) -> int:
    """Lanes of `width` dims that hold something."""
    return half + (width - 2 * half + 1) // 2


def by_token(rope: Rope, tokens: int) -> tuple[Tensor, Tensor]:
    """cos and sin, dense [S, T, R/2], also where all tokens move alike."""
    cos, sin = (of.expand(-1, tokens, -1).contiguous() for of in (rope.cos, rope.sin))
    return cos, sin


@triton.jit
def pair_columns(
    lane, HALF: tl.constexpr, WIDTH: tl.constexpr, START: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """Columns of both dims of every `lane`, and whether each exists. Shaped like `lane`.

    Lane i < HALF is rope pair i. Lane HALF + k holds the k-th dim outside the band and the one half of
    those further on. The plain cases are spelled out so that loads stay contiguous.
    """
    REST: tl.constexpr = WIDTH - 2 * HALF
    REST_HALF: tl.constexpr = (REST + 1) // 2
    rest = lane - HALF
    if INTERLEAVED:
        turned_first, turned_second = START + 2 * lane, START + 2 * lane + 1
    else:
        turned_first, turned_second = START + lane, START + HALF + lane
    if REST == 0:
        first, second = turned_first, turned_second
        has_first, has_second = lane < HALF, lane < HALF
    elif HALF == 0:
        first, second = lane, REST_HALF + lane
        has_first, has_second = lane < REST_HALF, REST_HALF + lane < REST
    else:
        rest_first = tl.where(rest < START, rest, rest + 2 * HALF)
        rest_second = tl.where(rest + REST_HALF < START, rest + REST_HALF, rest + REST_HALF + 2 * HALF)
        first = tl.where(lane < HALF, turned_first, rest_first)
        second = tl.where(lane < HALF, turned_second, rest_second)
        has_first = rest < REST_HALF
        has_second = (lane < HALF) | (rest + REST_HALF < REST)
    return first, second, has_first, has_second


@triton.jit
def load_angles(cos, sin, spec, token, live, lane, tokens, HALF: tl.constexpr, COMPUTE: tl.constexpr):
    """cos and sin [rows, lanes] of `token` [rows]; 1 and 0 outside the band and in a layer without rope."""
    at = (tl.maximum(spec, 0).to(tl.int64) * tokens + token)[:, None] * HALF + lane[None, :]
    mask = live[:, None] & (lane < tl.where(spec >= 0, HALF, 0))[None, :]
    return (
        tl.load(cos + at, mask=mask, other=1.0).to(COMPUTE),
        tl.load(sin + at, mask=mask, other=0.0).to(COMPUTE),
    )
