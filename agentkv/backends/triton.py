"""The tensor backend with Triton kernels: what ``device="cuda"`` picks."""

from __future__ import annotations

from agentkv.backends.torch import TorchBackend


class TritonBackend(TorchBackend):
    """As `TorchBackend`, with every edit one Triton launch."""

    name = "triton"
