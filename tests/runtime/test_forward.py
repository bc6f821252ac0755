"""Our forward over live rows against transformers' own, and that it leaves no trace on the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from agentkv.cache import LiveCache, Overlay, Run, WindowKV
from agentkv.errors import AgentKVError, NonFinite, OutOfMemory
from agentkv.forward import Runner, out_of_memory, own_attention
from agentkv.linear import onednn_linear, routed
from agentkv.models.layouts import layout_of
from tests.models import VOCAB, tiny_model
from tests.runtime.cases import DTYPES, FAMILIES, ids, model
from tests.tolerances import KV, LOGITS, kv_error


class Rig:
    """A tiny model under both forwards."""

    def __init__(self, family: str, dtype: torch.dtype) -> None:
        self.model, self.dtype = model(family, dtype), dtype
        self.runner = Runner(self.model)
        self.layout = layout_of(self.model)

    def kv(self, start: int, end: int) -> WindowKV:
        """Rows filled with NaN, so that reading one too many cannot pass."""
        kv = WindowKV(self.layout, end + 5, self.dtype, torch.device("cpu"))
        for slot in kv.slots:
            slot.fill_(torch.nan)
        kv.start, kv.end = start, end
        return kv

    def ours(self, kv: WindowKV, row: int, tokens: Tensor, keep: int) -> Tensor:
        return self.runner.run([Run(row, tokens)], kv.live(), keep)

    def stock(self, tokens: Tensor, start: int = 0, past: Any = None) -> tuple[Tensor, Any]:
        """transformers' logits ``[T, vocab]`` and cache, positions from ``start`` on."""
        positions = torch.arange(start, start + len(tokens))[None]
        with torch.inference_mode():
            out = self.model(tokens[None], position_ids=positions, cache=past, use_cache=True)
        return out.logits[0], out.past_key_values

    def close(self, found: Tensor, wanted: Tensor) -> bool:
        return float((found - wanted).abs().max()) <= LOGITS[self.dtype]


@pytest.fixture(params=[(f, d) for f in FAMILIES for d in DTYPES], ids=str)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(*request.param)


def tokens(count: int, seed: int = 0) -> Tensor:
    return torch.tensor(ids(count, seed))


@pytest.mark.parametrize("count", [1, 2, 61])
def test_a_prefill_is_transformers_prefill(rig: Rig, count: int) -> None:
    kv, asked = rig.kv(0, count), tokens(count)
    found = rig.ours(kv, 0, asked, keep=count)
    wanted, cache = rig.stock(asked)
    assert found.shape == (count, VOCAB)
    assert rig.close(found, wanted)
    for layer, theirs in enumerate(cache.layers):
        for slot, states in zip(kv.slots, (theirs.keys, theirs.values), strict=True):
            assert kv_error(slot[layer, :count].transpose(0, 1), states[0]) <= KV[rig.dtype]


def test_a_question_over_the_past_is_transformers_question(rig: Rig) -> None:
    every = tokens(90)
    kv = rig.kv(0, 90)
    rig.ours(kv, 0, every[:67], keep=0)
    found = rig.ours(kv, 67, every[67:], keep=23)
    _, past = rig.stock(every[:67])
    assert rig.close(found, rig.stock(every[67:], 67, past)[0])
    assert rig.close(found, rig.stock(every)[0][67:])


def test_a_window_that_starts_anywhere_gives_the_same_logits(rig: Rig) -> None:
    """Rotary attention sees differences of positions: row 500 may be the first one."""
    found = rig.ours(rig.kv(500, 540), 500, tokens(40), keep=40)
    assert rig.close(found, rig.stock(tokens(40))[0])


def test_decode_is_transformers_decode(rig: Rig) -> None:
    kv, past, every = rig.kv(0, 24), None, tokens(24)
    rig.ours(kv, 0, every[:18], keep=0)
    _, past = rig.stock(every[:18])
    for at in range(18, 24):
        wanted, past = rig.stock(every[at : at + 1], at, past)
        assert rig.close(rig.ours(kv, at, every[at : at + 1], keep=1), wanted)


def test_several_runs_in_one_forward_are_forwards_in_turn(rig: Rig) -> None:
    """Chunks to recompute may stand apart; a later one must see what an earlier one just computed."""
    base, together, apart = tokens(80), rig.kv(0, 80), rig.kv(0, 80)
    runs = [Run(10, tokens(9, 1)), Run(30, tokens(1, 2)), Run(55, tokens(25, 3))]
    for kv in (together, apart):
        rig.ours(kv, 0, base, keep=0)
    found = rig.runner.run(runs, together.live(), keep=5)
    for run in runs:
        wanted = rig.runner.run([run], apart.live(), keep=min(5, len(run.ids)))
    assert rig.close(found, wanted)
    for a, b in zip(together.slots, apart.slots, strict=True):
        assert kv_error(a[:, :80], b[:, :80]) <= KV[rig.dtype]


