"""Argument checks of merge."""

from torch import Tensor

from agentkv_kernels.errors import ShapeError


def check_merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    """Raise ShapeError unless both states have one shape and dtype: out [.., D], lse [..]."""
    if out_a.shape != out_b.shape or out_a.dtype != out_b.dtype:
        got = f"{out_b.dtype} {tuple(out_b.shape)}"
        raise ShapeError("out_b", got, f"{out_a.dtype} {tuple(out_a.shape)}", "merge the same queries")
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if lse.shape != out_a.shape[:-1]:
            raise ShapeError(name, tuple(lse.shape), tuple(out_a.shape[:-1]), "one log-sum per row of out")
