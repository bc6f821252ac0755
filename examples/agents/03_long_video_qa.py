"""Questions about a long recording: frames stream through a small window, and come back when asked for.

    python examples/agents/03_long_video_qa.py [--model tiny | DIR_OR_ID] [--seconds 120]

A frame is in the window as long as it is one of the newest. What a frame shows is put as a card into an
`AgentKVStore`; a question finds the cards whose words it shares, and their frames are shown again. A frame is
encoded once: what comes back is its KV, or its stored features.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose bench.models the examples use

import typer
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from agentkv.integrations import AgentKVStore
from agentkv.integrations.templates import HERMES
from agentkv.store.memory import MemoryStore
from agentkv.vision.adapter import AdapterTower
from examples.agents import vision
from examples.agents.beside import (
    EyesOption,
    JsonOption,
    MeasuredChat,
    PlotOption,
    PolicyOption,
    ThreadsOption,
    image,
    report,
    threads,
    warm,
)
from examples.agents.clip import Clip, Question

SYSTEM = "You answer questions about a recording. You see some of its frames, in any order."
CARDS = ("frames",)


class Recording:
    """Frames as messages. live: how many of the newest the model sees."""

    def __init__(self, clip: Clip, live: int) -> None:
        self.clip, self.live, self.shown, self.seen = clip, live, list[int](), set[int]()

    def message(self, second: int) -> HumanMessage:
        """One frame. Its place among its neighbours says nothing: the clock in it does."""
        hints = {"agentkv": {"kind": "frame", "order_free": True}}
        return HumanMessage([image(self.clip.frame(second))], id=f"second {second}", additional_kwargs=hints)

    def prompt(self, question: str, recalled: list[int]) -> list[BaseMessage]:
        seconds = dict.fromkeys([*self.shown[-self.live :], *recalled])
        self.seen |= {*seconds}
        frames = [self.message(second) for second in seconds]
        return [SystemMessage(SYSTEM), *frames, HumanMessage(question)]


def watch(chat: MeasuredChat, recording: Recording, store: AgentKVStore, step: int) -> None:
    """Let the clip go by: every quarter of a window is looked at. A frame has a card, what the closed-form
    encoder reads in it, or what another model says of it."""
    closed_form = isinstance(chat.runtime.tower, AdapterTower)
    for second in range(0, recording.clip.seconds, step):
        recording.shown.append(second)
        card = vision.spelled(chat.runtime, recording.clip.frame(second)) if closed_form else ""
        if len(recording.shown) % max(1, recording.live // 4) == 0 or not closed_form:
            looked = chat.invoke(recording.prompt("What is shown last?", []), config=CONFIG).text
            card = card or looked
        store.put(CARDS, str(second), {"text": card})


CONFIG: Any = {"configurable": {"thread_id": "recording"}}


def ask(chat: MeasuredChat, recording: Recording, store: AgentKVStore, question: Question, back: int) -> str:
    """An answer from the newest frames and those whose cards fit the question."""
    hits = store.search(CARDS, query=question.text, limit=back)
    return chat.invoke(recording.prompt(question.text, [int(hit.key) for hit in hits]), config=CONFIG).text


def main(
    model: EyesOption = None,
    policy: PolicyOption = "balanced",
    seconds: Annotated[int, typer.Option(min=60)] = 120,
    step: Annotated[int, typer.Option(min=1, help="Seconds from one frame to the next.")] = 1,
    live: Annotated[int, typer.Option(min=1, help="Frames that stay in the window.")] = 24,
    back: Annotated[int, typer.Option(min=0, help="Frames that a question brings back.")] = 2,
    seed: int = 1,
    questions: Annotated[int, typer.Option(min=1)] = 8,
    answer_tokens: Annotated[int, typer.Option(min=1)] = 16,
    threads_: ThreadsOption = None,
    json_path: JsonOption = None,
    plot_path: PlotOption = None,
) -> None:
    """Questions about a long recording, beside re-prefill and longest-prefix reuse of the same prompts."""
    threads(threads_)
    clip = Clip(seed, seconds)
    store = AgentKVStore(MemoryStore(1 << 26))
    with vision.engine(model) as engine:
        warm(engine)
        chat = MeasuredChat(engine=engine, policy=policy, max_tokens=answer_tokens, chat_template=HERMES)
        recording = Recording(clip, live)
        watch(chat, recording, store, step)
        right = 0
        chosen = clip.questions()[:questions]
        for question in chosen:
            answer = ask(chat, recording, store, question, back)
            right += question.answer.lower() in answer.lower()
            print(f"{question.text} {answer.strip().splitlines()[0][:60]!r} (it was {question.answer})")
        again = engine.tower.runs - len(recording.seen)
        print(f"{right} of {len(chosen)} right; {len(recording.seen)} frames seen, {again} encoded again")
        title = f"{engine.loaded.name}, {policy}, {live} frames live, {len(chat.turns)} calls"
        report(chat.turns, title, json_path, plot_path)


if __name__ == "__main__":
    typer.run(main)
