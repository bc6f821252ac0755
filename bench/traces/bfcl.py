"""Conversations of the Berkeley Function Calling Leaderboard (v4, multi-turn): users' requests, the answers
that the leaderboard takes for right, as tool calls, and what its simulated APIs return for them.

Patil et al., "The Berkeley Function Calling Leaderboard", ICML 2025. PyPI package bfcl-eval, Apache 2.0. The
wheel is downloaded once and checked; its simulators run while the conversations are made, and are gone after.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.models.wheels import built, unpack
from bench.traces.conversations import Conversation, Message, load, save

REQUIREMENT = "bfcl-eval==2026.3.23"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
SOURCE, LICENCE = (
    "Berkeley Function Calling Leaderboard v4, multi-turn (PyPI bfcl-eval 2026.3.23)",
    "Apache-2.0",
)
SYSTEM = (
    "You are an assistant that works with tools. Answer with calls of the functions below, one call a line, "
    "until the request is done. The functions, as JSON schemas:"
)
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Simulated APIs by class, as the leaderboard names them; their schemas are in files of the same names."""


def conversations() -> list[Conversation]:
    """All conversations of the multi-turn base set, made on the first call. Raises ModelNotFound,
    WrongMaterialError."""
    return load(built("bfcl-multi-turn-1", _build) / "conversations.jsonl")


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack(REQUIREMENT, SHA256, root)
        data = root / "bfcl_eval" / "data"
        questions = _lines(data / "BFCL_v4_multi_turn_base.json")
        answers = {
            a["id"]: a["ground_truth"] for a in _lines(data / "possible_answer/BFCL_v4_multi_turn_base.json")
        }
        tools = {name: _lines(data / f"multi_turn_func_doc/{file}.json") for name, file in _MODULES.items()}
        with _simulators(root) as modules:
            made = [_conversation(q, answers[q["id"]], tools, modules) for q in questions]
    save(made, target / "conversations.jsonl")


def _conversation(
    question: dict[str, Any], answers: list[list[str]], tools: dict[str, Any], modules: dict[str, ModuleType]
) -> Conversation:
    apis: list[Any] = []
    schemas: list[str] = []
    for name in question["involved_classes"]:
        api = getattr(modules[name], name)()
        if hasattr(api, "_load_scenario"):
            api._load_scenario(question["initial_config"].get(name, {}))
        apis.append(api)
        hidden = question.get("excluded_function", [])
        schemas += [json.dumps(tool) for tool in tools[name] if tool["name"] not in hidden]
    messages: list[Message] = []
    for asked, calls in zip(question["question"], answers, strict=True):
        messages += [Message("user", m["content"]) for m in asked]
        for call in calls:
            messages += [Message("assistant", call), Message("tool", _called(apis, call))]
        messages.append(Message("assistant", "Done."))
    return Conversation(question["id"], SYSTEM, tuple(schemas), tuple(messages))


def _called(apis: list[Any], call: str) -> str:
    """What the API returns for a call written in Python; its arguments are literals."""
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"no plain call: {call!r}")
    arguments = [ast.literal_eval(a) for a in node.args]
    named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    method = next(getattr(api, node.func.id) for api in apis if hasattr(api, node.func.id))
    try:
        result = method(*arguments, **named)
    except Exception as error:  # an agent is shown what went wrong, whatever it was
        result = {"error": str(error)}
    return result if isinstance(result, str) else json.dumps(result, default=str)


@contextmanager
def _simulators(root: Path) -> Iterator[dict[str, ModuleType]]:
    """The modules of the simulated APIs, for the length of the block."""
    package = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
    sys.path.insert(0, str(root))
    try:
        yield {name: importlib.import_module(f"{package}.{file}") for name, file in _MODULES.items()}
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
            del sys.modules[name]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