def test_without_logits_only_rows_are_filled(rig: Rig) -> None:
    with_logits, without = rig.kv(0, 20), rig.kv(0, 20)
    rig.ours(with_logits, 0, tokens(20), keep=3)
    assert rig.ours(without, 0, tokens(20), keep=0).shape == (0, 0)
    for a, b in zip(with_logits.slots, without.slots, strict=True):
        assert torch.equal(a[:, :20], b[:, :20])


def test_an_overlay_answers_and_writes_nothing(rig: Rig) -> None:
    every = tokens(50)
    kv = rig.kv(0, 40)
    rig.ours(kv, 0, every[:40], keep=0)
    before = kv.view(0, kv.capacity).clone()
    overlay = Overlay(kv, 40)
    found = [rig.runner.run([Run(40, every[40:47])], overlay, keep=7)]
    found.append(rig.runner.run([Run(47, every[47:])], overlay, keep=3))
    assert rig.close(torch.cat(found), rig.stock(every)[0][40:])
    for a, b in zip(kv.slots, before.slots, strict=True):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_transformers_own_cache_still_works_afterwards(rig: Rig) -> None:
    wanted, _ = rig.stock(tokens(12))
    rig.ours(rig.kv(0, 12), 0, tokens(12), keep=1)
    assert torch.equal(rig.stock(tokens(12), past=DynamicCache())[0], wanted)


def traces(model: Any) -> list[str]:
    """What a forward of ours may have left on a model."""
    left = [name for name, module in model.named_modules() if "forward" in module.__dict__]
    return [*left, model.config._attn_implementation]


@pytest.mark.parametrize("error", [None, RuntimeError("shapes"), MemoryError(), KeyboardInterrupt()])
def test_the_model_is_as_it_was_after_a_forward(error: BaseException | None) -> None:
    tiny = tiny_model(dtype=torch.float32)
    rig = Rig("llama", torch.float32)
    runner = Runner(tiny)
    runner._linears = tuple(m for m in tiny.modules() if isinstance(m, nn.Linear))  # routed on any machine
    before, seen = traces(tiny), list[list[str]]()

    def look(*_: Any) -> None:
        seen.append(traces(tiny))
        if error is not None:
            raise error

    tiny.model.layers[1].register_forward_hook(look)
    kv = rig.kv(0, 5)
    if error is None:
        runner.run([Run(0, tokens(5))], kv.live(), keep=1)
    else:
        with pytest.raises(OutOfMemory if isinstance(error, MemoryError) else type(error)):
            runner.run([Run(0, tokens(5))], kv.live(), keep=1)
    assert seen[0][-1] == "agentkv"
    assert len(seen[0]) > 1
    assert traces(tiny) == before


def test_the_model_is_as_it_was_when_selecting_attention_fails() -> None:
    tiny = tiny_model()
    before = traces(tiny)
    with pytest.raises(ZeroDivisionError), own_attention(tiny):
        raise ZeroDivisionError
    assert traces(tiny) == before


@pytest.mark.parametrize("bias", [True, False])
def test_routed_linears_compute_the_same(bias: bool) -> None:
    linear, x = nn.Linear(24, 40, bias=bias), torch.randn(1, 7, 24)
    with torch.inference_mode(), routed((linear,)):
        assert kv_error(linear(x), nn.Linear.forward(linear, x)) <= KV[torch.float32]
    wanted = onednn_linear(x, linear.weight.detach(), linear.bias.detach() if bias else None)
    assert kv_error(wanted, linear(x).detach()) <= KV[torch.float32]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("keep", [0, 1])
def test_what_is_not_finite_is_an_error(value: float, keep: int) -> None:
    tiny = tiny_model()

    def poison(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[0, -1, 0] = value
        return output

    tiny.model.layers[2].mlp.register_forward_hook(poison)
    with pytest.raises(NonFinite) as caught:
        Runner(tiny).run([Run(0, tokens(6))], Rig("llama", torch.float64).kv(0, 6).live(), keep)
    assert (caught.value.got, caught.value.expected, caught.value.do) != ("", "", "")


def test_only_a_lack_of_memory_is_called_so() -> None:
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    assert out_of_memory(cpu)
    assert out_of_memory(MemoryError())
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not out_of_memory(ValueError("can be anything"))


def test_the_runner_counts_what_it_ran() -> None:
    rig = Rig("llama", torch.float64)
    rig.ours(rig.kv(0, 9), 0, tokens(9), keep=1)
    rig.ours(rig.kv(0, 4), 0, tokens(4), keep=0)
    assert (rig.runner.forwards, rig.runner.tokens) == (2, 13)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_forward_needs_rows_that_exist(count: int) -> None:
    """Tokens behind the end of the buffer must not vanish in silence, a single one neither."""
    rig = Rig("llama", torch.float64)
    kv = rig.kv(0, 4)
    with pytest.raises((RuntimeError, AgentKVError)):
        rig.runner.run([Run(kv.capacity - count + 1, tokens(count))], LiveCache(kv), keep=0)
