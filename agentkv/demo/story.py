"""A day of an agent that reads about the packages it works with: a table of turns, each a few edits.

Every turn also changes the clock in the system message, as agents' frameworks do; that alone leaves a prefix
cache with nothing but the first words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentkv.demo.documents import Document
from agentkv.handles import Handle
from agentkv.window import Window

SYSTEM = (
    "You are a release engineer's assistant. It is {clock} on Monday, and the shift ends at "
    "18:00. You look after the Python environment of a small team. Before you answer, you read "
    "the README of every package that matters; they are shown to you as documents, one message "
    "each. Answer from the documents in front of you and from nothing else. When the documents do"
    " not say, reply that they do not say. Keep to one or two plain sentences, name the package "
    "you speak of, and do not repeat the question. Never invent a version number, an option or a "
    "link. A note from the team lead: people read your answers on a phone, so leave out "
    "greetings, lists and headings. If two packages do the same job, say which one the documents "
    "recommend, and why, in the words of the documents. You may call the tools below, one at a "
    "time, and you read a result before you call the next one. Never install, upgrade or remove a"
    " package yourself: file a ticket when somebody asks for it, and give its number in your "
    "answer."
)

TOOLS = {
    "read_readme": (
        "Tool read_readme(package: str) -> str. Returns the README of an installed package as "
        "plain text. Fails with NotInstalled when there is none."
    ),
    "list_packages": (
        "Tool list_packages(prefix: str = '') -> list[str]. Names of all installed packages that "
        "start with the prefix, in alphabetical order."
    ),
    "pip_check": (
        "Tool pip_check() -> str. Says which installed packages have requirements that do not fit"
        " together; empty when everything fits."
    ),
    "open_ticket": (
        "Tool open_ticket(title: str, body: str) -> int. Files a ticket for the team and returns "
        "its number. Use it only when somebody asks for a ticket."
    ),
}

SIZES = (180, 160, 200, 150, 180, 160, 190, 150, 200, 150, 170)
"""Tokens of the documents, markers not counted: the window reaches about two thousand."""
QUICK_SIZES = (60, 40, 70, 45, 55, 40, 60, 45, 70, 50, 55)
LOADED = 5
"""Documents the agent starts with."""
SLIDE = 0.94
"""An overflow leaves this share of the window, so that not every turn slides."""
KEPT_RESULTS = 2
"""Tool results that survive when the older ones are dropped."""


@dataclass
class Day:
    """What the agent holds: its window, a handle for everything it may want back, and names for people.

    docs: handles by document name. names: what a handle is called in the report. aside: a fork that answers
    instead of the window this turn. asked: this turn's question. exchange: a question and its answer that
    leave next turn. order: the documents before a ranker came. turn: how many turns were played. parked:
    system and exchange of the window while a fork answers.
    """

    window: Window
    library: Sequence[Document]
    docs: dict[str, Handle] = field(default_factory=dict)
    tools: list[Handle] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    order: list[Handle] = field(default_factory=list)
    exchange: list[Handle] = field(default_factory=list)
    aside: Window | None = None
    turn: int = 0
    system: Handle = field(init=False)
    parked: tuple[Handle, list[Handle]] = field(init=False)
    asked: Handle = field(init=False)

    @property
    def here(self) -> Window:
        """The window that answers this turn."""
        return self.aside or self.window

    def call(self, handle: Handle, name: str) -> Handle:
        """Give a handle its name in the report."""
        self.names[handle.id] = name
        return handle

    def doc(self, index: int) -> Handle:
        return self.docs[self.library[index].name]

    def live(self, kind: str | None = None) -> list[Handle]:
        """Documents in the window, in its order; of one kind when asked for."""
        handles, known = [e.handle for e in self.here.content.live()], set(self.docs.values())
        return [h for h in handles if h in known and kind in (None, h.kind)]

    def read(self, index: int, kind: str) -> None:
        """Append a document: one the agent starts with ("document"), or what a tool returned ("result")."""
        document = self.library[index]
        handle = self.here.append(f"README of {document.name}:\n{document.text}", kind=kind)
        self.docs[document.name] = self.call(handle, document.name)

    def tick(self, turn: int) -> None:
        """The clock of ``turn`` in the system message."""
        self.system = self.call(self.here.replace(self.system, SYSTEM.format(clock=clock(turn))), "system")


class Step(NamedTuple):
    """One turn: op names it in the report, event says what happened, edit does it, question asks about it.

    about: the document asked about. keep: question and answer stay in the history. fork: a fork answers.
    """

    op: str
    event: str
    edit: Callable[[Day], None]
    about: int
    question: str = "What is {name} for? Say it in one sentence."
    keep: bool = False
    fork: bool = False


def clock(turn: int) -> str:
    return f"{9 + turn // 2:02d}:{17 + turn % 2 * 26:02d}"


def start(day: Day) -> None:
    day.system = day.call(day.window.append(SYSTEM.format(clock=clock(0)), kind="system", pin=True), "system")
    for name, text in TOOLS.items():
        day.tools.append(day.call(day.window.append(text, kind="tool", pin=True), name))
    for index in range(LOADED):
        day.read(index, "document")


def nothing(day: Day) -> None:
    """Only the clock and the question are new."""


def read_two(day: Day) -> None:
    day.read(5, "result")
    day.read(6, "result")


def read_more(day: Day) -> None:
    day.read(7, "result")
    day.read(8, "result")


def shuffle_tools(day: Day) -> None:
    """A framework that keeps its tools in a dict lists them in another order after a reload."""
    day.window.reorder([day.tools[i] for i in (2, 0, 3, 1)])


def overflow(day: Day) -> None:
    """A document more than fits: the oldest ones leave, and a bit more than had to."""
    limit = int(day.window.content.tokens * SLIDE)
    day.read(9, "result")
    day.window.slide(limit)


def drop_results(day: Day) -> None:
    """Keep the last tool results only, as context editing does; a hole opens in front of the others."""
    for handle in day.live("result")[:-KEPT_RESULTS]:
        day.window.evict(handle)


def recall_first(day: Day) -> None:
    day.window.recall(day.doc(0))


def rerank(day: Day) -> None:
    """A ranker puts the documents into another order."""
    day.order = day.live()
    day.window.reorder([*day.order[1::2], *day.order[::2]])


def rank_back(day: Day) -> None:
    day.window.reorder(day.order)


def read_aside(day: Day) -> None:
    """A sub-agent reads and asks something over the same window, which goes on without knowing."""
    day.read(10, "result")


def recall_dropped(day: Day) -> None:
    """Something dropped before is needed again, in front of the other documents."""
    day.window.recall(day.doc(5), before=day.live()[0])


def rewind(day: Day) -> None:
    """Back to a checkpoint: the window as the day began, its clock included; what was said since is gone."""
    opened = [day.doc(index) for index in range(LOADED)]
    pinned = [day.system, *day.tools]
    live = [entry.handle for entry in day.window.content.live()]
    for handle in live:
        if handle not in pinned and handle not in opened:
            day.window.evict(handle)
    day.tick(0)
    day.window.reorder(day.tools)
    for handle in opened:
        if handle not in live:
            day.window.recall(handle)
    day.window.reorder(opened)


STEPS: tuple[Step, ...] = (
    Step("start", "opens five documents", start, 0),
    Step("ask", "asks again", nothing, 2),
    Step("grow", "reads two more", read_two, 5),
    Step("history", "keeps the answer", nothing, 6, "Which package is {name}, and who is it for?", keep=True),
    Step("tools", "tools in another order", shuffle_tools, 1),
    Step("grow", "reads two more", read_more, 8),
    Step("slide", "overflows: the oldest leave", overflow, 9),
    Step("hole", "drops old tool results", drop_results, 9, "What does the README of {name} promise?"),
    Step("recall", "recalls the first document", recall_first, 0),
    Step("reorder", "documents reordered", rerank, 3),
    Step("restore", "back to the first order", rank_back, 4),
    Step("fork", "a fork asks something else", read_aside, 10, "Is {name} a library or a tool?", fork=True),
    Step("recall", "recalls a dropped result", recall_dropped, 5, "When would you use {name}?"),
    Step("rewind", "back to this morning", rewind, 1),
    Step("ask", "asks for the time", nothing, 4, "What time is it? And name one thing that {name} does."),
)


def play(day: Day, step: Step) -> None:
    """The edits of one turn: what the last one left behind, the clock, the event, the question."""
    if step.fork:
        day.parked, day.aside = (day.system, day.exchange), day.window.fork()
    for handle in day.exchange:
        day.here.evict(handle)
    if day.turn:
        day.tick(day.turn)
    step.edit(day)
    question = step.question.format(name=day.library[step.about].name)
    day.asked = day.call(day.here.append(question, kind="user"), "question")


def finish(day: Day, step: Step, answer: Handle | None) -> None:
    """Behind the answer: note what leaves next turn, and let a fork go."""
    day.turn += 1
    if day.aside:
        day.aside.close()
        day.aside, (day.system, day.exchange) = None, day.parked
    else:
        day.exchange = [] if step.keep else [h for h in (day.asked, answer) if h is not None]
