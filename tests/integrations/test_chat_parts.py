"""What the chat model is made of: content blocks, templates, tool calls, held back text, threads."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentkv import Window
from agentkv.errors import InvalidInput, UnsupportedMessage
from agentkv.integrations.calls import Format, read
from agentkv.integrations.content import mark, turns_of
from agentkv.integrations.grammar import Grammars
from agentkv.integrations.prompt import Prompts
from agentkv.integrations.template import ChatTemplate
from agentkv.integrations.templates import CHATML, HERMES
from agentkv.integrations.threads import Threads
from agentkv.integrations.until import Until
from agentkv.media import Tokens
from agentkv.showing import Message
from agentkv.testing import recording_engine
from tests.integrations.agents_case import LLAMA, picture, tokenizer
from tests.integrations.agents_case import engine as tiny_engine

if TYPE_CHECKING:
    from agentkv.models.hf import LoadedModel

REASONING = """\
{%- for m in messages %}
{%- set content = m.content %}
{%- if m.role == 'assistant' and '</think>' in content and not loop.last %}
{%- set content = content.split('</think>')[-1] %}
{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""As Qwen 3 writes: the reasoning of earlier turns is dropped."""

MERGING = HERMES.replace(
    """{{- '<|im_start|>user\\n<tool_response>""",
    """{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\\n<tool_response>""",
).replace(
    """</tool_response><|im_end|>\\n' }}""",
    """</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}""",
)
"""As Qwen writes: results of tools that follow one another are one message."""

BARE = """\
{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""
"""No special token tells messages apart."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def look(where: str) -> str:
    """Look somewhere."""
    return where


TOOLS = [convert_to_openai_tool(add), convert_to_openai_tool(look)]
CALL: list[BaseMessage] = [
    AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "c1"}]),
    ToolMessage('it is "3"\n', tool_call_id="c1"),
]
TALK: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("hi "),
    AIMessage("hello"),
    HumanMessage("hi "),
]


