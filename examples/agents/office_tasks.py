"""Tasks in the office of `examples.agents.desktop`, with a way to each, and a check of what came of it.

Each task has to be read off a mail, which is out of sight when the thing that it names is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from examples.agents.desktop import PAGE, Action, App, Click, Facts, Scroll, Type
from examples.agents.office import Mail, Office


@dataclass(frozen=True)
class Task:
    """instruction: for the agent. solution: a shortest way from the first screen. goal: the facts then, and
    nothing but these. shows: the label whose screen tells what has to be remembered."""

    instruction: str
    solution: tuple[Action, ...]
    goal: Facts
    shows: str = ""

    def reached(self, app: App) -> bool:
        """Whether the app is where it should be, with nothing else changed."""
        return app.facts == self.goal


def tasks(app: App) -> list[Task]:
    """Every task that the mails of an untouched app give, in the order of the mails."""
    return [task for mail in app.office.mails for task in _of(mail, app.office)]


def _of(mail: Mail, office: Office) -> Iterator[Task]:
    mails = [m.sender for m in office.mails]
    opened = (Click("Mail"), *_to(mails, mail.sender))
    nothing = Facts()
    if mail.asks == "pay":
        to = _to([i.number for i in office.invoices], mail.about)
        way = (*opened, Click("Home"), Click("Invoices"), *to, Click("Pay"))
        goal = replace(nothing, paid=frozenset({mail.about}))
        yield Task(f"Pay the invoice that {mail.sender} asks for.", way, goal, mail.sender)
    elif mail.asks == "delete":
        to = _to(list(office.files), mail.about)
        way = (*opened, Click("Home"), Click("Files"), *to, Click("Delete"), Click("Yes"))
        goal = replace(nothing, deleted=frozenset({mail.about}))
        yield Task(f"Delete the file that {mail.sender} does not need.", way, goal, mail.sender)
    elif mail.asks == "note":
        way = (*opened, Click("Home"), Click("Notes"), Type(mail.about), Click("Add"))
        goal = replace(nothing, notes=(mail.about,))
        yield Task(f"Write the code that {mail.sender} tells into the notes.", way, goal, mail.sender)
    else:
        goal = replace(nothing, archived=frozenset({mail.sender}))
        yield Task(f"Archive the mail from {mail.sender}.", (*opened, Click("Archive")), goal)


def _to(labels: list[str], label: str) -> tuple[Action, ...]:
    """The way to an entry of a list, from its first page."""
    return (*[Scroll()] * (labels.index(label) // PAGE), Click(label))
