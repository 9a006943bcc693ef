"""The child's half of :mod:`kvprobe.processes`: job in, events and result out, death with the parent."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_ALIVE_SECONDS = 1.0
_MESSAGE_LIMIT_BYTES = 256 * 1024 * 1024


class WorkerFailure(Exception):
    """A failure that the worker understood: reason and remedy, one sentence each."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class PeerGone(WorkerFailure):
    """The sibling process is silent or gone: a symptom, its own report holds the cause."""


class Link:
    """Length-prefixed JSON messages to a sibling process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self.sock.sendall(struct.pack("!I", len(data)) + data)
        except OSError:
            raise PeerGone("The peer process closed the connection.") from None

    def receive(self, timeout_seconds: float) -> dict[str, Any]:
        """The next message. Raises PeerGone when the peer is gone or silent."""
        self.sock.settimeout(timeout_seconds)
        try:
            (length,) = struct.unpack("!I", self._exactly(4))
            if length > _MESSAGE_LIMIT_BYTES:
                raise WorkerFailure(f"The peer announced a message of {length:,} bytes.")
            message: dict[str, Any] = json.loads(self._exactly(length))
        except TimeoutError:
            raise PeerGone(f"The peer process did not answer within {timeout_seconds:.0f} s.") from None
        except OSError:
            raise PeerGone("The peer process closed the connection.") from None
        except ValueError:
            raise WorkerFailure("The peer sent something that is not a message.") from None
        return message

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.sock.recv(min(1 << 20, count - len(data)))
            if not piece:
                raise ConnectionError
            data += piece
        return bytes(data)


class Worker:
    """What a worker function gets: its arguments, its links, and a way to report."""

    def __init__(self, args: dict[str, Any], links: dict[str, Link], event_fd: int) -> None:
        self.args = args
        self.links = links
        self._event_fd = event_fd
        self._lock = threading.Lock()
        self._limit: tuple[float, str] | None = None

    def emit(self, event: str, **fields: Any) -> None:
        """Report one event at once; it survives whatever happens to this process later."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._lock:
            # A view: a long result goes through the pipe in pieces, and copying the rest each time is quadratic.
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._event_fd, rest) :]

    @contextlib.contextmanager
    def limit(self, seconds: float, what: str) -> Iterator[None]:
        """End this process with a clear error if the block takes longer: C code cannot be interrupted otherwise."""
        self._limit = (time.monotonic() + seconds, f"{what} was still running after {seconds:.0f} s.")
        try:
            yield
        finally:
            self._limit = None

    def check_limit(self) -> None:
        if self._limit is not None and time.monotonic() > self._limit[0]:
            self.emit("error", reason=self._limit[1], remedy="")
            os._exit(1)


def main(function: Callable[[Worker], dict[str, Any]]) -> None:
    """Entry point of a worker module: run ``function`` on the job from stdin, report, exit.

    Heavy imports belong inside ``function``. A thread reports ``alive`` every second, so that the parent
    can tell a stopped process from one that waits.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--event-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--link", action="append", default=[])
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.parent:
        os._exit(1)
    faulthandler.enable()
    links = {}
    for text in options.link:
        name, fd = text.rsplit("=", 1)
        links[name] = Link(socket.socket(fileno=int(fd)))
    worker = Worker(json.load(sys.stdin), links, options.event_fd)
    threading.Thread(target=_beat, args=(worker,), daemon=True).start()
    code = 0
    try:
        worker.emit("result", result=function(worker))
    except WorkerFailure as failure:
        kind = "peer" if isinstance(failure, PeerGone) else "raised"
        worker.emit("error", reason=failure.reason, remedy=failure.remedy, kind=kind)
        code = 1
    except Exception as error:  # noqa: BLE001  the last line of defence of this process: report, then die
        traceback.print_exc()
        worker.emit("error", reason=f"{type(error).__name__}: {error}".strip())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # UCX prints through C stdio; what is still in its buffer would be lost in _exit.
    ctypes.CDLL(None).fflush(None)
    # Interpreter teardown of torch and NIXL can hang or crash after all is done.
    os._exit(code)


def _beat(worker: Worker) -> None:
    while True:
        worker.emit("alive")
        worker.check_limit()
        threading.Event().wait(_ALIVE_SECONDS)
