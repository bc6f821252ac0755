"""From what a caller appends to the pieces of a message: text inside its role's markers, images between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentkv.errors import InvalidInput
from agentkv.inputs import tokenise
from agentkv.media import Tokens
from agentkv.vision import prepare
from agentkv.vision.videos import is_video

if TYPE_CHECKING:
    from agentkv.engine import Engine


def parts_of(content: Any) -> list[Any]:
    """Text and images of one message, in order."""
    mixed = isinstance(content, list | tuple) and any(isinstance(part, str) for part in content)
    return list(content) if mixed else [content]


def is_clip(content: Any) -> bool:
    """Whether ``content`` is a video, each frame of which is a message of its own."""
    return not isinstance(content, str) and len(parts_of(content)) == 1 and is_video(content)


@dataclass(frozen=True)
class Showing:
    """How the pictures of a message are to be shown; see `agentkv.vision.prepare`. room: in tokens."""

    room: int | None = None
    whole: bool = False
    fps: float | None = None

    def of_a_video(self, content: Any) -> None:
        """Raises InvalidInput for settings of a video where ``content`` has none."""
        parts = parts_of(content)
        if (self.whole or self.fps is not None) and not any(
            is_video(part) for part in parts if not isinstance(part, str)
        ):
            raise InvalidInput(
                got=f"whole={self.whole}, fps={self.fps} for a message without a video",
                expected="a video: a `Video`, a list of frames, an array [F, H, W, C], the Path of a file",
                do="leave them out",
            )

    def prepared(self, source: Any, engine: Engine, taken: int = 0) -> list[Tokens]:
        """The chunks of an image or a video. taken: tokens in front of it in the same message."""
        room = None if self.room is None else self.room - taken
        return prepare(source, engine.tower, whole=self.whole, fps=self.fps, room=room)


def pieces(engine: Engine, parts: Sequence[Any], kind: str, showing: Showing) -> list[Tokens]:
    """The tokens of one message. parts: text, images, videos, or `Tokens` of such.

    Text that stands together is tokenised together, the role's markers included. Raises EmptyChunk for a
    message of no token, TooLong, InvalidInput and UnsupportedModel for what the model cannot be shown.
    """
    if all(isinstance(part, str) and not part for part in parts):
        tokenise(engine.tokenizer, "")  # raises: markers around nothing are no message
    marks, found = engine.template.marks(kind), list[Tokens]()
    text = marks.head
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            found += _text(engine, text)
            taken = sum(len(ids) for ids, _ in found)
            found += [part] if isinstance(part, Tokens) else showing.prepared(part, engine, taken)
            text = ""
    return [*found, *_text(engine, text + marks.tail)]


def clip(engine: Engine, content: Any, kind: str, showing: Showing) -> list[list[Tokens]]:
    """The messages of a video: one a frame, or one for all of it."""
    return [pieces(engine, [frame], kind, showing) for frame in showing.prepared(content, engine)]


def preview(parts: Sequence[Any]) -> str:
    """Words for people."""
    return " ".join(part if isinstance(part, str) else "[image]" for part in parts)


def _text(engine: Engine, text: str) -> Iterator[Tokens]:
    if text:
        yield Tokens(tokenise(engine.tokenizer, text))
