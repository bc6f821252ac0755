"""Traces: what agents asked their model to see, turn by turn, as contents and sizes without tensors.

A trace is a file of JSON lines. The first line is the header, ``{"agentkv_trace": 1, "name": ...}``. Every
other line is a turn of one window: the whole message list that is in front of the model then. A message is
written out where it is met first, ``{"id": "doc7", "kind": "document", "tokens": 210}``, and by its id alone
after that, so that a trace grows with what is new. Equal ids are equal contents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .chunks import Chunk
from .errors import TraceError

_T = TypeVar("_T", bound=BaseModel)

ROLES = frozenset({"system", "user", "assistant"})
"""Kinds that are turns of a chat: their place is part of what they say."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Frozen):
    """A message, which the simulation takes for one chunk.

    id: equal ids are equal contents. tokens: its length. span: position ids it takes, by default one a token
    (an image with M-RoPE takes fewer). order_free: its neighbours that are order-free too may change places
    with it. text: not read by the simulation.
    """

    id: str = Field(min_length=1)
    kind: str = "note"
    tokens: int = Field(gt=0)
    span: int | None = Field(default=None, gt=0)
    pin: bool = False
    order_free: bool = False
    text: str | None = None

    @model_validator(mode="after")
    def _a_turn_of_a_chat_has_its_place(self) -> Message:
        if self.order_free and (self.pin or self.kind in ROLES):
            raise ValueError(f"order_free for a message that is pinned or of kind {self.kind}")
        return self

    @property
    def chunk(self) -> Chunk:
        return Chunk(id=self.id, kind=self.kind, length=self.tokens, span=self.span or self.tokens)


class Turn(_Frozen):
    """One request: what stands in the window, in order, and the answer that is decoded behind it.

    window: whose turn it is; every window has rows of its own, all share one store. answer: stands in the
    window from then on as long as later turns list it.
    """

    messages: tuple[Message, ...] = Field(min_length=1)
    answer: Message | None = None
    window: str = ""

    @property
    def tokens(self) -> int:
        return sum([m.tokens for m in self.messages])


class Header(_Frozen):
    """First line of a file. source, licence: where the conversation comes from."""

    agentkv_trace: Literal[1] = 1
    name: str
    source: str = ""
    licence: str = ""
    note: str = ""


class Trace(_Frozen):
    """A whole trace in memory."""

    header: Header
    turns: tuple[Turn, ...]

    @property
    def events(self) -> int:
        """Chunk events: messages of all turns, those that stand there already included."""
        return sum(len(turn.messages) for turn in self.turns)


def load(path: Path) -> Trace:
    """Read a file of JSON lines. Raises TraceError, with the number of the line, for anything else."""
    try:
        with path.open(encoding="utf-8") as lines:
            return parse(lines, path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{str(path)!r} ({error})", "a file of JSON lines in UTF-8", "check the path"
        ) from error


def parse(lines: Iterable[str], name: str = "the trace") -> Trace:
    """The trace that these lines are. Raises TraceError."""
    known: dict[str, Message] = {}
    header: Header | None = None
    turns: list[Turn] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at = f"line {number} of {name}"
        data = _object(line, at)
        if header is None:
            header = _valid(Header, data, at)
        else:
            turns.append(_valid(Turn, _resolved(data, known, at), at))
    if header is None or not turns:
        raise TraceError(
            f"{name} with {len(turns)} turns", "a header and at least one turn", "see docs/simulate.md"
        )
    return Trace.model_construct(header=header, turns=tuple(turns))


def dump(trace: Trace, to: IO[str]) -> None:
    """Inverse of parse, one line a turn."""
    to.write(trace.header.model_dump_json(exclude_defaults=False) + "\n")
    known: set[str] = set()
    for turn in trace.turns:
        page: dict[str, Any] = {"messages": [_written(m, known) for m in turn.messages]}
        if turn.answer is not None:
            page["answer"] = _written(turn.answer, known)
        if turn.window:
            page["window"] = turn.window
        to.write(json.dumps(page, ensure_ascii=False) + "\n")


def save(trace: Trace, path: Path) -> None:
    """Write a file that `load` reads."""
    with path.open("w", encoding="utf-8") as file:
        dump(trace, file)


def _written(message: Message, known: set[str]) -> str | dict[str, Any]:
    if message.id in known:
        return message.id
    known.add(message.id)
    return message.model_dump(exclude_defaults=True)


def _object(line: str, at: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(f"{at}: {error}", "one JSON object a line", "write it with trace.save") from error
    if not isinstance(data, dict):
        raise TraceError(f"{at}: {type(data).__name__}", "one JSON object a line", "write it with trace.save")
    return data


def _resolved(data: dict[str, Any], known: dict[str, Message], at: str) -> dict[str, Any]:
    """The turn with every id replaced by the message it stands for."""
    messages = data.get("messages")
    if isinstance(messages, list):
        data["messages"] = tuple(_message(m, known, at) for m in messages)
    if data.get("answer") is not None:
        data["answer"] = _message(data["answer"], known, at)
    return data


def _message(said: Any, known: dict[str, Message], at: str) -> Message:
    if isinstance(said, str):
        found = known.get(said)
        if found is None:
            raise TraceError(
                f"{at}: message {said!r}", "an id that was met before", "write it out the first time"
            )
        return found
    message = _valid(Message, said, at)
    before = known.setdefault(message.id, message)
    if (before.tokens, before.span) != (message.tokens, message.span):
        got = f"{at}: message {message.id!r} of {message.tokens} tokens"
        raise TraceError(got, f"{before.tokens} tokens, as before", "give other content another id")
    return message


def _valid(kind: type[_T], data: Any, at: str) -> _T:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__.lower()
        raise TraceError(
            f"{at}: {first['msg']} at {where}", f"a {kind.__name__.lower()}", "see docs/simulate.md"
        ) from error
