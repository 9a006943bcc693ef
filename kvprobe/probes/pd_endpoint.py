"""HTTP to the servers of a P/D deployment: one call at a time, timed, recorded and replayed through System.

Retries are off and proxies of the environment are ignored, so that what is timed is what was asked. Bodies are
not recorded (they are random token ids made from a recorded seed); answers are.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.formats.completion import read_stream
from kvprobe.formats.http_answer import CONNECT, CUT, PROTOCOL, TIMEOUT, TLS, TOO_LARGE, Answer
from kvprobe.system import System

BODY_LIMIT_BYTES = 64 * 1024 * 1024
_KEEP_ALIVE_SECONDS = 2.0


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the servers."""

    timeout_seconds: float = 60.0
    """Longest silence of a server; a whole call may take longer."""
    connect_seconds: float = 5.0
    ca_file: str | None = None
    insecure: bool = False
    api_key_env: str | None = None
    """Name of the environment variable with the bearer token; its value is never recorded."""


class Burst(msgspec.Struct, frozen=True):
    """Requests sent at the same moment of which only the outcome counts."""

    requests: int
    failed: int
    seconds: float
    first_failure: Answer | None = None


class Endpoints:
    """The deployment's servers by role (``prefill``, ``decode``, ``proxy``, ``colocated``, ``render``)."""

    def __init__(self, system: System, urls: dict[str, str], access: Access) -> None:
        self._system = system
        self.urls = {role: check_url(role, url) for role, url in urls.items()}
        self._access = access
        self._token = system.secret(access.api_key_env) if access.api_key_env else None
        self._epoch = time.perf_counter()
        self._client: Any = None

    def now(self) -> float:
        """Seconds on the clock of the run; for pacing, never part of a result."""
        return round(time.perf_counter() - self._epoch, 6)

    def name(self, role: str) -> str:
        """``decode (http://...)``, as findings name it."""
        return f"{role} ({self.urls[role]})"

    def get(
        self, role: str, path: str, label: str = "", keep: Callable[[str], str] = lambda body: body
    ) -> Answer:
        """One GET; a failure is in the Answer. ``keep`` says what of the body is looked at and recorded."""
        return self._call("GET", role, path, label, None, stream=False, keep=keep)

    def post(
        self, role: str, path: str, body: bytes, label: str, *, headers: dict[str, str] | None = None
    ) -> Answer:
        """One POST of a JSON body, answered as a whole."""
        return self._call("POST", role, path, label, body, stream=False, headers=headers)

    def stream(
        self,
        role: str,
        path: str,
        body: bytes,
        label: str,
        *,
        headers: dict[str, str] | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """One POST, answered as server-sent events; left when ``until`` says so (not a failure)."""
        return self._call("POST", role, path, label, body, stream=True, headers=headers, until=until)

    def burst(
        self, role: str, path: str, requests: Sequence[tuple[bytes, dict[str, str]]], label: str
    ) -> Burst:
        """All bodies (with headers) at once; waits for every answer, and keeps only how many failed and how the first did."""

        def send(one: tuple[bytes, dict[str, str]]) -> Answer:
            return self._exchange("POST", role, path, one[0], False, one[1])

        def look() -> Any:
            pool = ThreadPoolExecutor(len(requests))
            try:
                answers = list(pool.map(send, requests))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C waits for no answer
            failed = [a for a in answers if not a.ok]
            began, ended = min(a.started for a in answers), max(a.ended for a in answers)
            first = failed[0] if failed else None
            return msgspec.to_builtins(Burst(len(answers), len(failed), ended - began, first))

        key = {"role": role, "path": path, "label": label, "requests": len(requests)}
        return msgspec.convert(self._system.observe("http_burst", key, look), Burst)

    def touch(self, *roles: str) -> None:
        """Make sure that a connection is open, so that no timed request pays for connecting; not recorded."""
        if self._system.replayed_from is None:
            for role in roles:
                self._exchange("GET", role, "/health", None, False, {})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _call(
        self,
        method: str,
        role: str,
        path: str,
        label: str,
        body: bytes | None,
        *,
        stream: bool,
        headers: dict[str, str] | None = None,
        until: Callable[[], bool] = lambda: False,
        keep: Callable[[str], str] = lambda body: body,
    ) -> Answer:
        def look() -> Any:
            answer = self._exchange(method, role, path, body, stream, headers or {}, until)
            return msgspec.to_builtins(msgspec.structs.replace(answer, body=keep(answer.body)))

        key = {"role": role, "method": method, "path": path, "label": label}
        return msgspec.convert(self._system.observe("http", key, look), Answer)

    def _exchange(
        self,
        method: str,
        role: str,
        path: str,
        body: bytes | None,
        stream: bool,
        headers: dict[str, str],
        until: Callable[[], bool] = lambda: False,
    ) -> Answer:
        import httpx

        pieces: list[tuple[float, bytes]] = []
        status: int | None = None
        failure, detail, size, left = None, "", 0, False
        client = self._open()
        request = client.build_request(method, self.urls[role] + path, content=body, headers=headers)
        started = self.now()
        try:
            with contextlib.closing(client.send(request, stream=True)) as response:
                status = response.status_code
                for piece in response.iter_raw():
                    pieces.append((self.now(), piece))
                    size += len(piece)
                    if size > BODY_LIMIT_BYTES:
                        failure, detail = TOO_LARGE, f"{size} bytes"
                        break
                    if until():
                        left = True
                        break
        except httpx.HTTPError as error:
            failure, detail = _kind(error, began=status is not None), _words(error)
        ended = self.now()
        good = status is not None and 200 <= status < 300
        return Answer(
            started=started,
            ended=ended,
            status=status,
            body="" if stream and good else b"".join(p for _, p in pieces).decode("utf-8", "replace"),
            stream=read_stream(pieces) if stream and good else None,
            failure=failure,
            detail=detail,
            left=left,
        )

    def _open(self) -> Any:
        if self._client is None:
            import httpx

            access = self._access
            headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            self._client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(access.timeout_seconds, connect=access.connect_seconds),
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=None,
                    # vLLM closes idle connections after 5 s; a request must not meet one that is just closing.
                    keepalive_expiry=_KEEP_ALIVE_SECONDS,
                ),
                verify=_trust(access),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client


def check_url(role: str, text: str) -> str:
    """The base URL without a trailing slash or /v1. Raises UsageError that names the option."""
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"--{role} {text}: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"--{role} {text} is not a URL such as http://node-a:8100.")
    if url.userinfo:
        raise UsageError(
            f"--{role} holds a password, which would be printed and recorded.",
            "Put a bearer token into an environment variable and name it with --api-key-env.",
        )
    if url.query or url.fragment:
        raise UsageError(f"--{role} {text} has a query or fragment; give the server's base URL.")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def host_of(url: str) -> str:
    """The host part of a checked URL, lower case, without brackets."""
    import httpx

    return httpx.URL(url).host.lower()


def _trust(access: Access) -> Any:
    if access.insecure:
        return False
    if access.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca-file {access.ca_file} holds no usable certificates: {error}.") from None


def _kind(error: Exception, *, began: bool) -> str:
    import httpx

    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return TIMEOUT
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        tls = isinstance(error.__cause__ or error, ssl.SSLError) or "SSL" in str(error)
        return TLS if tls else CONNECT
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        closed = not isinstance(error, httpx.RemoteProtocolError) or "without" in str(error)
        return CUT if began or closed else PROTOCOL
    return PROTOCOL


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
