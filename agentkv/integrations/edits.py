"""`AgentKVContextEdit`: for ContextEditingMiddleware, what leaves a list that has become long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain.agents.middleware.context_editing import ContextEdit, TokenCounter
from langchain_core.messages import AnyMessage

from agentkv.integrations import evictable


@dataclass(frozen=True)
class AgentKVContextEdit(ContextEdit):
    """Cards in the place of the oldest images and tool results of a list of more than ``trigger`` tokens.

    keep_images, keep_results: how many of the newest stay; None: all. What bears ``cache_control`` stays, and
    is not counted. Count with ``token_count_method="model"``: an image is as many tokens as the model is
    shown, which an approximate count does not know. There is no tool to get things back, see
    `AgentKVMiddleware` for that.
    """

    trigger: int = 100_000
    keep_images: int | None = 3
    keep_results: int | None = 3
    exclude_tools: Sequence[str] = ()

    def apply(self, messages: list[AnyMessage], *, count_tokens: TokenCounter) -> None:
        """Edit the list in place."""
        if count_tokens(messages) <= self.trigger:
            return
        left = evictable.sorted_out(messages, self.keep_images, self.keep_results, self.exclude_tools, {})
        messages[:] = evictable.with_cards(messages, left.gone, recall=False)
