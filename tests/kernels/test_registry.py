"""Which implementation a device gets, and that there is no second choice."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from agentkv_kernels.errors import KernelError, NoKernelError
from agentkv_kernels.registry import pick

OPS = {"rotate": "rotate", "place": "patch", "merge": "merge"}


@pytest.mark.parametrize("op", OPS)
def test_a_cpu_gets_the_plain_tensor_kernel(op: str) -> None:
    kernel = pick(op, torch.device("cpu"))
    assert (kernel.__module__, kernel.__name__) == (f"agentkv_kernels.{OPS[op]}.torch", op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is an extra")
def test_cuda_gets_the_triton_kernel_and_a_backend_overrides_the_device(op: str) -> None:
    folder = f"agentkv_kernels.{OPS[op]}"
    assert pick(op, torch.device("cuda", 1)).__module__ == f"{folder}.triton"
    assert pick(op, torch.device("cuda"), backend="torch").__module__ == f"{folder}.torch"
    assert pick(op, torch.device("cpu"), backend="triton").__module__ == f"{folder}.triton"


def test_a_missing_kernel_raises_and_says_what_there_is() -> None:
    for op, device, backend in (("sort", "cpu", None), ("rotate", "mps", None), ("rotate", "cpu", "numpy")):
        with pytest.raises(NoKernelError, match=r"got op .* expected one of .*; do: ") as caught:
            pick(op, torch.device(device), backend)
        assert isinstance(caught.value, KernelError)
        assert caught.value.available


def test_triton_is_not_imported_before_it_is_picked() -> None:
    code = (
        "import sys, torch; before = 'triton' in sys.modules\n"
        "from agentkv_kernels.registry import pick\n"
        "for op in ('rotate', 'place', 'merge'): pick(op, torch.device('cpu'))\n"
        "assert not before and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
