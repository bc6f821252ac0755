"""Tensor bundles that kernels take. Plain tuples of tensors: nothing is checked or copied here."""

from typing import NamedTuple

from torch import Tensor


class Rope(NamedTuple):
    """What the rope band of one slot needs to move by δ position ids, per token.

    The band is dims `start : start + R` of D, with R = 2 · cos.shape[-1]. The angle of token t and
    frequency i is δ_t · θ_i, built from *unscaled* inverse frequencies: the stored key already
    carries the attention scaling of YaRN and longrope.
    """

    cos: Tensor
    """[S, T, R/2], or [S, 1, R/2] where all tokens move alike; one table per rope spec, S >= 1; fp32, or fp64
    for fp64 slots."""
    sin: Tensor
    """[S, T, R/2], as `cos`."""
    spec_of_layer: Tensor
    """int32 [L], the layer's row of S; -1 marks a layer without position encoding, copied unrotated."""
    style: str
    """"half": dim i pairs with i + R/2. "interleaved": dim 2i pairs with 2i + 1."""
    start: int = 0
    """First dim of the band inside D."""


class Factors(NamedTuple):
    """A low-rank correction of one slot. Ranks differ by layer, so all layers are packed side by side."""

    left: Tensor
    """[T, ΣR], U·Σ: one row of coefficients per token."""
    right: Tensor
    """[ΣR, d], Vᵀ with d = H·D: one feature direction per row."""
    offsets: Tensor
    """int32 [L + 1]; layer l owns columns offsets[l] : offsets[l + 1], which may be empty."""
