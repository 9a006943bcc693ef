"""What the servers say of themselves before anything is sent to them, and whether a side channel listens.

vLLM's NIXL side-channel listener has no error handling: a malformed frame ends its thread, and every later
handshake times out while the engine looks healthy. So kvprobe opens a TCP connection, reads the ten bytes with
which every ZMTP peer greets (https://rfc.zeromq.org/spec/23/), sends nothing and closes.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any

from kvprobe.errors import FormatError
from kvprobe.formats.http_answer import Answer, explain
from kvprobe.formats.vllm_metrics import Scrape, parse_metrics_page
from kvprobe.models.paired_facts import Greeting, Server
from kvprobe.probes.pd_endpoint import Endpoints
from kvprobe.system import System

_GREETING_BYTES = 10
_READ = (
    "vllm:nixl_",
    "vllm:mooncake_",
    "vllm:prompt_tokens_by_source",
    "vllm:num_requests_",
    "vllm:cache_config_info",
)
_MAY_BE_BARE = ("proxy", "render")
"""A router or a render server need not list models."""
_GREETING_SECONDS = 2.0


def ask_server(ends: Endpoints, role: str) -> Server:
    """Version, models and metrics of one server; only ``/v1/models`` must answer."""
    listed = ends.get(role, "/v1/models")
    failure = explain(ends.name(role), listed)
    if failure is not None and role in _MAY_BE_BARE and failure.code in ("not_found", "request_refused"):
        return Server(role=role, url=ends.urls[role])
    if failure is not None:
        return Server(role=role, url=ends.urls[role], failure=failure)
    models = _rows(listed)
    lengths = [m["max_model_len"] for m in models if isinstance(m.get("max_model_len"), int)]
    version = _json(ends.get(role, "/version")).get("version")
    scrape = read_metrics(ends, role, "at start")
    engines = scrape.engines if scrape else ()
    caching = [e.cache_config.get("enable_prefix_caching") for e in engines]
    return Server(
        role=role,
        url=ends.urls[role],
        version=version if isinstance(version, str) else None,
        models=tuple(str(m["id"]) for m in models if isinstance(m.get("id"), str)),
        max_model_len=min(lengths) if lengths else None,
        requests_running=_total(e.requests_running for e in engines),
        requests_waiting=_total(e.requests_waiting for e in engines),
        prefix_caching=caching[0] == "True" if caching and caching[0] is not None else None,
    )


def read_metrics(ends: Endpoints, role: str, label: str) -> Scrape | None:
    """One ``/metrics`` page; None where there is none of vLLM's."""
    answer = ends.get(role, "/metrics", label, keep=read_series)
    if not answer.ok:
        return None
    try:
        scrape = parse_metrics_page(answer.body, f"{ends.name(role)}/metrics")
    except FormatError:
        return None
    return scrape if scrape.is_vllm else None


def read_series(page: str) -> str:
    """The lines of a page that kvprobe reads, without histogram buckets: 2 of 57 kB, and it is read often."""
    return "".join(
        line + "\n" for line in page.splitlines() if line.startswith(_READ) and "_bucket{" not in line
    )


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


def _total(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


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
