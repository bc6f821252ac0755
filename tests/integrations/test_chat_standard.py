"""LangChain's standard tests of chat models, with the embedded model; where an agent has to decide something,
which that model is too weak for, its answers come from a script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from agentkv import Engine
from agentkv.config import EngineConfig
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.templates import HERMES
from agentkv.testing.chat import ScriptedChatAgentKV

if TYPE_CHECKING:
    from agentkv.models.hf import LoadedModel


class Short(ChatAgentKV):
    max_tokens: int = 120


class ShortScripted(ScriptedChatAgentKV):
    max_tokens: int = 120


class Subject:
    """What the suites test."""

    engine: Engine

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _engine(cls, embedded: LoadedModel) -> Iterator[None]:
        with Engine(embedded, EngineConfig()) as cls.engine:
            yield

    @property
    def chat_model_class(self) -> type[ChatAgentKV]:
        return Short

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "stop": []}  # nothing here times out or is retried

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine, "chat_template": HERMES}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False  # the engine is the model


class TestUnit(Subject, ChatModelUnitTests):
    pass


ARGUMENTS: dict[str, dict[str, Any]] = {
    "magic_function": {"input": 3},
    "greeting_generator": {"answer_style": "pirate"},
    "get_weather": {"location": "San Francisco, CA"},
    "unicode_customer": {"customer_name": "你好 こんにちは", "description": "x"},
}


def script(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """A call of the first tool, then words about what it said."""
    if not tools or isinstance(messages[-1], ToolMessage):
        return "It said so."
    call = {"name": tools[0], "arguments": ARGUMENTS.get(tools[0], {})}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


@pytest.mark.slow
class TestIntegration(Subject, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        """Greedily the model repeats itself in a string that a grammar lets it go on with for ever."""
        return {**super().chat_model_params, "temperature": 1.0, "seed": 1}

    @property
    def has_tool_calling(self) -> bool:
        return False  # see the scripted suite; calls that are asked for are tested in both

    @property
    def has_tool_choice(self) -> bool:
        return True


@pytest.mark.slow
class TestScripted(Subject, ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatAgentKV]:
        return ShortScripted

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "script": script}

    @property
    def has_structured_output(self) -> bool:
        return False  # a grammar's doing, tested with the model itself

    @property
    def supports_json_mode(self) -> bool:
        return False
