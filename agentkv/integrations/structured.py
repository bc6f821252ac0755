"""Structured output: answers as objects of a schema."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass

from agentkv.errors import InvalidInput
from agentkv.integrations.calls import shown

if TYPE_CHECKING:
    from agentkv.integrations.chat import ChatAgentKV

Method = Literal["json_schema", "function_calling", "json_mode"]


def structured(
    model: ChatAgentKV,
    schema: dict[str, Any] | type,
    include_raw: bool,
    method: Method = "json_schema",
    strict: bool | None = None,
    **kwargs: Any,
) -> Runnable[Any, Any]:
    """See `ChatAgentKV.with_structured_output`. strict: taken and not needed, as grammars always are. Raises
    InvalidInput for an unknown method. What it makes raises OutputParserException for an answer that was
    cut."""
    (tool,) = shown([schema])
    pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    traced = {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": tool}}
    parser: Runnable[AIMessage, Any]
    if method == "function_calling":
        name = tool["function"]["name"]
        bound = model.bind_tools([schema], tool_choice=name, **traced, **kwargs)
        parser = (
            PydanticToolsParser(tools=[schema], first_tool_only=True)  # type: ignore[list-item]
            if pydantic
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    elif method in ("json_schema", "json_mode"):
        shape = tool["function"].get("parameters", {"type": "object", "properties": {}})
        bound = model.bind(response_format=shape, **traced, **kwargs)
        parser = PydanticOutputParser(pydantic_object=schema) if pydantic else JsonOutputParser()  # type: ignore[arg-type]
    else:
        raise InvalidInput(
            got=f"method={method!r}", expected="json_schema, function_calling or json_mode", do="pick one"
        )
    checked: Runnable[AIMessage, Any] = RunnableGenerator(_whole, _awhole) | parser
    return _with_raw(bound, checked) if include_raw else bound | checked


def _with_raw(bound: Runnable[Any, Any], parser: Runnable[AIMessage, Any]) -> Runnable[Any, Any]:
    assign = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | assign.with_fallbacks([failed], exception_key="parsing_error")


def _whole(answers: Iterator[AIMessage]) -> Iterator[AIMessage]:
    """The same; then raises OutputParserException for an answer that was cut. LangChain's parsers would make
    an object of what there is of it."""
    said = list[AIMessage]()
    for answer in answers:
        said.append(answer)
        yield answer
    _require_whole(said)


async def _awhole(answers: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
    said = list[AIMessage]()
    async for answer in answers:
        said.append(answer)
        yield answer
    _require_whole(said)


def _require_whole(said: Sequence[AIMessage]) -> None:
    text = "".join(answer.text for answer in said)
    if any(answer.tool_calls for answer in said):
        return
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = said[-1].response_metadata.get("finish_reason")
        raise OutputParserException(
            f"got an answer that ended early (finish_reason={reason!r}): {text[-80:]!r}; expected "
            "JSON of the schema; do raise max_tokens, or drop stop texts that the JSON may hold",
            llm_output=text,
        ) from error
