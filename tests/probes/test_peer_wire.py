"""Who may talk to a listening kvprobe: proofs in both directions, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.probes import peer_wire
from kvprobe.probes.peer_gate import Gate
from kvprobe.probes.peer_wire import PeerError, Wire, parse_address

TOKEN = "a token of the tests, long enough"


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate("127.0.0.1", 0, TOKEN, lambda line: None) as open_gate:
        yield open_gate


def call(gate: Gate) -> Wire:
    return Wire(socket.create_connection(("127.0.0.1", gate.port)), "gate")


def test_both_prove_that_they_know_the_token(gate: Gate) -> None:
    wire = call(gate)
    assert wire.greet(TOKEN, 5)["protocol"] == peer_wire.PROTOCOL
    served = gate.next(5)
    assert served is not None and gate.turned_away == {}
    served.send({"hello": 1})
    assert wire.receive(5) == {"hello": 1}
    served.close()
    wire.close()


def test_another_token_is_refused_and_the_gate_stays_open(gate: Gate) -> None:
    wire = call(gate)
    with pytest.raises(PeerError) as caught:
        wire.greet("another token, also long enough", 5)
    assert caught.value.code == "wrong_token"
    wire.close()
    test_both_prove_that_they_know_the_token_again(gate)
    assert gate.turned_away == {"wrong_token": 1}


def test_both_prove_that_they_know_the_token_again(gate: Gate) -> None:
    wire = call(gate)
    wire.greet(TOKEN, 5)
    served = gate.next(5)
    assert served is not None
    served.close()
    wire.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack("!I", 4) + b"null",
        struct.pack("!I", 3000) + b"[" * 3000,
        struct.pack("!I", 20) + b'{"name": "something"',
        struct.pack("!I", 19) + b'{"name":"kvprobe"}  ',
        b"",
    ],
)
def test_a_port_scanner_gets_nothing_and_does_no_harm(gate: Gate, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gate.port)) as scanner:
        # What it sent and nobody read makes the kernel reset the connection, perhaps before it could shut down.
        with contextlib.suppress(OSError):
            scanner.sendall(garbage)
            scanner.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert scanner.recv(100) == b""
    test_both_prove_that_they_know_the_token_again(gate)
    assert sum(gate.turned_away.values()) == 1


def served_by(talk: Callable[[socket.socket], None]) -> Wire:
    """A wire to an impostor that plays ``talk``."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with server, server.accept()[0] as sock:
            talk(sock)

    threading.Thread(target=run, daemon=True).start()
    return Wire(socket.create_connection(server.getsockname()), "impostor")


def frame(sock: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack("!I", sock.recv(4))
    return dict(json.loads(sock.recv(length)))


def put(sock: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    sock.sendall(struct.pack("!I", len(data)) + data)


def test_a_listener_that_plays_our_own_proof_back_is_found_out() -> None:
    def mirror(sock: socket.socket) -> None:
        put(sock, frame(sock))
        put(sock, frame(sock))

    wire = served_by(mirror)
    with pytest.raises(PeerError) as caught:
        wire.greet(TOKEN, 5)
    assert caught.value.code == "wrong_token" and "could not prove" in caught.value.reason
    wire.close()


def test_another_protocol_is_named_by_both_sides(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(sock: socket.socket) -> None:
        frame(sock)
        put(sock, {"name": "kvprobe two nodes", "protocol": 7, "version": "9.9\x1b[2J", "nonce": "00"})

    wire = served_by(newer)
    with pytest.raises(PeerError, match=r"protocol 7 \(kvprobe 9.9\?\[2J\)") as caught:
        wire.greet(TOKEN, 5)
    assert caught.value.code == "protocol_mismatch" and "same kvprobe" in caught.value.remedy
    wire.close()
    old = socket.create_connection(("127.0.0.1", gate.port))
    put(old, {"name": "kvprobe two nodes", "protocol": 0, "version": "0.0", "nonce": "00"})
    assert frame(old)["protocol"] == peer_wire.PROTOCOL
    assert old.recv(1) == b"" and gate.turned_away == {"protocol_mismatch": 1}
    old.close()


def test_a_silent_peer_is_waited_for_no_longer_than_told() -> None:
    release = threading.Event()
    wire = served_by(lambda sock: release.wait(20) and None)
    with pytest.raises(PeerError) as caught:
        wire.greet(TOKEN, 0.3)
    assert caught.value.code == "peer_silent"
    release.set()
    wire.close()


def test_a_session_excludes_other_friends(gate: Gate) -> None:
    gate.expect("ticket")
    other, mine = call(gate), call(gate)
    other.greet(TOKEN, 5)
    mine.greet(TOKEN, 5, ticket="ticket")
    assert (served := gate.next(5)) is not None
    assert other.receive(5) == {"refused": "busy"}
    served.close()
    other.close()
    mine.close()


def test_a_taken_port_and_a_foreign_address_are_told(gate: Gate) -> None:
    with pytest.raises(PeerError, match="taken") as caught:
        Gate("127.0.0.1", gate.port, TOKEN, lambda line: None)
    assert caught.value.code == "port_taken" and str(gate.port) in caught.value.commands[0]
    with pytest.raises(PeerError) as caught:
        Gate("192.0.2.1", 0, TOKEN, lambda line: None)
    assert caught.value.code == "address_not_here"
    with pytest.raises(PeerError) as caught:
        Gate("no-such-host.invalid", 0, TOKEN, lambda line: None)
    assert caught.value.code == "address_unknown"


@pytest.mark.parametrize(
    ("text", "host", "wanted"),
    [
        ("node-a:99", None, ("node-a", 99)),
        ("[fe80::1]:99", None, ("fe80::1", 99)),
        ("99", "127.0.0.1", ("127.0.0.1", 99)),
        ("0.0.0.0", "127.0.0.1", ("0.0.0.0", 18777)),
        ("node-a", None, ("node-a", 18777)),
    ],
)
def test_addresses(text: str, host: str | None, wanted: tuple[str, int]) -> None:
    assert parse_address(text, host) == wanted


@pytest.mark.parametrize("text", ["", ":99", "a:b", "a:99999999", "fe80::1:99", "a:-1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)
