"""agentkv: agent memory that lives in the KV cache."""

from agentkv_orchestrator.policy import Policy

from agentkv.audit import Audit
from agentkv.engine import Engine
from agentkv.errors import AgentKVError
from agentkv.handles import Handle
from agentkv.window import Window

__all__ = ["AgentKVError", "Audit", "Engine", "Handle", "Policy", "Window"]
