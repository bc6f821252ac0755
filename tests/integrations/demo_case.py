"""The demo over a tiny random llama: a tokenizer that knows the story's words, and made-up documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentkv import Engine
from agentkv.demo.documents import Document
from agentkv.demo.story import STEPS, SYSTEM, TOOLS, clock
from tests.models import full_precision, tiny_model

LIBRARY = tuple(
    Document(f"pack{i}", " ".join(f"d{i}w{j % 17}" for j in range(20 + 7 * i)), 20 + 7 * i) for i in range(11)
)


CHAT = "{% for m in messages %}<s> {{ m.role }} {{ m.content }} </s> {% endfor %}"


def story_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per word of everything the demo says about LIBRARY. chat: with a chat template."""
    texts = [SYSTEM.format(clock=clock(turn)) for turn in range(len(STEPS))]
    texts += [*TOOLS.values(), *(f"README of {d.name}:\n{d.text}" for d in LIBRARY)]
    texts += [step.question.format(name=d.name) for step in STEPS for d in LIBRARY]
    texts += ["Warm up.", "system user assistant"]
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = CHAT if chat else None
    return tokenizer


@contextmanager
def tiny_engine(chat: bool = True) -> Iterator[Engine]:
    """An fp64 llama with rotary angles in fp64, so that what is exact is exact to 1e-9."""
    tokenizer = story_tokenizer(chat)
    model = tiny_model("llama", vocab_size=len(tokenizer))
    with full_precision(model), Engine.from_model(model, tokenizer) as engine:
        yield engine
