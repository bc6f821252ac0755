"""A research agent in LangGraph: it looks things up in a folder of documents and answers from what it found.

    python examples/agents/01_research_agent.py [--folder DIR] [--model DIR_OR_ID] [--keep-order]

Each question retrieves passages, best first; the last ones stay in a rolling window, so they leave, come back
and change places all the time. The graph is plain LangGraph; only the chat model knows of a window.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose modules the examples share

import typer
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agentkv import Engine
from examples.agents.beside import (
    JsonOption,
    MeasuredChat,
    PlotOption,
    PolicyOption,
    ThreadsOption,
    report,
    said,
    threads,
    warm,
)

QUESTIONS = (
    "What is a patch, and what does it correct?",
    "How does a window close the hole that an evicted message leaves?",
    "Which model families are refused?",
    "What happens to stored KV when the disk is full?",
    "How is the error budget spent?",
    "What does a recalled message cost?",
    "How are images kept apart in the store?",
    "What is the difference between rotating and patching?",
    "How can two machines share a store?",
    "Which edits does the planner choose from?",
    "What is the rank of a patch?",
    "Where is a patch stored?",
    "When is a message computed again rather than patched?",
    "What does a second machine see of a shared store?",
    "What does the budget bound?",
    "What does a clean view show?",
)
FOUND, KEPT = 2, 10
"""Passages of one retrieval, and passages in the window."""


class State(MessagesState):
    """messages: questions and answers. passages: numbers of what is in the window, in order."""

    passages: list[int]


def passages(folder: Path, words: int = 110) -> list[str]:
    """Paragraphs of all text files below ``folder``, joined to about ``words`` words each, with the title."""
    found = list[str]()
    for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.txt")]):
        text, held = path.read_text(errors="replace"), list[str]()
        for paragraph in re.split(r"\n\s*\n", text):
            held.append(paragraph.strip())
            if sum(len(part.split()) for part in held) >= words:
                found.append(f"{path.name}: " + " ".join(" ".join(held).split()[: words + 40]))
                held = []
    if len(found) <= KEPT:
        raise typer.BadParameter(
            f"{folder} has {len(found)} passages; a folder with more than {KEPT} is needed"
        )
    return found


class Index:
    """Passages by the words they share with a question, rare words first (BM25's weights)."""

    def __init__(self, texts: list[str]) -> None:
        self.bags = [Counter(re.findall(r"[a-z]{3,}", text.lower())) for text in texts]
        self.seen = Counter(word for bag in self.bags for word in bag)

    def best(self, question: str, count: int) -> list[int]:
        words = set(re.findall(r"[a-z]{3,}", question.lower()))

        def score(bag: Counter[str]) -> float:
            size = 1.2 * (0.25 + 0.75 * bag.total() / 110)
            return sum(
                math.log(1 + len(self.bags) / self.seen[w]) * bag[w] * 2.2 / (bag[w] + size)
                for w in words & bag.keys()
            )

        return sorted(range(len(self.bags)), key=lambda i: score(self.bags[i]), reverse=True)[:count]


def agent(model: MeasuredChat, texts: list[str], order_free: bool) -> Any:
    """Retrieve, then answer."""
    index = Index(texts)
    hints = {"agentkv": {"kind": "document", "order_free": order_free}}

    def retrieve(state: State) -> dict[str, Any]:
        best = index.best(state["messages"][-1].text, FOUND)
        kept = [number for number in state.get("passages", []) if number not in best]
        return {"passages": [*best, *kept][:KEPT]}

    def answer(state: State) -> dict[str, Any]:
        system = SystemMessage("You answer questions from the passages that you are shown. Be brief.")
        shown = [
            HumanMessage(texts[n], id=f"passage {n}", additional_kwargs=hints) for n in state["passages"]
        ]
        return {"messages": [model.invoke([system, *shown, *state["messages"][-5:]])]}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("answer", answer)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=InMemorySaver())


def main(
    folder: Annotated[Path, typer.Option(help="Documents (.md, .txt) to look things up in.")] = Path(
        __file__
    ).parents[2]
    / "docs",
    model: Annotated[str | None, typer.Option(help="A model directory or hub id.")] = None,
    policy: PolicyOption = "balanced",
    keep_order: Annotated[
        bool, typer.Option(help="Passages stand best first, not where they cost least.")
    ] = False,
    turns: Annotated[int, typer.Option(min=1, max=len(QUESTIONS))] = len(QUESTIONS),
    answer_tokens: Annotated[int, typer.Option(min=1)] = 24,
    threads_: ThreadsOption = None,
    json_path: JsonOption = None,
    plot_path: PlotOption = None,
) -> None:
    """A research agent over a folder of documents, beside re-prefill and longest-prefix reuse."""
    threads(threads_)
    with Engine.from_pretrained(model) as engine:
        warm(engine)
        chat = MeasuredChat(engine=engine, policy=policy, max_tokens=answer_tokens)
        graph = agent(chat, passages(folder), not keep_order)
        config = {"configurable": {"thread_id": "research"}}
        for question in QUESTIONS[:turns]:
            state = graph.invoke({"messages": [HumanMessage(question)]}, config)
            reply = state["messages"][-1]
            assert isinstance(reply, AIMessage)
            print(f"{question}\n  {said(reply)}")
        report(
            chat.turns, f"{engine.loaded.name}, {policy}, {len(chat.turns)} questions", json_path, plot_path
        )


if __name__ == "__main__":
    typer.run(main)
