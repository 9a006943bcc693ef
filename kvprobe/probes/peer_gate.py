"""The listening end: accepts, authenticates each caller in a thread of its own, and survives whoever else calls."""

from __future__ import annotations

import contextlib
import hmac
import queue
import socket
import threading
import time
from collections.abc import Callable

from kvprobe.probes.peer_wire import PeerError, Wire, show_address

_ADMIT_SECONDS = 5.0
_AT_ONCE = 16


class Gate:
    """A listening socket. Callers that know the token wait in a queue, all others are told apart and counted."""

    def __init__(self, host: str, port: int, token: str, on_turned_away: Callable[[str], None]) -> None:
        try:
            family, _, _, _, where = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._sock = socket.create_server(where[:2], family=family, backlog=64)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        self.port: int = self._sock.getsockname()[1]
        self.address = show_address(host, self.port)
        self.turned_away: dict[str, int] = {}
        self._token = token
        self._told = on_turned_away
        self._admitted: queue.SimpleQueue[tuple[str, Wire]] = queue.SimpleQueue()
        self._ticket = ""
        self._slots = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def expect(self, ticket: str) -> None:
        """From now on only a caller with this ticket is let in; ``""``: whoever knows the token."""
        self._ticket = ticket

    def next(self, seconds: float) -> Wire | None:
        """The next caller that is expected; None when nobody came in time."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            try:
                ticket, wire = self._admitted.get(timeout=min(left, 0.5))
            except queue.Empty:
                continue
            if hmac.compare_digest(ticket.encode(), self._ticket.encode()):
                return wire
            with contextlib.suppress(PeerError):
                wire.send({"refused": "busy"}, seconds=1.0)
            wire.close()
            self._count("busy", f"{wire.who} knows the token, but comes while another session runs")
        return None

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._sock.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                self._count("too_many", f"more than {_AT_ONCE} callers at once")
                sock.close()
                continue
            threading.Thread(target=self._admit, args=(sock, str(address[0])), daemon=True).start()

    def _admit(self, sock: socket.socket, who: str) -> None:
        try:
            wire = Wire(sock, who)
            hello = wire.admit(self._token, _ADMIT_SECONDS)
        except PeerError as error:
            # Counted before the caller sees the end. A port scanner and a health check only connect: not worth a line each.
            self._count(error.code, None if error.code in ("peer_lost", "peer_silent") else error.reason)
            sock.close()
            return
        except OSError:
            sock.close()
            return
        finally:
            self._slots.release()
        ticket = hello.get("ticket", "")
        self._admitted.put((ticket if isinstance(ticket, str) else "?", wire))

    def _count(self, code: str, line: str | None) -> None:
        with self._lock:
            self.turned_away[code] = self.turned_away.get(code, 0) + 1
            first = self.turned_away[code] <= 3
        if line and first:
            self._told(f"turned away: {line.rstrip('.')}")


def _cannot_listen(host: str, port: int, error: OSError) -> PeerError:
    where = show_address(host, port)
    if isinstance(error, socket.gaierror):
        return PeerError("address_unknown", f"{host} cannot be resolved ({error.strerror}).", "Give an address of this node, or 0.0.0.0 for all.")  # fmt: skip
    if error.errno == 98:
        return PeerError(
            "port_taken", f"Port {port} of {host} is taken by another program.",
            "Choose another one with --listen HOST:PORT.", (f"ss -ltnp 'sport = :{port}'",),
        )  # fmt: skip
    if error.errno == 99:
        return PeerError("address_not_here", f"{host} is not an address of this node.", "Give one of its own, or 0.0.0.0 for all.", ("ip -brief address",))  # fmt: skip
    return PeerError("cannot_listen", f"{where} cannot be listened on: {error.strerror}.", "Ports below 1024 need privileges.")  # fmt: skip
