"""Random edits of windows with and without images, against transformers' own forward after every commit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.policy import Policy

from agentkv import Engine, Window
from agentkv.cache import Overlay, Run
from agentkv.handles import Handle
from agentkv.models.media_inputs import inputs_for
from agentkv.vision import Video
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import FULL, STRICT, assert_unchanged, snapshot, trusting
from tests.runtime.media.cases import FAMILIES, TALL, WIDE, Patches, axes_of, rig
from tests.tolerances import LOGITS
from tests.vlm_models import picture

ASKED = np.array([60, 71, 84])
FILM = Video([picture(16, 16, seed) for seed in range(3)], fps=2.0)
FILMED = ("qwen2_vl", "qwen3_vl", "adapter")
EDITS = ("text", "text", "show", "show", "evict", "evict", "recall", "move", "replace", "clean", "settle")
STEPS = 30
SHOWN = ("qwen2_vl", "qwen3_vl", "gemma3", "llava", "adapter")
TEXT = ("deepseek_v3", "cohere2", "gpt_oss")
"""A latent cache, layers without positions, sliding layers with sinks."""


class Story:
    """One window, what it should hold, and the dice that say what happens next."""

    def __init__(self, engine: Engine, window: Window, family: str, seed: int) -> None:
        self.engine, self.window, self.family, self.dice = engine, window, family, random.Random(seed)
        self.order, self.gone, self.clean = list[Handle](), list[Handle](), set[Handle]()
        self.done()

    def done(self) -> None:
        self.committed = (list(self.order), list(self.gone), set(self.clean))

    def rolled_back(self) -> None:
        order, gone, clean = self.committed
        self.order, self.gone, self.clean = list(order), list(gone), set(clean)

    def text(self) -> str:
        count = self.dice.randint(1, 12)
        if self.family in FAMILIES:
            return "".join(self.dice.choices("abcdefgh", k=count))
        return " ".join(f"w{self.dice.randint(14, 95)}" for _ in range(count))

    def edit(self) -> None:
        """One random edit, in the window and here."""
        kind, before = self.dice.choice(EDITS), self.dice.choice([None, *self.order])
        at = len(self.order) if before is None else self.order.index(before)
        if kind == "settle":
            self.window.settle()
        elif kind in ("text", "show"):
            found = self.window.append(self.content(kind), before=before)
            self.order[at:at] = found if isinstance(found, tuple) else [found]
        elif kind == "recall" and self.gone:
            back = self.gone.pop(self.dice.randrange(len(self.gone)))
            self.order.insert(at, self.window.recall(back, before=before))
        elif self.order:
            self.edit_of(kind, self.dice.choice(self.order), before)

    def content(self, kind: str) -> Any:
        if kind == "text" or not self.engine.tower.placeholder_ids:
            return self.text()
        films = [FILM] if self.family in FILMED else []
        return self.dice.choice([WIDE, TALL, [self.text(), WIDE, self.text()], *films])

    def edit_of(self, kind: str, handle: Handle, before: Handle | None) -> None:
        entry = self.window.content.get(handle.id)
        assert entry is not None
        if kind == "evict":
            self.window.evict(handle)
            self.order.remove(handle)
            self.gone.append(handle)
        elif kind == "move" and handle is not before:
            self.window.move(handle, before=before)
            self.order.remove(handle)
            self.order.insert(len(self.order) if before is None else self.order.index(before), handle)
        elif kind == "replace" and not entry.media and handle not in self.clean:
            self.gone.append(handle)
            self.order[self.order.index(handle)] = self.window.replace(handle, self.text())
        elif kind == "clean":
            self.window.clean_view(handle, on=handle not in self.clean)
            self.clean ^= {handle}

    def commit(self) -> None:
        """Now and then with a failure first, which takes the edits back."""
        if self.dice.random() < 0.25:
            before = snapshot(self.window)
            with failing(self.engine, self.dice.randint(1, 6)) as calls:
                try:
                    self.window.commit()
                except Boom:
                    self.rolled_back()
                    assert_unchanged(self.window, before)
            assert calls
        self.window.commit()
        self.done()

    def check(self) -> None:
        """Order, positions, and unless something is shown clean, logits."""
        assert [entry.handle for entry in self.window.content.live()] == self.order
        for p in self.window.graph.placements:
            _, media = self.engine.tokens(p.chunk.id)
            offsets = torch.arange(p.chunk.length) if media is None else media.offsets[0]
            assert torch.equal(self.window.kv.positions[p.row : p.stop], p.position + offsets)
        if self.order and not self.clean.intersection(self.order):
            found, wanted = asked(self.window), truth(self.engine, self.window, self.family)
            assert float((found - wanted).abs().max()) <= LOGITS[torch.float64]


class Boom(Exception):
    """Not one of ours."""


@contextmanager
def failing(engine: Engine, after: int) -> Iterator[list[str]]:
    """Let call number ``after`` to the backend fail; yields the calls."""
    calls, backend = ["none so far"], engine.backend

    def counted(name: str) -> Any:
        own = getattr(backend, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == after + 1:  # once: what takes it back needs the backend
                raise Boom(name)
            return own(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("place", "prefill", "canonical", "read"):
            patch.setattr(backend, name, counted(name))
        yield calls


def asked(window: Window) -> torch.Tensor:
    """Logits [3, vocab] of a question behind the window."""
    end = window.graph.placements[-1].position_stop
    cache = Overlay(window.kv, window.kv.end)
    return window.engine.runner.run([Run(window.kv.end, ASKED, end)], cache, keep=len(ASKED))


def truth(engine: Engine, window: Window, family: str) -> torch.Tensor:
    """The same by one forward of transformers over what the messages stand for, in their order."""
    axes = axes_of(family) if family in FAMILIES else 1
    chunks = [engine.tokens(chunk.id) for entry in window.content.live() for _, chunk in entry.parts]
    runs, positions, kinds, at = [], [], [], 0
    for ids, media in [*chunks, (ASKED, None)]:
        runs.append(Run(0, ids, None, media))
        offsets = torch.arange(len(ids)).expand(axes, -1) if media is None else media.offsets
        positions.append(at + offsets)
        at += len(ids) if media is None else media.span
        kinds.append(torch.zeros(len(ids), dtype=torch.int64))
        for a, b in media.both_ways if media else ():
            kinds[-1][a:b] = 1
    inputs = inputs_for(engine.loaded.model, torch.tensor(np.concatenate([run.ids for run in runs])), runs)
    where, blocks = torch.cat(positions, dim=1), torch.cat(kinds)
    more = {"token_type_ids": blocks[None]} if blocks.any() else {}
    with torch.inference_mode():
        out = engine.loaded.model(**inputs, position_ids=where[:, None] if axes > 1 else where, **more)
    return out.logits[0, -len(ASKED) :]


@contextmanager
def built(family: str, costs: CostTable) -> Iterator[Engine]:
    """ "adapter": a llama that sees by one."""
    sees = family in FAMILIES
    found = rig(family) if sees else None
    tiny = found.model if found else tiny_model("llama" if family == "adapter" else family, attention="eager")
    tokenizer = found.processor.tokenizer if found else tiny_tokenizer()
    own: dict[str, Any] = {"vision": Patches()} if family == "adapter" else {}
    own |= {"processor": found.processor} if found else {}
    with ExitStack() as stack:
        stack.enter_context(full_precision(tiny))
        engine = Engine.from_model(tiny, tokenizer, costs=costs, patch_rank=FULL, patch_dtype="model", **own)
        yield stack.enter_context(engine)


RUNS = [
    *(("exact", family) for family in ("qwen3_vl", "gemma3", "cohere2")),
    *(("strict", family) for family in SHOWN),
    *(("patched", family) for family in (*SHOWN, *TEXT)),
]


@pytest.mark.parametrize(("policy", "family"), RUNS)
def test_whatever_is_done_the_window_is_a_reprefill(policy: str, family: str) -> None:
    """exact: computed. strict: moved and loaded where that costs nothing. patched: full-rank patches too."""
    costs = trusting() if policy == "patched" else CostTable.shipped()
    rule: str | Policy = "exact" if policy == "exact" else STRICT
    with built(family, costs) as engine:
        story = Story(engine, engine.window(rule), family, seed=[*SHOWN, *TEXT].index(family))
        fork, seen = None, None
        for step in range(STEPS):
            story.edit()
            if step % 3 == 2:
                story.commit()
                story.check()
            if step == STEPS // 2 and story.order:
                fork = story.window.fork()
                story.done()
                seen = snapshot(fork)
        story.commit()
        story.check()
        if fork is not None and seen is not None:
            assert_unchanged(fork, seen)


def test_an_oracle_that_is_moved_by_one_position_would_show() -> None:
    with built("qwen2_vl", CostTable.shipped()) as engine:
        story = Story(engine, engine.window("exact"), "qwen2_vl", seed=1)
        story.order = [story.window.append("abc"), story.window.append(WIDE)]
        story.window.commit()
        story.check()
        story.window.kv.positions[2] += 1
        with pytest.raises(AssertionError):
            story.check()
        story.window.kv.positions[2] -= 1
        story.window.kv.slots[0][1, 2] += 1e-6
        with pytest.raises(AssertionError):
            story.check()
