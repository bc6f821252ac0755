"""The torch backend and the triton backend pass one conformance suite; here the second, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def test_the_triton_backend_does_what_every_backend_does() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/runtime/interpreted_backend.py",
    ]
    # The variable has to be set before triton is imported, and would change every other test of this process.
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
