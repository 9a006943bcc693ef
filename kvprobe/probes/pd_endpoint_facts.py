"""What the servers say of themselves before anything is sent to them, and whether a side channel listens.

vLLM's NIXL side-channel listener has no error handling: a malformed frame ends its thread, and every later
handshake times out while the engine looks healthy. So kvprobe opens a TCP connection, reads the ten bytes with
which every ZMTP peer greets (https://rfc.zeromq.org/spec/23/), sends nothing and closes.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import msgspec

from kvprobe.formats.http_answer import Answer, Explained, explain
from kvprobe.probes.pd_endpoint import Endpoints
from kvprobe.system import System

_GREETING_BYTES = 10
_GREETING_SECONDS = 2.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server by its own account; None: it did not tell."""

    role: str
    url: str
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    metrics: str | None = None
    failure: Explained | None = None
    """Why it does not answer at all, or refuses."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a TCP connection to a side-channel port gave, without a byte sent."""

    host: str
    port: int
    connected: bool
    zmq: bool = False
    """It greeted as a ZMQ socket does."""
    detail: str = ""


def ask_server(ends: Endpoints, role: str) -> Server:
    """Version, models and metrics of one server; only ``/v1/models`` must answer."""
    listed = ends.get(role, "/v1/models")
    failure = explain(ends.name(role), listed)
    if failure is not None:
        return Server(role=role, url=ends.urls[role], failure=failure)
    models = _rows(listed)
    lengths = [m["max_model_len"] for m in models if isinstance(m.get("max_model_len"), int)]
    version = _json(ends.get(role, "/version")).get("version")
    return Server(
        role=role,
        url=ends.urls[role],
        version=version if isinstance(version, str) else None,
        models=tuple(str(m["id"]) for m in models if isinstance(m.get("id"), str)),
        max_model_len=min(lengths) if lengths else None,
        metrics=read_metrics(ends, role),
    )


def read_metrics(ends: Endpoints, role: str, label: str = "") -> str | None:
    """The text of ``/metrics``; None where there is none."""
    answer = ends.get(role, "/metrics", label)
    return answer.body if answer.ok else None


def read_greeting(system: System, host: str, port: int) -> Greeting:
    """Connect, read, close; never sends a byte."""

    def look() -> Any:
        data = b""
        try:
            with (
                socket.create_connection((host, port), timeout=_GREETING_SECONDS) as link,
                contextlib.suppress(TimeoutError),
            ):
                while len(data) < _GREETING_BYTES:
                    piece = link.recv(_GREETING_BYTES - len(data))
                    if not piece:
                        break
                    data += piece
        except (OSError, UnicodeError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return {"connected": False, "greeting": "", "detail": words or type(error).__name__}
        return {"connected": True, "greeting": data.hex(), "detail": ""}

    found = system.observe("greeting", {"host": host, "port": port}, look)
    data = bytes.fromhex(found["greeting"])
    return Greeting(
        host=host,
        port=port,
        connected=found["connected"],
        zmq=len(data) == _GREETING_BYTES and data[0] == 0xFF and data[-1] == 0x7F,
        detail=found["detail"],
    )


def _json(answer: Answer) -> dict[str, Any]:
    if not answer.ok:
        return {}
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _rows(answer: Answer) -> list[dict[str, Any]]:
    rows = _json(answer).get("data")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
