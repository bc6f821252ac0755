"""A screenshot planner: it works in a small office app by clicking, and reads old screens again.

    python examples/agents/02_screenshot_planner.py [--model tiny | DIR_OR_ID] [--keep 3] [--clock]

Every click gives a screenshot. Only the last ones stay in what the model sees, older ones leave a card; a
mail that was read some screens ago is brought back by the tool `recall_chunk`. Where to click is scripted,
as the models that run here are too small to plan; what has to be read, the model reads. ``--model`` takes any
vision-language model that agentkv loads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose bench.models the examples use

import typer
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from agentkv.integrations import AgentKVMiddleware
from agentkv.integrations.evictable import RECALL
from agentkv.integrations.templates import HERMES
from agentkv.testing.chat import ScriptedChatAgentKV
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
from examples.agents.desktop import Action, App, BadAction, parse
from examples.agents.office_tasks import Find, Press, Task, Write, tasks

SYSTEM = "You work in an office app. You see screenshots of it, and act with tools."
PAGES = 2
"""A list has as many pages to scroll to, at most."""
CLOCK = " It is {:02}:{:02}:{:02}."


class Planner(MeasuredChat, ScriptedChatAgentKV):
    """A measured model whose clicks come from a plan."""


class Desk:
    """The app as tools, and the plan that is followed in it."""

    def __init__(self, app: App, task: Task) -> None:
        self.app, self.task, self.slots = app, task, dict[str, str]()
        self.steps = self._steps()
        self.asked = ""
        self.numbers: dict[str, int] = {}  # of pictures, as the middleware counts them: equal ones once
        self.seen: dict[str, str] = {}  # the picture behind a click, by its label
        self.last = self.shown = ""

    def act(self, action: Action) -> list[dict[str, Any]]:
        """Do it, and show what came of it."""
        self.app.do(action)
        block = image(self.app.screenshot())
        self.last = block["base64"]
        self.numbers.setdefault(self.last, len(self.numbers) + 1)
        return [block]

    def tools(self) -> list[Any]:
        @tool
        def do(action: str) -> Any:
            """Act in the app: "click LABEL", "type TEXT", "scroll down", "scroll up" or "back"."""
            try:
                return self.act(parse(action))
            except BadAction as error:
                return str(error)

        return [do]

    def script(self, messages: Sequence[BaseMessage], _: Sequence[str]) -> str | None:
        """The next step as the model would write it; None where it has to read."""
        if isinstance(messages[-1], HumanMessage) and self.asked:
            return None
        self.shown = " ".join(message.text for message in messages)
        name, arguments = next(self.steps)
        if name is None:
            return str(arguments)
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    def _steps(self) -> Iterator[tuple[str | None, Any]]:
        """Tool calls of the plan; a screen that was seen before is recalled, and asked about."""
        for step in self.task.plan:
            match step:
                case Press(label):
                    label = label.format(**self.slots)
                    for _ in range(PAGES):
                        if label not in self.app.screen().clickable:
                            yield "do", {"action": "scroll down"}
                    yield "do", {"action": f"click {label}"}
                    self.seen[label] = self.last
                case Write(text):
                    yield "do", {"action": f"type {text.format(**self.slots)}"}
                case Find(slot, question, pattern, of):
                    number = self.numbers[self.seen[of]]
                    if f"[image {number}: evicted" in self.shown:
                        yield RECALL, {"name": str(number)}
                    self.asked = question
                    yield None, "I look at it again."
                    found = re.search(pattern, self.slots.pop("answer"))
                    self.slots[slot] = found[0] if found else self._truth(of, pattern)
        yield None, "Done."

    def _truth(self, of: str, pattern: str) -> str:
        """What the mail says, for a model that could not read it; counted as not read."""
        mail = next(mail for mail in self.app.office.mails if mail.sender == of)
        self.slots["missed"] = "yes"
        found = re.search(pattern, " ".join(mail.body))
        assert found is not None
        return found[0]


def work(planner: Planner, app: App, task: Task, keep: int, clock: bool) -> bool:
    """One task; whether the model read what it had to."""
    desk = Desk(app, task)
    planner.script = desk.script
    ticks = iter(range(10**6))

    def system() -> str:
        second = 9 * 3600 + 7 * next(ticks)
        return SYSTEM + (CLOCK.format(second // 3600, second // 60 % 60, second % 60) if clock else "")

    middleware = AgentKVMiddleware(keep_images=keep, policy=planner.policy)
    prompt = dynamic_prompt(lambda request: system())
    agent = create_agent(planner, desk.tools(), middleware=[middleware, prompt], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": task.instruction}, "recursion_limit": 100}
    said = agent.invoke({"messages": [("user", task.instruction)]}, config)
    while desk.asked:
        said = agent.invoke({"messages": [("user", desk.asked)]}, config)
        answer = said["messages"][-1].text
        print(f"  {desk.asked} {answer.strip()[:80]!r}")
        desk.asked, desk.slots["answer"] = "", answer
        said = agent.invoke({"messages": [("user", "Go on.")]}, config)
    failed = [m.text for m in said["messages"] if isinstance(m, ToolMessage) and m.status == "error"]
    if failed:
        raise RuntimeError(f"a tool refused: {failed[0]}")
    return "missed" not in desk.slots


def main(
    model: EyesOption = None,
    policy: PolicyOption = "balanced",
    keep: Annotated[int, typer.Option(min=1, help="Screenshots that stay.")] = 3,
    clock: Annotated[bool, typer.Option("--clock", help="The system message tells the time of day.")] = False,
    count: Annotated[int, typer.Option("--tasks", min=1, max=8)] = 2,
    seed: int = 3,
    answer_tokens: Annotated[int, typer.Option(min=48, help="A click takes about 40.")] = 64,
    threads_: ThreadsOption = None,
    json_path: JsonOption = None,
    plot_path: PlotOption = None,
) -> None:
    """A screenshot planner, beside re-prefill and longest-prefix reuse of the same prompts."""
    threads(threads_)
    with vision.engine(model) as engine:
        warm(engine)
        planner = Planner(
            engine=engine,
            policy=policy,
            max_tokens=answer_tokens,
            chat_template=HERMES,
            script=lambda messages, tools: None,
        )
        done = read = 0
        chosen = [task for task in tasks(App(seed)) if task.shows][:count]
        for task in chosen:
            app = App(seed)
            print(task.instruction)
            read += work(planner, app, task, keep, clock)
            done += task.reached(app)
        print(f"{done} of {len(chosen)} tasks done, {read} of {len(chosen)} mails read by the model")
        print(f"{engine.tower.runs} runs of the vision tower")
        title = f"{engine.loaded.name}, {policy}, the last {keep} screenshots, {len(planner.turns)} calls"
        report(planner.turns, title, json_path, plot_path)


if __name__ == "__main__":
    typer.run(main)
