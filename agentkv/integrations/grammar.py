"""Answers that follow a grammar: a JSON schema, or a call of one of some tools (llguidance)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.integrations.calls import Format


class Grammars:
    """Guides for one tokenizer. Making the first one reads the whole vocabulary, about a second."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self.tokenizer, self.stop_ids, self.vocabulary = tokenizer, list(stop_ids), vocabulary

    @cached_property
    def _vocabulary(self) -> Any:
        from llguidance.hf import from_tokenizer

        try:
            return from_tokenizer(self.tokenizer, n_vocab=self.vocabulary, eos_token=self.stop_ids or None)
        except ValueError as error:
            raise InvalidInput(
                got=f"a {type(self.tokenizer).__name__} ({error})",
                expected="a fast tokenizer, which grammars need",
                do="load the model with its fast tokenizer",
            ) from error

    def json(self, schema: Mapping[str, Any]) -> GrammarGuide:
        """An answer that is JSON of this schema. Raises InvalidInput."""
        return self._guide(f"start: {_json(schema)}")

    def call(
        self, form: Format, tools: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None = None
    ) -> GrammarGuide:
        """An answer that is one call of one of these tools, or JSON of ``schema``. Raises InvalidInput."""
        rules = [] if schema is None else [_json(schema)]
        for tool in tools:
            function = tool["function"]
            given = function.get("parameters") or {"type": "object", "properties": {}}
            name = json.dumps(function["name"], ensure_ascii=False)[1:-1]
            opening = self._text(form.opening + name + form.middle)
            rules.append(" ".join([*opening, _json(given), *self._text(form.named(uuid4().hex[:9]))]))
        return self._guide("start: " + "\n     | ".join(rules))

    @cached_property
    def _special(self) -> re.Pattern[str]:
        added = self.tokenizer.added_tokens_decoder.values()
        return re.compile("|".join(f"({re.escape(t.content)})" for t in added if t.special) or "(?!)")

    def _text(self, text: str) -> Iterator[str]:
        """This very text as terms of a grammar; special tokens are no text to it."""
        place = 0
        for match in self._special.finditer(text):
            yield from _quoted(text[place : match.start()])
            yield f"<[{self.tokenizer.convert_tokens_to_ids(match.group())}]>"
            place = match.end()
        yield from _quoted(text[place:])

    def _guide(self, rules: str) -> GrammarGuide:
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_lark(rules)
        problem = LLMatcher.validate_grammar(grammar, self._vocabulary)
        if problem:
            raise InvalidInput(
                got=f"a schema that is no grammar ({problem.splitlines()[0][:160]})",
                expected="a JSON schema",
                do="simplify it; see llguidance's list of what it supports",
            )
        return GrammarGuide(LLMatcher(self._vocabulary, grammar))


class GrammarGuide:
    """What may be said next, by a matcher that follows the answer; `agentkv.sampling.Guide`."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def mask(self, logits: Tensor) -> Tensor:
        """``[1, vocab]``, -inf where the grammar has no such token."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: logits.shape[-1]].astype(bool)
        hidden = torch.ones(logits.shape[-1], dtype=torch.bool)
        hidden[: len(allowed)] = torch.from_numpy(~allowed)
        return logits.masked_fill(hidden.to(logits.device), -torch.inf)

    def push(self, token: int) -> bool:
        """Follow what was said; whether the grammar is at its end."""
        self.matcher.consume_token(token)
        return bool(self.matcher.is_stopped())


def _json(schema: Mapping[str, Any]) -> str:
    # White space between tokens would let a weak model go on with it for ever.
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    closed = schema if _joins(schema) else _closed(schema)
    return "%json " + json.dumps({**closed, "x-guidance": options})


_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("items", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf")
"""Keys of a schema that hold schemas, by name, and one or a list of them. All else is data to it."""


def _within(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in _NAMED:
        if isinstance(named := schema.get(key), Mapping):
            yield from named.values()
    for key in _LISTED:
        yield from found if isinstance(found := schema.get(key), list) else [found]


def _joins(schema: Any) -> bool:
    """Whether an object has to be of several schemas at once somewhere: each describes some of its
    properties, and none may forbid the others'."""
    if not isinstance(schema, Mapping):
        return False
    parts = sum(key in schema for key in ("properties", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"))
    return parts + len(schema.get("allOf", ())) > 1 or any(map(_joins, _within(schema)))


def _closed(schema: Any) -> Any:
    """Without properties that nobody described: a tool would refuse them, and a weak model adds them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key in _NAMED:
        if isinstance(named := schema.get(key), Mapping):
            closed[key] = {name: _closed(value) for name, value in named.items()}
    closed.update({key: _closed(schema[key]) for key in _LISTED if key in schema})
    if isinstance(schema.get("properties"), Mapping):
        closed.setdefault("additionalProperties", False)
    return closed


def _quoted(text: str) -> list[str]:
    return [json.dumps(text)] if text else []
