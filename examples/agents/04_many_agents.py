"""A planner, a grounder and a critic over the same screenshots, each with a window of its own.

    python examples/agents/04_many_agents.py [--model tiny | DIR_OR_ID]

They are nodes of one LangGraph thread and share a chat model. Each has its own system message and its own
view of what the others said; the mails and screenshots are the same. A screenshot is encoded once. The first
window computes it, the others are forked from that one, and turn or mend what they keep of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose bench.models the examples use

import typer
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agentkv.integrations.templates import HERMES
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
    said,
    threads,
    warm,
)
from examples.agents.desktop import App
from examples.agents.office_tasks import Task, tasks

KEPT = 4
"""Screenshots that all of them see."""
ROLES = {
    "planner": ("You plan. You see screenshots of an office app.", "What should be done next?"),
    "grounder": ("You find things. You see screenshots of an office app.", "Which label has to be clicked?"),
    "critic": ("You check. You see screenshots of an office app.", "Was that right? Answer yes or no."),
}


class State(MessagesState):
    """messages: screenshots and what was said, in order. inbox: all mails as text."""

    task: str
    inbox: str


def agent(chat: MeasuredChat) -> Any:
    """Planner, grounder, critic, in turn."""
    graph = StateGraph(State)
    for name in ROLES:
        graph.add_node(name, _node(chat, name))
    for one, other in zip([START, *ROLES], [*ROLES, END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=InMemorySaver())


def _node(chat: MeasuredChat, name: str) -> Any:
    system, question = ROLES[name]

    def node(state: State) -> dict[str, Any]:
        shots = [m for m in state["messages"] if isinstance(m, HumanMessage)][-KEPT:]
        mine = [m for m in state["messages"] if isinstance(m, AIMessage)][-2:]
        inbox = HumanMessage(state["inbox"], additional_kwargs={"agentkv": {"kind": "document"}})
        told: list[BaseMessage] = [HumanMessage(f"{m.name} said: {said(m)}") for m in mine]
        asked = HumanMessage(f"The task: {state['task']} {question}")
        answer = chat.invoke([SystemMessage(system), inbox, *shots, *told, asked])
        return {"messages": [answer.model_copy(update={"name": name})]}

    return node


def work(graph: Any, app: App, task: Task, steps: int) -> None:
    """The way to the task, a screenshot and a word of each agent at every step."""
    config: Any = {"configurable": {"thread_id": task.instruction}}
    inbox = "\n".join(f"{mail.sender} wrote: {' '.join(mail.body)}" for mail in app.office.mails)
    for action in task.solution[:steps]:
        shot = HumanMessage([image(app.screenshot())])
        state = graph.invoke({"messages": [shot], "task": task.instruction, "inbox": inbox}, config)
        for message in state["messages"][-len(ROLES) :]:
            print(f"  {message.name}: {said(message)}")
        app.do(action)


def main(
    model: EyesOption = None,
    policy: PolicyOption = "balanced",
    steps: Annotated[int, typer.Option(min=1)] = 5,
    seed: int = 3,
    answer_tokens: Annotated[int, typer.Option(min=1)] = 12,
    threads_: ThreadsOption = None,
    json_path: JsonOption = None,
    plot_path: PlotOption = None,
) -> None:
    """Three agents over the same screenshots, beside re-prefill and longest-prefix reuse."""
    threads(threads_)
    with vision.engine(model) as engine:
        warm(engine)
        chat = MeasuredChat(engine=engine, policy=policy, max_tokens=answer_tokens, chat_template=HERMES)
        app = App(seed)
        task = max(tasks(app), key=lambda task: len(task.solution))
        print(task.instruction)
        work(agent(chat), app, task, steps)
        print(f"{engine.tower.runs} runs of the vision tower, {len(chat.threads)} windows")
        title = f"{engine.loaded.name}, {policy}, 3 agents, {len(chat.turns)} calls"
        report(chat.turns, title, json_path, plot_path)


if __name__ == "__main__":
    typer.run(main)
