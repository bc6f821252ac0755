"""Tasks in the office of `examples.agents.desktop`, with a plan for each and a check of what came of it.

Each task has to be read off a mail, which is out of sight when the thing that it names is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from examples.agents.desktop import PAGE, Action, App, BadAction, Click, Facts, Scroll, Type
from examples.agents.office import SUPPLIERS, Mail, Office


@dataclass(frozen=True)
class Press:
    """Click a label, after scrolling to it. "{slot}" stands for what was found out."""

    label: str


@dataclass(frozen=True)
class Write:
    """Type into the field."""

    text: str


@dataclass(frozen=True)
class Find:
    """Ask what a screen says, and keep what matches the pattern in a slot. of: the entry whose screen it is,
    seen some screens ago; "" for the one that is shown now."""

    slot: str
    question: str
    pattern: str
    of: str = ""


Step = Press | Write | Find
Ask = Callable[[str, str], str]
"""(question, of) → answer."""


@dataclass(frozen=True)
class Task:
    """instruction: for the agent. plan: steps that leave open what has to be read. solution: a shortest way
    from the first screen. goal: the facts then, and nothing but these. shows: the entry whose screen tells
    what has to be remembered, "" where nothing has."""

    instruction: str
    plan: tuple[Step, ...]
    solution: tuple[Action, ...]
    goal: Facts
    shows: str = ""

    def reached(self, app: App) -> bool:
        """Whether the app is where it should be, with nothing else changed."""
        return app.facts == self.goal


class NotAnswered(ValueError):
    """An answer without what was asked for."""


def tasks(app: App) -> list[Task]:
    """Every task that the mails of an untouched app give, in the order of the mails."""
    return [_task(mail, app.office) for mail in app.office.mails]


def follow(app: App, task: Task, ask: Ask) -> Iterator[Step]:
    """Carry out the plan, each step before it is given. Raises NotAnswered, and BadAction for an answer that
    names nothing on the screen."""
    slots: dict[str, str] = {}
    for step in task.plan:
        match step:
            case Press(label):
                press(app, label.format(**slots))
            case Write(text):
                app.do(Type(text.format(**slots)))
            case Find(slot, question, pattern, of):
                answer = ask(question.format(**slots), of)
                found = re.search(pattern, answer)
                if found is None:
                    raise NotAnswered(f"got {answer[:80]!r} to {question!r}; expected {pattern}")
                slots[slot] = found[0]
        yield step


def press(app: App, label: str) -> None:
    """Scroll down until the label is there, and click it. Raises BadAction where it never is."""
    while label not in app.screen().clickable:
        try:
            app.do(Scroll())
        except BadAction:
            break
    app.do(Click(label))


def _task(mail: Mail, office: Office) -> Task:
    sender, about, nothing = mail.sender, mail.about, Facts()
    opened = (Click("Mail"), *_to([m.sender for m in office.mails], sender))
    read: tuple[Step, ...] = (Press("Mail"), Press(sender), Press("Home"))
    if mail.asks == "pay":
        ask = Find("name", "Which company has to be paid?", "|".join(SUPPLIERS), sender)
        plan = (*read, Press("Invoices"), ask, Press("{name}"), Press("Pay"))
        to = _to([i.supplier for i in office.invoices], about)
        way = (*opened, Click("Home"), Click("Invoices"), *to, Click("Pay"))
        goal = replace(nothing, paid=frozenset({about}))
        return Task(f"Pay the invoice that {sender} asks for.", plan, way, goal, sender)
    if mail.asks == "delete":
        ask = Find("name", "Which file is to be deleted?", r"\w+\.\w+", sender)
        plan = (*read, Press("Files"), ask, Press("{name}"), Press("Delete"), Press("Yes"))
        to = _to(list(office.files), about)
        way = (*opened, Click("Home"), Click("Files"), *to, Click("Delete"), Click("Yes"))
        goal = replace(nothing, deleted=frozenset({about}))
        return Task(f"Delete the file that {sender} does not need.", plan, way, goal, sender)
    if mail.asks == "note":
        ask = Find("code", "What is the code?", r"\d+", sender)
        plan = (*read, Press("Notes"), ask, Write("{code}"), Press("Add"))
        way = (*opened, Click("Home"), Click("Notes"), Type(about), Click("Add"))
        goal = replace(nothing, notes=(about,))
        return Task(f"Write the code that {sender} tells into the notes.", plan, way, goal, sender)
    plan, way = (Press("Mail"), Press(sender), Press("Archive")), (*opened, Click("Archive"))
    return Task(f"Archive the mail from {sender}.", plan, way, replace(nothing, archived=frozenset({sender})))


def _to(labels: list[str], label: str) -> tuple[Action, ...]:
    """The way to an entry of a list, from its first page."""
    return (*[Scroll()] * (labels.index(label) // PAGE), Click(label))
