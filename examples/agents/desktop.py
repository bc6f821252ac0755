"""A small office app that an agent can use: mail, invoices, files and notes, and a screenshot of each.

    app = App(seed=1)
    app.do(Click("Mail"))
    app.screenshot().save("mail.png")
    print(app.screen().clickable)

What is in it is drawn from the seed. What an agent may do is `Click` a label, `Type` into the field of a
screen, `Scroll` a list, or go `Back`; anything else raises `BadAction` and changes nothing. `facts` is what
has come of it, `tasks` in `examples.agents.office_tasks` says what it should come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from bench.models import vlm
from bench.models.drawing import Icon
from examples.agents import widgets
from examples.agents.office import Invoice, Mail, Office
from examples.agents.widgets import Line, Screen, Widget

PAGE = 6
"""Entries of a list on one screen."""
LINES = PAGE + 2
LONGEST_NOTE = 24

PAID, OPEN = Icon("green", "circle"), Icon("red", "diamond")
FILE = Icon("purple", "square")
SECTIONS = {
    "Mail": Icon("orange", "star"),
    "Invoices": Icon("green", "circle"),
    "Files": Icon("purple", "square"),
    "Notes": Icon("blue", "heart"),
}


class BadAction(ValueError):
    """An action that the screen has no widget for. What can be done is said."""


@dataclass(frozen=True)
class Click:
    """On the widget of this label."""

    label: str


@dataclass(frozen=True)
class Type:
    """In the place of what is in the field."""

    text: str


@dataclass(frozen=True)
class Scroll:
    """A list by pages: 1 down, -1 up."""

    pages: int = 1


@dataclass(frozen=True)
class Back:
    """To the screen before this one."""


Action = Click | Type | Scroll | Back


def parse(text: str) -> Action:
    """An action as a model writes it: ``click LABEL``, ``type TEXT``, ``scroll down``, ``scroll up`` or
    ``back``. Raises BadAction."""
    verb, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    match verb.lower(), rest:
        case "click", label if label:
            return Click(label)
        case "type", typed if typed:
            return Type(typed)
        case "scroll", ("down" | "up") as way:
            return Scroll(1 if way == "down" else -1)
        case "back", "":
            return Back()
    raise BadAction(f"got {text[:80]!r}; expected click LABEL, type TEXT, scroll down, scroll up or back")


@dataclass(frozen=True)
class Facts:
    """What was done: suppliers of invoices, names of files, senders of mails, and notes in order."""

    paid: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """One screen of the app. item: the mail, invoice or file that it shows."""

    name: str
    item: str = ""
    page: int = 0
    typed: str = ""


class App:
    """seed: of what is in it. office: its contents, which never change. facts: what was done."""

    def __init__(self, seed: int = 0) -> None:
        self.office = Office.drawn(seed)
        self.facts = Facts()
        self._views: list[View] = [View("Home")]

    @property
    def view(self) -> View:
        """Which screen is shown."""
        return self._views[-1]

    def screen(self) -> Screen:
        """What is on it now."""
        shown: dict[str, Callable[[], Screen]] = {
            "Home": self._home,
            "Mail": self._mails,
            "Invoices": self._invoices,
            "Files": self._files,
            "Notes": self._notes,
            "One mail": self._mail,
            "One invoice": self._invoice,
            "One file": self._file,
            "Delete": self._delete,
        }
        return shown[self.view.name]()

    def screenshot(self) -> Image.Image:
        """The screen as pixels: RGB, always of one size."""
        return widgets.draw(self.screen(), LINES)

    def do(self, action: Action) -> None:
        """Carry it out. Raises BadAction, and then nothing has changed."""
        match action:
            case Click(label):
                self._click(label)
            case Type(text):
                self._type(text)
            case Scroll(pages):
                self._scroll(pages)
            case Back():
                if len(self._views) == 1:
                    raise BadAction("got back; expected a click: this is the first screen")
                self._views.pop()

    def _click(self, label: str) -> None:
        screen = self.screen()
        if label not in screen.clickable:
            raise BadAction(f"got click {label!r}; expected one of {', '.join(screen.clickable)}")
        view = self.view
        if label == "Back":
            self._views.pop()
        elif label == "Home":
            self._views[1:] = []
        elif view.name == "Home":
            self._views.append(View(label))
        elif view.name in ("Mail", "Invoices", "Files"):
            self._views.append(View(f"One {view.name.lower().removesuffix('s')}", label))
        else:
            self._press(label, view)

    def _press(self, button: str, view: View) -> None:
        """A button that does something."""
        facts = self.facts
        match button:
            case "Pay":
                self.facts = replace(facts, paid=facts.paid | {view.item})
            case "Archive":
                self.facts = replace(facts, archived=facts.archived | {view.item})
                self._views.pop()
            case "Delete":
                self._views.append(View("Delete", view.item))
            case "Yes":
                self.facts = replace(facts, deleted=facts.deleted | {view.item})
                self._views[-2:] = []
            case "No":
                self._views.pop()
            case "Add":
                if not view.typed:
                    raise BadAction("got click 'Add'; expected something in the field: type it first")
                self.facts = replace(facts, notes=(*facts.notes, view.typed))
                self._views[-1] = replace(view, typed="")

    def _type(self, text: str) -> None:
        if not self.screen().field:
            raise BadAction("got type; expected a screen with a field: Notes has one")
        known = all(character in vlm.CHARACTERS for character in text)
        if not known or not 0 < len(text.strip()) <= LONGEST_NOTE:
            raise BadAction(f"got type {text[:40]!r}; expected up to {LONGEST_NOTE} ASCII characters")
        self._views[-1] = replace(self.view, typed=text.strip())

    def _scroll(self, pages: int) -> None:
        entries = {"Mail": self.mails, "Invoices": self.office.invoices, "Files": self.files}.get(
            self.view.name
        )
        page = self.view.page + pages
        if entries is None or not 0 <= page * PAGE < max(len(entries), 1):
            raise BadAction(f"got scroll {pages}; expected a list that goes on there")
        self._views[-1] = replace(self.view, page=page)

    @property
    def mails(self) -> list[Mail]:
        """Those that are not archived."""
        return [mail for mail in self.office.mails if mail.sender not in self.facts.archived]

    @property
    def files(self) -> list[str]:
        """Those that are not deleted."""
        return [name for name in self.office.files if name not in self.facts.deleted]

    def _home(self) -> Screen:
        lines = (Line((Widget(name, "entry"),), icon) for name, icon in SECTIONS.items())
        return Screen("Home", tuple(lines))

    def _list(self, title: str, lines: Sequence[Line]) -> Screen:
        first = self.view.page * PAGE
        pages = -(-len(lines) // PAGE)
        foot = Line((Widget(f"Page {self.view.page + 1} of {max(pages, 1)}"),))
        return Screen(title, (*lines[first : first + PAGE], foot), ("Home",))

    def _mails(self) -> Screen:
        lines = [Line((Widget(m.sender, "entry"), Widget(m.subject)), SECTIONS["Mail"]) for m in self.mails]
        return self._list("Mail", lines)

    def _mail(self) -> Screen:
        mail = next(m for m in self.office.mails if m.sender == self.view.item)
        lines = (Line((Widget("From"), Widget(mail.sender))), Line((Widget("About"), Widget(mail.subject))))
        body = tuple(Line((Widget(text),)) for text in mail.body)
        return Screen("Mail", (*lines, *body, Line((Widget("Archive", "button"),))), ("Back", "Home"))

    def _paid(self, invoice: Invoice) -> bool:
        return invoice.supplier in self.facts.paid

    def _invoices(self) -> Screen:
        lines = [
            Line(
                (Widget(i.supplier, "entry"), Widget(i.number), Widget(i.amount)),
                PAID if self._paid(i) else OPEN,
            )
            for i in self.office.invoices
        ]
        return self._list("Invoices", lines)

    def _invoice(self) -> Screen:
        invoice = next(i for i in self.office.invoices if i.supplier == self.view.item)
        paid = self._paid(invoice)
        told = {
            "From": invoice.supplier,
            "Number": invoice.number,
            "Month": invoice.month,
            "Due": invoice.amount,
        }
        lines = tuple(Line((Widget(name), Widget(value))) for name, value in told.items())
        state = Line((Widget("Paid" if paid else "Not paid"),), PAID if paid else OPEN)
        pay = () if paid else (Line((Widget("Pay", "button"),)),)
        return Screen("Invoice", (*lines, state, *pay), ("Back", "Home"))

    def _files(self) -> Screen:
        lines = [Line((Widget(name, "entry"), Widget(self.office.files[name])), FILE) for name in self.files]
        return self._list("Files", lines)

    def _file(self) -> Screen:
        name = self.view.item
        lines = (
            Line((Widget("Name"), Widget(name)), FILE),
            Line((Widget("Size"), Widget(self.office.files[name]))),
        )
        return Screen("File", (*lines, Line((Widget("Delete", "button"),))), ("Back", "Home"))

    def _delete(self) -> Screen:
        ask = Line((Widget(f"Delete {self.view.item}?"),))
        return Screen("Delete", (ask, Line((Widget("Yes", "button"), Widget("No", "button")))))

    def _notes(self) -> Screen:
        notes = tuple(Line((Widget(text),)) for text in self.facts.notes[-PAGE:])
        field = Line((Widget("Note"), Widget(self.view.typed, "field")))
        return Screen("Notes", (*notes, field, Line((Widget("Add", "button"),))), ("Home",))
