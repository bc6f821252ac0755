"""What the tests of commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from agentkv import cli

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`agentkv` with these arguments in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agentkv", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    return run
