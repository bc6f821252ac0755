"""Pick an implementation of an op by device. There is no second choice: a missing kernel raises."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from agentkv_kernels.errors import NoKernelError

_FOLDER_OF_OP = {"rotate": "rotate", "place": "patch", "merge": "merge"}
_BACKEND_OF_DEVICE = {"cpu": "torch", "cuda": "triton"}
_BACKENDS = ("torch", "triton", "reference")


def pick(op: str, device: torch.device, backend: str | None = None) -> Callable[..., Any]:
    """Return the function that performs `op` ("rotate", "place" or "merge") on `device`.

    `backend` ("torch", "triton" or "reference") overrides the device's own choice: "torch" runs on any
    device. Triton is imported only when it is picked. Raises NoKernelError for an op, device or
    backend that has no implementation.
    """
    wanted = backend or _BACKEND_OF_DEVICE.get(device.type)
    if op not in _FOLDER_OF_OP:
        raise NoKernelError(op, f"device {device.type}", tuple(f"op {name}" for name in _FOLDER_OF_OP))
    if wanted not in _BACKENDS:
        available = _BACKENDS if backend else tuple(_BACKEND_OF_DEVICE)
        raise NoKernelError(op, f"backend {backend}" if backend else f"device {device.type}", available)
    module = import_module(f"agentkv_kernels.{_FOLDER_OF_OP[op]}.{wanted}")
    kernel: Callable[..., Any] = getattr(module, op)
    return kernel
