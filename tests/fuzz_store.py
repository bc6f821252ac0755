"""Coverage-guided fuzzing of what reads stored bytes: ``python -m tests.fuzz_store -max_total_time=60``.

Takes libFuzzer's arguments. It starts from one of everything that is stored.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["agentkv.store", "agentkv.saving"]):
    from tests import stored_bytes


def one(data: bytes) -> None:
    """Whatever it is, it is read or refused."""
    stored_bytes.read(data)


def main() -> None:
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(stored_bytes.seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        longest = 2 * max(map(len, stored_bytes.seeds()))
        atheris.Setup([*sys.argv, f"-max_len={longest}", corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