@pytest.mark.parametrize("source", [CHATML, HERMES, LLAMA, REASONING, BARE, None])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_stretches_are_the_prompt(embedded: LoadedModel, source: str | None, tools: list[Any]) -> None:
    """Joined they are what the template writes, every message is in one of its own, in order."""
    if tools and source not in (HERMES, LLAMA):
        tools = []
    template = ChatTemplate(embedded.tokenizer, source)
    messages = [*TALK[:2], *CALL, *TALK[2:]] if tools else TALK
    turns = turns_of(messages)
    found = template.stretches(turns, tools, answer=True)
    whole = embedded.tokenizer.apply_chat_template(
        [dict(turn.fields) for turn in turns],
        tools=tools or None,
        chat_template=source,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert "".join(stretch.text for stretch in found) + template.marks.head == whole
    assert [s.turn for s in found if s.turn is not None] == list(range(len(messages)))
    for stretch in found:
        if stretch.turn is not None and stretch.turn > 0 and turns[stretch.turn].role == "user":
            assert "hi" in stretch.text
    schemas = [s.text.strip() for s in found if s.turn is None and s.text.startswith("{")]
    assert [json.loads(text) for text in schemas] == tools


SHORT = st.sampled_from(["a", "s", "im", "end", "user", "assistant", "|", "look", "Paris", "12", "1", "<|im"])
ROLES = st.sampled_from([HumanMessage, AIMessage, "calls"])


@settings(deadline=None)  # the tokenizer is loaded at the first
@given(st.lists(st.tuples(ROLES, SHORT), min_size=1, max_size=6))
def test_short_messages_stand_in_their_own_stretches(said: list[tuple[Any, str]]) -> None:
    """However much of the template, or of the calls in front of them, reads as they do."""
    template, messages = ChatTemplate(tokenizer(), HERMES), list[BaseMessage]()
    for role, text in said:
        if role == "calls":
            calls = [{"name": "look", "args": {"where": text}, "id": c} for c in "12"]
            messages += [AIMessage("", tool_calls=calls), *(ToolMessage(text, tool_call_id=c) for c in "12")]
        else:
            messages.append(role(text))
    turns = turns_of(messages)
    alone = [template.text([turn.fields]) for turn in turns]
    assert [s.text for s in template.stretches(turns, [], answer=False)] == alone


@pytest.mark.parametrize("source", [HERMES, MERGING, LLAMA])
def test_a_result_that_echoes_its_call_is_found_behind_it(embedded: LoadedModel, source: str) -> None:
    """What is said of a message holds for its own stretch, and no special token is cut."""
    template = ChatTemplate(embedded.tokenizer, source)
    calls = [{"name": "look", "args": {"where": where}, "id": where} for where in ("Paris", "Rome")]
    results = [ToolMessage(where, tool_call_id=where) for where in ("Paris", "Rome")]
    turns = turns_of([TALK[1], AIMessage("", tool_calls=calls), *results, HumanMessage("a")])
    found = template.stretches(turns, [], answer=True)
    texts = {s.turn: s.text for s in found}
    assert '"Paris"' in texts[1]
    assert '"Rome"' in texts[1] or source is LLAMA  # which writes one call
    assert "Paris" in texts[2]
    assert "look" not in texts[2]
    assert "Rome" in texts[3]
    assert texts[4] == template.text([{"role": "user", "content": "a"}])[-len(texts[4]) :]
    whole, parts = (
        embedded.tokenizer("".join(s.text for s in found)),
        [embedded.tokenizer(s.text) for s in found],
    )
    if source is not MERGING:  # which tells results apart by text alone
        assert whole["input_ids"] == [token for part in parts for token in part["input_ids"]]


def test_a_tokenizer_that_writes_prompts_its_own_way_is_asked(embedded: LoadedModel) -> None:
    class Own(type(embedded.tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, conversation: Any, **_: Any) -> str:
            return "".join(f"[{m['role']}] {m['content']}\n" for m in conversation)

    own = Own.from_pretrained(embedded.tokenizer.name_or_path)
    assert ChatTemplate(own).text([{"role": "user", "content": "hi"}]) == "[user] hi\n"


def test_dropped_reasoning_is_no_loss_of_a_message(embedded: LoadedModel) -> None:
    template = ChatTemplate(embedded.tokenizer, REASONING)
    thought = AIMessage("<think>\nlong\n</think>fine")
    found = template.stretches(turns_of([TALK[1], thought, TALK[3]]), [], answer=True)
    assert [s.text for s in found] == [
        "<|im_start|>user\nhi <|im_end|>\n<|im_start|>assistant\nfine<|im_end|>\n",
        "<|im_start|>user\nhi <|im_end|>\n",
    ]  # what cannot be told apart stays with its neighbour


def test_what_a_template_does_not_write_is_refused(embedded: LoadedModel) -> None:
    own = ChatTemplate(embedded.tokenizer)  # knows no tools
    with pytest.raises(UnsupportedMessage, match=r"the tool 'add'.*templates\.HERMES"):
        own.stretches(turns_of(TALK), TOOLS, answer=True)
    with pytest.raises(UnsupportedMessage, match=r"message 1 \(assistant\)"):
        own.stretches(turns_of([TALK[1], *CALL]), [], answer=True)
    no_tool = "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}"
    with pytest.raises(UnsupportedMessage, match=r"message 2 \(tool\)"):
        ChatTemplate(embedded.tokenizer, no_tool).stretches(turns_of([TALK[1], TALK[2], CALL[1]]), [], False)
    strict = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UnsupportedMessage, match="roles must alternate"):
        ChatTemplate(embedded.tokenizer, strict).stretches(turns_of(TALK), [], True)
    with pytest.raises(UnsupportedMessage, match="no tool calls as JSON"):
        Format.of(own)


def test_a_model_without_a_template_is_refused() -> None:
    engine = recording_engine()
    with pytest.raises(UnsupportedMessage, match="without a chat template"):
        ChatTemplate(engine.tokenizer)


@pytest.mark.parametrize(("source", "key"), [(HERMES, "arguments"), (LLAMA, "parameters")])
def test_calls_are_read_as_the_template_writes_them(embedded: LoadedModel, source: str, key: str) -> None:
    template = ChatTemplate(embedded.tokenizer, source)
    form = Format.of(template)
    assert form.arguments_key == key
    turns = turns_of([TALK[1], *CALL])
    text = template.text([turn.fields for turn in turns[:2]])
    written = text.rpartition(template.marks.head)[2].removesuffix(template.marks.tail)
    (call,) = read(written, form, ["add"]).calls
    assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
    said = read(written, form, ["look"])
    assert not said.calls
    assert "none of the tools" in str(said.invalid[0]["error"])
    broken = read(written[:-14], form, ["add"])
    assert not broken.calls
    assert "not JSON" in str(broken.invalid[0]["error"])
    assert read("Nothing to call.", form, ["add"]).text == "Nothing to call."


def test_text_and_several_calls(embedded: LoadedModel) -> None:
    form = Format.of(ChatTemplate(embedded.tokenizer, HERMES))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    said = read(f"Let me see.\n{call}\n{call}\n<tool_call>\n[1]\n</tool_call>", form, ["add"])
    assert said.text == "Let me see."
    assert [c["name"] for c in said.calls] == ["add", "add"]
    assert len({c["id"] for c in said.calls}) == 2
    assert len(said.invalid) == 1


@given(
    text=st.text(alphabet="ab<>/", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    stops=st.lists(st.sampled_from(["ab", "<b", "/"]), max_size=2),
)
def test_held_back_text_does_not_depend_on_the_pieces(text: str, cuts: list[int], stops: list[str]) -> None:
    """All in front of the first stop is said, and up to the first trigger it is passed on before the end."""
    until, passed, edges = (
        Until(stops, ["<a>"]),
        "",
        sorted({0, *(c for c in cuts if c < len(text)), len(text)}),
    )
    for a, b in pairwise(edges):
        passed += until.push(text[a:b])
        if until.stopped:
            break
    wanted = text[: min((i for s in stops if (i := text.find(s)) >= 0), default=len(text))]
    assert passed + until.rest() == wanted == until.raw
    assert until.stopped == (wanted != text)
    if "<a>" in wanted:
        assert passed == wanted[: wanted.index("<a>")]


IMAGE = base64.b64encode(b"pixels").decode()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "base64": IMAGE, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": IMAGE, "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{IMAGE}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
    ],
)
def test_images_in_every_form(block: dict[str, Any]) -> None:
    (turn,) = turns_of([HumanMessage(["look: ", block, {"type": "text", "text": "!"}])])
    assert turn.images == (b"pixels",)
    assert turn.text == f"look: {mark(0)}!"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (HumanMessage([{"type": "audio", "base64": IMAGE}]), "block of type 'audio'"),
        (HumanMessage([{"type": "image", "url": "https://x/y.png"}]), "https://x/y.png"),
        (HumanMessage([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]), "file:///etc"),
        (HumanMessage([{"type": "image", "base64": "no base64!"}]), "no base64"),
        (HumanMessage("a \ue0f00\ue0f1"), "U\\+E0F0"),
        (HumanMessage("a", additional_kwargs={"agentkv": {"orderfree": True}}), "orderfree"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(message: BaseMessage, said: str) -> None:
    with pytest.raises(UnsupportedMessage, match=said) as refused:
        turns_of([SystemMessage("x"), message])
    assert "message 1 (human)" in str(refused.value)


QUOTING = CHATML.replace("(message.content or '')", "(message.content | tojson(ensure_ascii=True))")


@pytest.mark.parametrize(
    ("template", "arguments"), [(QUOTING, "{}"), (HERMES, "\ue0f00\ue0f1"), (HERMES, "\ue0f07\ue0f1")]
)
def test_a_prompt_shows_each_image_once_or_is_refused(template: str, arguments: str) -> None:
    """A template may lose an image's place, and a call's arguments may look like one."""
    called = AIMessage("", tool_calls=[{"name": "look", "args": {"at": arguments}, "id": "1"}])
    answered = ToolMessage([picture(1)], tool_call_id="1")
    with tiny_engine() as built:
        prompts = Prompts(built, ChatTemplate(built.tokenizer, template))
        with pytest.raises(UnsupportedMessage, match="each image once"):
            prompts.messages([HumanMessage("Look."), *([called] if template is HERMES else []), answered])


def test_roles_pins_and_hints() -> None:
    marked = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    turns = turns_of(
        [
            SystemMessage(marked, id="s"),
            ChatMessage("b", role="critic"),
            HumanMessage("c", additional_kwargs={"agentkv": {"order_free": True}}),
            AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "d"}]),
        ]
    )
    assert [turn.role for turn in turns] == ["system", "critic", "user", "assistant"]
    assert [turn.kind for turn in turns] == ["system", "user", "document", "assistant"]
    assert [turn.pin for turn in turns] == [True, False, False, False]
    assert turns[0].label == "s"
    assert turns[3].text == "d"


