"""The conversation between two kvprobes on two nodes: framed JSON, and who may talk at all.

Both sides know a token that never crosses the wire. Each sends a nonce; each proves with HMAC-SHA256 over both
greetings that it knows the token, the connecting side first (it chose whom to call; the listening side may be called
by anybody). A label in the proof keeps one side's from being played back as the other's. The link is authenticated,
not encrypted, as NIXL's own data is not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from typing import Any

from kvprobe import __version__
from kvprobe.errors import ProbeError, UsageError
from kvprobe.models.two_nodes import DEFAULT_PORT, PROTOCOL

_NAME = "kvprobe two nodes"
_STRANGER_BYTES = 4096
_FRIEND_BYTES = 16 * 1024 * 1024
_NONCE_BYTES = 32
MIN_TOKEN = 16
NEW_TOKEN = "export KVPROBE_TOKEN=$(openssl rand -hex 32)"


class PeerError(ProbeError):
    """The two nodes did not come together, or lost each other; ``code`` says how."""

    def __init__(self, code: str, reason: str, remedy: str = "", commands: tuple[str, ...] = ()) -> None:
        super().__init__(reason, remedy, commands)
        self.code = code


def parse_address(text: str, host: str | None = None) -> tuple[str, int]:
    """``HOST:PORT``, ``[IPv6]:PORT``, or with a default ``host`` also ``PORT`` and ``HOST``. Raises UsageError."""
    if host is not None and text.isdecimal():
        name, port = host, text
    elif text.startswith("["):
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        raise UsageError(f"{text!r}: write an IPv6 address in brackets, [{text}]:{DEFAULT_PORT}.")
    else:
        name, _, port = text.partition(":")
    port = port or str(DEFAULT_PORT)
    if not name or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is not HOST:PORT.", f"Such as node-a:{DEFAULT_PORT}.")
    return name, int(port)


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain(value: object, most: int = 500) -> str:
    """What a peer sent, fit for a terminal: no control characters, not endless."""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])


class Wire:
    """A connected socket that carries messages."""

    def __init__(self, sock: socket.socket, who: str) -> None:
        self.sock, self.who = sock, who
        self.limit = _STRANGER_BYTES
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
            # A node that lost its power answers nothing: without this, TCP tries for a quarter of an hour.
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
        ):
            sock.setsockopt(level, option, value)

    def send(self, message: dict[str, Any], *, seconds: float = 10.0) -> bytes:
        """Send one message; returns its bytes. Raises PeerError ``peer_lost``."""
        data = json.dumps(message, separators=(",", ":")).encode()
        try:
            self.sock.settimeout(seconds)
            self.sock.sendall(struct.pack("!I", len(data)) + data)
        except OSError as error:
            raise self._lost(error) from None
        return data

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message. Raises PeerError: ``peer_lost``, ``peer_silent`` or ``not_kvprobe``."""
        return self._message(self._frame(seconds))

    def _frame(self, seconds: float) -> bytes:
        ends = time.monotonic() + seconds
        (length,) = struct.unpack("!I", self._exactly(4, ends, seconds))
        if length > self.limit:
            raise self._stranger()
        return self._exactly(length, ends, seconds)

    def _exactly(self, count: int, ends: float, seconds: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = ends - time.monotonic()
            try:
                if left <= 0:
                    raise TimeoutError
                self.sock.settimeout(left)
                piece = self.sock.recv(min(1 << 20, count - len(data)))
            except TimeoutError:
                raise PeerError("peer_silent", f"{self.who} did not answer within {seconds:.0f} s.", "Is it stopped, or the network cut?") from None  # fmt: skip
            except OSError as error:
                raise self._lost(error) from None
            if not piece:
                raise self._lost(None)
            data += piece
        return bytes(data)

    def _message(self, data: bytes) -> dict[str, Any]:
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            raise self._stranger() from None
        if not isinstance(message, dict):
            raise self._stranger()
        return message

    def _lost(self, error: OSError | None) -> PeerError:
        why = f" ({error.strerror})" if error is not None and error.strerror else ""
        return PeerError("peer_lost", f"{self.who} closed the connection{why}.", "Its own output says why; it may have been killed.")  # fmt: skip

    def _stranger(self) -> PeerError:
        return PeerError("not_kvprobe", f"{self.who} does not speak kvprobe's protocol.", "Is another service on that port?")  # fmt: skip

    def greet(self, token: str, seconds: float, **purpose: str) -> dict[str, Any]:
        """The connecting side's half: greet, prove, check the answer. Returns the listener's greeting."""
        ends = time.monotonic() + seconds
        mine = self.send(_greeting(**purpose))
        raw = self._frame(seconds)
        theirs = self._greeting_of(raw)
        self.send({"proof": _proof(token, b"connect", mine, raw)})
        answer = self.receive(max(0.1, ends - time.monotonic()))
        if answer.get("refused"):
            raise _refused(self.who, answer)
        if not _equal(answer.get("proof"), _proof(token, b"listen", mine, raw)):
            raise PeerError(
                "wrong_token", f"{self.who} could not prove that it knows the token; nothing was sent to it.",
                "Set the same KVPROBE_TOKEN on both nodes; if it is the same, that is not the kvprobe you started.",
            )  # fmt: skip
        self.limit = _FRIEND_BYTES
        return theirs

    def admit(self, token: str, seconds: float) -> dict[str, Any]:
        """The listening side's half; returns the caller's greeting. Raises PeerError for whom it must not serve."""
        ends = time.monotonic() + seconds
        raw = self._frame(seconds)
        hello = self._message(raw)
        if hello.get("name") != _NAME:
            raise self._stranger()
        mine = self.send(_greeting())
        self._greeting_of(raw)
        proof = self.receive(max(0.1, ends - time.monotonic())).get("proof")
        if not _equal(proof, _proof(token, b"connect", raw, mine)):
            self.send({"refused": "wrong_token"})
            raise PeerError("wrong_token", f"{self.who} does not know the token.")
        self.send({"proof": _proof(token, b"listen", raw, mine)})
        self.limit = _FRIEND_BYTES
        return hello

    def _greeting_of(self, raw: bytes) -> dict[str, Any]:
        hello = self._message(raw)
        if hello.get("name") != _NAME or not isinstance(hello.get("nonce"), str):
            raise self._stranger()
        if hello.get("protocol") != PROTOCOL:
            raise PeerError(
                "protocol_mismatch",
                f"{self.who} speaks two-node protocol {plain(hello.get('protocol'), 20)} (kvprobe {plain(hello.get('version'), 40)}), "
                f"this side {PROTOCOL} (kvprobe {__version__}).",
                "Install the same kvprobe on both nodes.",
            )
        return hello

    def close(self) -> None:
        self.sock.close()


def _greeting(**purpose: str) -> dict[str, Any]:
    return {
        "name": _NAME,
        "protocol": PROTOCOL,
        "version": __version__,
        "nonce": secrets.token_hex(_NONCE_BYTES),
        **purpose,
    }


def _proof(token: str, label: bytes, caller: bytes, listener: bytes) -> str:
    told = b"|".join((label, hashlib.sha256(caller).digest(), hashlib.sha256(listener).digest()))
    return hmac.new(token.encode(), told, hashlib.sha256).hexdigest()


def _equal(given: object, wanted: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, wanted)


def _refused(who: str, answer: dict[str, Any]) -> PeerError:
    code = str(answer["refused"])[:40]
    if code == "wrong_token":
        return PeerError(code, f"{who} refused the token.", "Set the same KVPROBE_TOKEN (or --token-file) on both nodes.")  # fmt: skip
    if code == "busy":
        return PeerError(code, f"{who} is measuring with another node.", "Try again when it is done.")
    return PeerError("refused", f"{who} refused: {plain(answer.get('reason', code))}.", plain(answer.get("remedy", "")))  # fmt: skip
