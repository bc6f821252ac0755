"""Runs interpreted.py, one group of its tests per process; see there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def _run(group: str, marked: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--noconftest",
        "-k",
        group,
        "-m",
        marked,
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--timeout", "1200", str(ROOT / "tests" / "kernels" / "interpreted.py")],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("group", ["test_rotate", "test_place", "test_merge"])
def test_interpreted_triton_kernels_match_their_references(group: str) -> None:
    _run(group, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", ["test_rotate", "test_place"])
def test_interpreted_triton_kernels_match_at_every_combination_of_sizes(group: str) -> None:
    _run(group, "slow")
