"""agentkv: agent memory that lives in the KV cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkv_orchestrator.policy import Policy

    from agentkv.audit import Audit
    from agentkv.disposal import Disposal
    from agentkv.engine import Engine
    from agentkv.errors import AgentKVError
    from agentkv.handles import Handle
    from agentkv.window import Window

__all__ = ["AgentKVError", "Audit", "Disposal", "Engine", "Handle", "Policy", "Window"]

_HOME = {
    "AgentKVError": "agentkv.errors",
    "Audit": "agentkv.audit",
    "Disposal": "agentkv.disposal",
    "Engine": "agentkv.engine",
    "Handle": "agentkv.handles",
    "Policy": "agentkv_orchestrator.policy",
    "Window": "agentkv.window",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch and transformers take seconds, and `agentkv --version` needs neither."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
