"""agentkv inside agents: a LangChain chat model, middleware and a store. Extra ``[langgraph]``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkv.integrations.chat import ChatAgentKV
    from agentkv.integrations.edits import AgentKVContextEdit
    from agentkv.integrations.middleware import AgentKVMiddleware
    from agentkv.integrations.saver import CollectingSaver
    from agentkv.integrations.store import AgentKVStore

__all__ = ["AgentKVContextEdit", "AgentKVMiddleware", "AgentKVStore", "ChatAgentKV", "CollectingSaver"]

_HOME = {
    "AgentKVContextEdit": "agentkv.integrations.edits",
    "AgentKVMiddleware": "agentkv.integrations.middleware",
    "AgentKVStore": "agentkv.integrations.store",
    "ChatAgentKV": "agentkv.integrations.chat",
    "CollectingSaver": "agentkv.integrations.saver",
}


def __getattr__(name: str) -> Any:
    """Import on first use: each part needs its own package of the LangChain family."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
