"""What a line typed into the chat does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from agentkv_orchestrator.errors import OrchestratorError
from agentkv_orchestrator.policy import Policy
from rich.console import Console
from rich.live import Live

from agentkv import Window
from agentkv.chat.view import everything, facts, listing, live, numbers, strip
from agentkv.errors import AgentKVError, InvalidInput
from agentkv.handles import Handle

Action = Callable[["Session", list[str]], None]


class Session:
    """One conversation. answer_tokens: of an answer at most. as_json: print one JSON object a turn."""

    def __init__(self, console: Console, window: Window, answer_tokens: int, as_json: bool) -> None:
        self.console, self.window = console, window
        self.answer_tokens, self.as_json = answer_tokens, as_json
        self.over = False

    def line(self, text: str) -> None:
        """Do what a line says: a command behind a slash, or words for the model. Errors are told, and change
        nothing."""
        try:
            if text.startswith("/"):
                self._command(text[1:])
            elif text.strip():
                self._say(text)
        except (AgentKVError, OrchestratorError) as error:
            self.console.print(f"{error}", style="red", markup=False)

    def _command(self, text: str) -> None:
        try:
            name, *arguments = shlex.split(text) or [""]
        except ValueError as error:
            raise InvalidInput(
                got=f"/{text} ({error})", expected="quotes in pairs", do='such as /read "my file.txt"'
            ) from error
        action = COMMANDS.get(name)
        if action is None:
            raise InvalidInput(
                got=f"/{name}", expected=", ".join(f"/{known}" for known in COMMANDS), do="type /help"
            )
        action(self, arguments)

    def _say(self, text: str) -> None:
        pieces = self.window.stream(text, max_new_tokens=self.answer_tokens)
        answer = self._watched(pieces) if self.console.is_terminal else "".join(pieces)
        if self.as_json:
            self.console.print_json(data=facts(self.window, text, answer))
        elif not self.console.is_terminal:
            self.console.print(answer, markup=False, highlight=False)
            self.console.print(numbers(self.window))

    def _watched(self, pieces: Iterator[str]) -> str:
        """The answer as it grows, over the strip of its window."""
        answer = ""
        with Live(console=self.console, refresh_per_second=8) as screen:
            for piece in pieces:
                answer += piece
                screen.update(live(self.window, answer, self.console.width - 2))
        return answer

    def handle(self, arguments: list[str]) -> Handle:
        """The message that a number of /list stands for."""
        entries = everything(self.window)
        number = arguments[0] if arguments else ""
        if not number.isdecimal() or not 1 <= int(number) <= len(entries):
            raise InvalidInput(
                got=f"message {number!r}", expected=f"a number from 1 to {len(entries)}", do="see /list"
            )
        return entries[int(number) - 1].handle

    def shown(self) -> None:
        """Carry out what was noted, and draw the window."""
        self.window.commit()
        self.console.print(strip(self.window, self.console.width - 2))
        self.console.print(numbers(self.window))


def _help(session: Session, _: list[str]) -> None:
    """this list"""
    for name, action in COMMANDS.items():
        session.console.print(f"/{name}: {action.__doc__}", markup=False, highlight=False)


def _list(session: Session, _: list[str]) -> None:
    """all messages with their numbers, those that left too"""
    session.console.print(listing(session.window))


def _read(session: Session, arguments: list[str]) -> None:
    """PATH: a text file or an image becomes a message"""
    path = Path(arguments[0] if arguments else "")
    if not path.is_file():
        raise InvalidInput(got=f"{str(path)!r}", expected="a file", do="give its path")
    text = path.suffix.lower() in (".txt", ".md", ".py", ".json", ".html", ".csv", ".toml", ".log")
    try:
        content = path.read_text(errors="replace") if text else path
    except OSError as error:
        raise InvalidInput(got=str(error), expected="a file that may be read", do="see to that") from error
    session.window.append(content, kind="document")
    session.shown()


def _evict(session: Session, arguments: list[str]) -> None:
    """N: message N leaves the window"""
    session.window.evict(session.handle(arguments))
    session.shown()


def _recall(session: Session, arguments: list[str]) -> None:
    """N: message N comes back, at the end"""
    session.window.recall(session.handle(arguments))
    session.shown()


def _pin(session: Session, arguments: list[str]) -> None:
    """N: message N may not leave; the same again lets it"""
    handle = session.handle(arguments)
    entry = session.window.content.get(handle.id)
    session.window.pin(handle, on=not (entry is not None and entry.pinned))
    session.console.print(listing(session.window))


def _slide(session: Session, arguments: list[str]) -> None:
    """TOKENS: the oldest messages leave until so many tokens are left"""
    tokens = arguments[0] if arguments else ""
    if not tokens.isdecimal():
        raise InvalidInput(got=f"{tokens!r}", expected="a number of tokens", do="such as /slide 512")
    session.window.slide(int(tokens))
    session.shown()


def _undo(session: Session, _: list[str]) -> None:
    """the last edit is taken back"""
    session.window.undo()
    session.shown()


def _window(session: Session, _: list[str]) -> None:
    """the window, drawn"""
    session.shown()


def _explain(session: Session, _: list[str]) -> None:
    """why the last turn did what it did"""
    session.console.print(session.window.explain(), markup=False, highlight=False)


def _audit(session: Session, _: list[str]) -> None:
    """what the edits have cost in truth: the window beside a re-prefill"""
    session.console.print(str(session.window.audit()), markup=False, highlight=False)


def _policy(session: Session, arguments: list[str]) -> None:
    """NAME: exact, balanced or fast from now on"""
    session.window.policy = Policy.parse(arguments[0] if arguments else "")


def _save(session: Session, arguments: list[str]) -> None:
    """[NAME]: into the store (--store), for --open"""
    session.console.print(session.window.save(*arguments[:1]), markup=False, highlight=False)


def _quit(session: Session, _: list[str]) -> None:
    """the end; so is Ctrl-D"""
    session.over = True


COMMANDS: dict[str, Action] = {
    "help": _help,
    "list": _list,
    "read": _read,
    "evict": _evict,
    "recall": _recall,
    "pin": _pin,
    "slide": _slide,
    "undo": _undo,
    "window": _window,
    "explain": _explain,
    "audit": _audit,
    "policy": _policy,
    "save": _save,
    "quit": _quit,
}