def told(window: Window, *texts: str) -> list[Message]:
    ids = (window.engine.tokenizer(text)["input_ids"] for text in texts)
    return [Message((Tokens(np.asarray(i, dtype=np.int64)),), "note") for i in ids]


def test_which_window_a_list_goes_on_in() -> None:
    engine = recording_engine()
    threads, policy = Threads(engine, 4, None), Policy()
    talk = told(engine.window(), "w1 w2 w3 w4 w5 w6", "w7 w8 w9")

    def call(*handles: str, thread: str = "t", owner: str = "") -> tuple[str, str, Window]:
        with threads.lease(thread, owner, handles, talk, policy) as lease:
            lease.window.show(talk)
            lease.window.commit()
            lease.seat.moved(threads.name(thread))
            return lease.how, lease.seat.head, lease.window

    how, first, window = call()
    assert how == "opened"
    how, second, same = call(first)
    assert (how, same) == ("went on", window)
    how, branch, other = call(first)  # back in time
    assert how.startswith("forked")
    assert other is not window
    assert call(second)[2] is window  # and the first branch is as it was
    assert call(branch)[2] is other
    how, _, third = call(owner="critic")  # another agent of the thread has a window of its own
    assert how == "forked: most of the list is in it"
    how, _, again = call(owner="critic")
    assert (how, again) == ("went on: most of it is in the list", third)
    assert call(thread="u")[0] == "opened"  # another thread never sees it
    assert "another model" in call("otherfp:t:1", thread="v")[0]
    assert threads.drop("t") == 2  # four are kept at most
    assert again.closed
    assert "is gone" in call(branch)[0]
    assert len(threads) <= 4
    threads.close()
    assert len(threads) == 0


