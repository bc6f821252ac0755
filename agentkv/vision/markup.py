"""The prompt text around an image: what the model's own chat template writes for one."""

from __future__ import annotations

from typing import Any

from agentkv.errors import InvalidInput

_FRONT, _BACK = "\u2603front\u2603", "\u2603back\u2603"


def markup(processor: Any, modality: str, token: str) -> tuple[str, str]:
    """What the chat template writes in front of and behind ``token`` for one image or video.

    Found by rendering messages with marker texts, so no model's template is known by name: either the
    image stands between the texts around it, or (llava) in front of all text. Nothing on either side
    without a template. Raises InvalidInput for a template that does neither.
    """
    template = getattr(processor, "chat_template", None) or getattr(
        processor.tokenizer, "chat_template", None
    )
    if not template:
        return "", ""
    front, media, back = {"type": "text", "text": _FRONT}, {"type": modality}, {"type": "text", "text": _BACK}
    text = _rendered(processor, template, [front, media, back])
    between = text.partition(_FRONT)[2].partition(_BACK)[0]
    if token not in between:
        text = _rendered(processor, template, [media, back]).partition(_BACK)[0]
        between = text.removeprefix(_rendered(processor, template, [back]).partition(_BACK)[0])
    if between.count(token) != 1:
        raise _odd(f"that does not write {token!r} once for one {modality}")
    before, _, behind = between.partition(token)
    return before, behind


def _rendered(processor: Any, template: str, content: list[dict[str, str]]) -> str:
    message = [{"role": "user", "content": content}]
    try:
        return processor.apply_chat_template(message, chat_template=template, tokenize=False)
    except Exception as error:  # a jinja template raises what it likes
        raise _odd(f"that cannot render a message with media ({error})") from error


def _odd(got: str) -> InvalidInput:
    return InvalidInput(
        got=f"a chat template {got}",
        expected="a template that shows an image where the message has it, or in front",
        do="set processor.chat_template to the template that the model was published with",
    )
