"""The compiled loop: its threads, its callers, where its code is kept, and that it is the one that runs."""

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch
from agentkv_kernels.rotate import native
from agentkv_kernels.rotate.reference import rotate as rotate_reference
from agentkv_kernels.rotate.torch import prepare, rotate, turn

from tests.kernels.kernel_cases import assert_close, nan_slot, rope_for, slot

WIDE = (torch.float32, torch.float64)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Three threads, and parts so small that every one of them gets some."""
    monkeypatch.setattr(native, "PART_BYTES", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "band", "start"), [(64, 64, 0), (81, 62, 7), (16, 2, 13), (5, 4, 0)])
def test_any_band_on_several_threads(
    style: str, dtype: torch.dtype, width: int, band: int, start: int, threads: int
) -> None:
    for tokens, heads in itertools.product((1, 7, 33), (1, 3)):
        x = slot(4, tokens, heads, width, dtype)
        rope = rope_for(x, style=style, band=band, start=start, specs=(1, -1, 0))
        wanted = rotate_reference(x, rope)
        out = nan_slot(4, tokens + 5, heads, width + 3, dtype)
        rows = out[:, 2 : 2 + tokens, :, 1 : 1 + width]
        native.turn(x, rope, rows)
        assert_close(rows, wanted)
        assert int(out.isnan().sum()) == out.numel() - x.numel()
        native.turn(x, rope, x)
        assert torch.equal(x, rows)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_strides_decide_which_loop_runs_and_not_what_comes_out(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = slot(2, 9, 3, 24, torch.float32)
    rope = rope_for(x, style=style, band=12, start=3, specs=(0, -1))
    ran = []
    loop = native.turn
    monkeypatch.setattr(native, "turn", lambda *args: (ran.append(1), loop(*args)))
    dense, gaps = nan_slot(2, 9, 3, 24, x.dtype), nan_slot(2, 9, 3, 48, x.dtype)[..., ::2]
    turn(x, rope, dense)
    assert ran == [1]
    turn(x, rope, gaps)
    assert ran == [1]
    for out in (dense, gaps):
        assert_close(out, rotate_reference(x, rope))


def test_the_loop_is_loaded_once_and_before_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, started = [], threading.Event()

    def slowly(dtype: torch.dtype) -> None:
        started.wait(10)
        compiled.append(dtype)

    monkeypatch.setattr(native, "_compiled", cache(slowly))
    prepare.cache_clear()
    try:
        for dtype in (torch.bfloat16, torch.bfloat16):  # turned in fp32
            prepare(dtype)
        first = threading.Thread(target=native.compile_for, args=(torch.float32,))
        first.start()
        started.set()
        first.join()
        assert compiled == [torch.float32]
    finally:
        prepare.cache_clear()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_the_loop_is_loaded_does_not_inherit_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_compiled", lambda dtype: time.sleep(0.3))
    prepare.cache_clear()
    try:
        prepare(torch.float32)
        child = os.fork()
        if not child:
            os._exit(0 if native._COMPILING.acquire(timeout=10) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        prepare.cache_clear()


def test_callers_on_several_threads_at_once(threads: int) -> None:
    x = slot(3, 130, 3, 64, torch.float32)
    rope = rope_for(x)
    wanted = rotate(x, rope)
    with ThreadPoolExecutor(8) as callers:
        for got in callers.map(lambda _: rotate(x, rope), range(64)):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_nan_and_inf_stay_in_their_pair(style: str, dtype: torch.dtype) -> None:
    x = torch.ones(1, 3, 1, 16, dtype=dtype)
    x[0, 1, 0, 3], x[0, 2, 0, 4] = math.nan, math.inf
    rope = rope_for(x, style=style)
    got, wanted = rotate(x, rope), rotate_reference(x, rope).to(dtype)
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    assert int((~finite).sum()) == 4
    assert_close(got[finite], wanted[finite])


_FIRST_TURN = """
import sys, torch
from agentkv_kernels.registry import pick
rotate = pick("rotate", torch.device("cpu"))
assert "numba" not in sys.modules
from agentkv_kernels.types import Rope
angle = torch.tensor([[[0.5]]])
rope = Rope(angle.cos(), angle.sin(), torch.zeros(1, dtype=torch.int32), "half")
got = rotate(torch.tensor([[[[1.0, 0.0]]]]), rope)
torch.testing.assert_close(got, torch.cat([angle.cos(), angle.sin()], -1)[None])
"""


@pytest.mark.parametrize("place", ["kept", "nowhere"])
def test_code_is_kept_on_disk_where_there_is_a_place_and_runs_without_one(place: str, tmp_path: Path) -> None:
    """In a process of its own. Nobody, root included, can write to a directory that is a file."""
    kept = tmp_path / "kept"
    if place == "nowhere":
        kept.write_text("")
    only = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": str(kept)}
    environment = {**os.environ, **only}
    subprocess.run([sys.executable, "-c", _FIRST_TURN], check=True, env=environment)
    assert kept.is_dir() == (place == "kept")
    assert bool(list(kept.rglob("*.nbi"))) == (place == "kept")


def test_importing_agentkv_does_not_import_numba() -> None:
    code = "import sys, agentkv; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
