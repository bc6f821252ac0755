"""Where a figure was measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def hardware() -> str:
    """CPU, cores and software versions in one line."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        name = models[0] if models else name
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{name}, {os.cpu_count()} cores{gpu}, torch {torch.__version__}"