def test_a_window_in_use_is_forked_and_too_many_are_closed() -> None:
    engine = recording_engine()
    threads, policy = Threads(engine, 2, None), Policy()
    talk = told(engine.window(), "w1 w2 w3")
    with threads.lease("t", "", [], talk, policy) as lease:
        lease.window.show(talk)
        lease.seat.moved("h")
        with threads.lease("t", "", ["h"], talk, policy) as twin:
            assert twin.window is not lease.window
            assert twin.how == "forked: the window is in use"
            assert threads.drop("t") == 2
            assert not lease.window.closed  # until it is given back
    assert lease.window.closed
    assert twin.window.closed
    for number in range(4):
        with threads.lease(f"n{number}", "", [], talk, policy) as lease:
            lease.window.show(talk)
    assert len(threads) == 2
    with threads.lease("refused", "", [], talk, policy) as lease:
        pass
    assert lease.window.closed  # nothing came into it
    assert len(threads) == 2


def test_grammars_close_schemas_and_refuse_what_they_do_not_know(embedded: LoadedModel) -> None:
    grammars = Grammars(embedded.tokenizer, [embedded.tokenizer.eos_token_id], len(embedded.tokenizer))
    guide = grammars.json({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    nothing = torch.zeros(1, len(embedded.tokenizer))
    for token in embedded.tokenizer('{"a": 31', add_special_tokens=False)["input_ids"]:
        assert guide.mask(nothing)[0, token] == 0
        assert not guide.push(token)
    comma, end = (embedded.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in (",", "}"))
    assert guide.mask(nothing)[0, comma] == -torch.inf  # no property that nobody described
    assert guide.mask(nothing)[0, end] == 0
    assert guide.push(end)
    with pytest.raises(InvalidInput, match="a JSON schema"):
        grammars.json({"type": "no such type"})
