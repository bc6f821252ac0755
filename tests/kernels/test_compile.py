"""Every Triton kernel compiles for sm_80, sm_90 and sm_100 without a spill. Nothing here runs on a GPU."""

import pytest

pytest.importorskip("triton")

from bench.ops.kernel_registers import CAPABILITIES, Variant, compile_variant, variants

ALL = list(variants())
FAST = [
    "rotate: bf16 D128 R128+0 half",
    "rotate: fp32 D64 R64+0 interleaved in place",
    "place: bf16 D128 R128+0 half turned+plain, factors bf16, paged",
    "place: fp32 D64 R64+0 half turned+plain, factors fp32, contiguous",
    "place: bf16 D80 R32+8 interleaved turned+plain, no factors, paged",
    "place: bf16 D128 R128+0 half turned+plain, factors bf16, contiguous, all counts 1",
    "merge: bf16 D128",
]
BY_NAME = {f"{variant.kernel}: {variant.label}": variant for variant in ALL}


def _assert_no_spill(variant: Variant, capability: int) -> None:
    cost = compile_variant(variant, capability)
    assert cost.spills == 0
    assert 0 < cost.registers < 255  # 255 is where ptxas starts to spill
    assert cost.shared <= 96 * 1024  # two blocks on an sm_80


def test_the_matrix_has_no_two_variants_of_one_name() -> None:
    assert len(BY_NAME) == len(ALL)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", FAST)
def test_kernel_compiles_without_a_spill(name: str, capability: int) -> None:
    _assert_no_spill(BY_NAME[name], capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", sorted(set(BY_NAME) - set(FAST)))
def test_every_other_kernel_compiles_without_a_spill(name: str, capability: int) -> None:
    _assert_no_spill(BY_NAME[name], capability)
