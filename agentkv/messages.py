"""From what a caller appends to the pieces of a message: text inside its role's markers, images between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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


def pieces(engine: Engine, parts: Sequence[Any], kind: str) -> list[Tokens]:
    """The tokens of one message. parts: text, images, or `Tokens` of such.

    Text that stands together is tokenised together, the role's markers included. Raises EmptyChunk for a
    message of no token, InvalidInput and UnsupportedModel for what the model cannot be shown.
    """
    if all(isinstance(part, str) and not part for part in parts):
        tokenise(engine.tokenizer, "")  # raises: markers around nothing are no message
    marks, found = engine.template.marks(kind), list[Tokens]()
    text = marks.head
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            shown = [part] if isinstance(part, Tokens) else prepare(part, engine.tower)
            found += [*_text(engine, text), *shown]
            text = ""
    return [*found, *_text(engine, text + marks.tail)]


def clip(engine: Engine, content: Any, kind: str, whole: bool, fps: float | None) -> list[list[Tokens]]:
    """The messages of a video: one a frame, or one for all of it."""
    shown = prepare(content, engine.tower, whole=whole, fps=fps)
    return [pieces(engine, [frame], kind) for frame in shown]


def preview(parts: Sequence[Any]) -> str:
    """Words for people."""
    return " ".join(part if isinstance(part, str) else "[image]" for part in parts)


def _text(engine: Engine, text: str) -> Iterator[Tokens]:
    if text:
        yield Tokens(tokenise(engine.tokenizer, text))
