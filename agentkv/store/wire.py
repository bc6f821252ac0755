"""Blobs over a connection to a Redis server, without a copy in between and inside a time limit.

redis-py makes the connection (names, TLS, passwords, databases) and speaks for everything small. Its parsers
would copy the bytes of a large reply two or three times; here they go from the socket into the tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions

from agentkv.store.blob import Unreadable

_LONGEST_LINE = 64
_HEAD = 8 << 10


class Wire:
    """One exchange over a redis-py connection that nobody else uses. seconds: for all of it.

    Raises redis-py's exceptions, TimeoutError among them, as it does.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection, self._until = connection, time.monotonic() + seconds
        self.rest = 0
        """Bytes of a bulk that were not read yet."""

    def send(self, *commands: Sequence[Any]) -> None:
        """Small commands."""
        self._wait()
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def send_set(self, name: str, buffers: Sequence[memoryview]) -> None:
        """SET with a value that lies in several places."""
        size, key = sum(b.nbytes for b in buffers), name.encode()
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size)
        for part in (head, *buffers, b"\r\n"):
            self._wait()
            self._connection.send_packed_command([part])

    def reply(self) -> Any:
        """The next reply, of a small command. Raises ResponseError for an error."""
        self._wait()
        return self._connection.read_response(disable_decoding=True)

    def bulk(self) -> int | None:
        """The length of the next reply, whose bytes `fill` gives; None where there is nothing."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            line += self._received(1)
            if len(line) > _LONGEST_LINE:
                break
        try:
            size = int(line.removeprefix(b"$")) if line[:1] == b"$" else None
        except ValueError:
            size = None
        if size is None:
            raise exceptions.ResponseError(line.decode(errors="replace").strip())
        self.rest = max(size, 0)
        return None if size < 0 else size

    def fill(self, buffer: memoryview) -> None:
        """The next bytes of the bulk."""
        flat, at = buffer.cast("B") if buffer.nbytes else buffer, 0
        while at < flat.nbytes:
            self._wait()
            count = self._guarded(self._connection._sock.recv_into, flat[at:])
            at, self.rest = at + count, self.rest - count

    def end(self) -> None:
        """The bulk was read."""
        self._received(2)

    def _received(self, count: int) -> bytes:
        self._wait()
        data: bytes = self._guarded(self._connection._sock.recv, count)
        return data

    def _guarded(self, receive: Any, what: Any) -> Any:
        """Raises redis-py's errors for those of the socket, and for its end."""
        try:
            got = receive(what)
        except TimeoutError as error:
            raise exceptions.TimeoutError("no answer in time") from error
        except OSError as error:
            raise exceptions.ConnectionError(str(error)) from error
        if not got:
            raise exceptions.ConnectionError("the server hung up")
        return got

    def _wait(self) -> None:
        """What is left of the time is what the socket may take next."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise exceptions.TimeoutError("no answer in time")
        self._connection._sock.settimeout(left)


class PartSource:
    """A bulk of which parts are asked for as a `Source`. part: gives the bytes from one place up to another.
    The first ones, a header as a rule, come in one piece."""

    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        self._part, self.size = part, size
        self._first = part(0, min(size, _HEAD))

    def fill(self, at: int, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            stop = at + buffer.nbytes
            data = self._first[at:stop] if stop <= len(self._first) else self._part(at, stop)
            if len(data) != buffer.nbytes:
                raise Unreadable("torn", f"{self.size} bytes")
            buffer[:] = data
            at = stop


class WireSource:
    """The bulk on a wire as a `Source`: its bytes come in order, the first few may be asked for again."""

    def __init__(self, wire: Wire, size: int) -> None:
        self._wire, self.size = wire, size
        self._first, self._at = b"", 0

    def fill(self, at: int, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            if at + buffer.nbytes > self.size:
                raise Unreadable("torn", f"{self.size} bytes")
            known = self._first[at : at + buffer.nbytes]
            if at + len(known) != self._at:
                raise ValueError(f"bytes from {at} on, after {self._at}")  # a blob is read front to back
            buffer[: len(known)] = known
            self._wire.fill(buffer[len(known) :])
            self._at = at = at + buffer.nbytes
            if not self._first:
                self._first = bytes(buffer)
