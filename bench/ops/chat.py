"""What the chat model adds to its window: processor milliseconds of a turn of a long conversation beyond
those that `Window.stream` takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from agentkv import Engine, Window
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.content import turns_of

MESSAGES = (20, 200)
WORDS = "The planner keeps what is exact, rotates what has moved and computes what nobody holds."


@contextmanager
def _windows_timed() -> Iterator[list[float]]:
    """Milliseconds of every stay in a window."""
    stays, stream = list[float](), Window.stream

    def streamed(*arguments: Any, **named: Any) -> Iterator[str]:
        pieces = stream(*arguments, **named)
        while True:
            start = time.thread_time()
            piece = next(pieces, None)
            stays.append((time.thread_time() - start) * 1e3)
            if piece is None:
                return
            yield piece

    with patch.object(Window, "stream", streamed):
        yield stays


def _conversation(messages: int) -> list[BaseMessage]:
    roles = (HumanMessage, AIMessage)
    said = [roles[i % 2](f"{i}. {WORDS}", id=f"m{i}") for i in range(messages - 2)]
    return [SystemMessage("You are brief."), *said, HumanMessage("Go on.")]


def measure(engine: Engine, rounds: int, threads: int, hardware: str) -> list[dict[str, Any]]:
    """One row per length of the conversation; a turn adds an answer and a question. Medians."""
    return [_row(engine, messages, rounds, threads, hardware) for messages in MESSAGES]


def _row(engine: Engine, messages: int, rounds: int, threads: int, hardware: str) -> dict[str, Any]:
    model = ChatAgentKV(engine=engine, max_tokens=4)
    said, beyond, correct = _conversation(messages), list[float](), True
    for turn in range(rounds + 1):
        with _windows_timed() as stays:
            start = time.thread_time()
            answer = model.invoke(said)
            whole = (time.thread_time() - start) * 1e3
        window = model.window_of(answer)
        assert window is not None
        prompt = model.template.text([turn.fields for turn in turns_of(said)], answer=True)
        correct = correct and engine.tokenizer.decode(window.ids()).startswith(prompt + answer.text)
        beyond.append(whole - sum(stays))
        said += [answer, HumanMessage(f"And {turn}?", id=f"q{turn}")]
    model.close()
    return {
        "messages": messages,
        "beyond_the_window_ms": round(statistics.median(beyond[1:]), 3),
        "first_turn_ms": round(beyond[0], 3),
        "correct": correct,
        "threads": threads,
        "hardware": hardware,
    }
