"""What one HTTP call to an inference server gave, and how a failure is told to the operator."""

from __future__ import annotations

import msgspec

from kvprobe.formats.completion import Streamed, error_text

CONNECT, TLS, TIMEOUT, CUT, PROTOCOL, TOO_LARGE = (
    "connect",
    "tls",
    "timeout",
    "cut",
    "protocol",
    "too_large",
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One call. Times are seconds on the clock of the run."""

    started: float
    ended: float
    status: int | None = None
    """None: no HTTP answer at all."""
    body: str = ""
    stream: Streamed | None = None
    failure: str | None = None
    """``connect``, ``tls``, ``timeout``, ``cut``, ``protocol`` or ``too_large``; None if the exchange ended well."""
    detail: str = ""
    left: bool = False
    """kvprobe itself ended a stream that had served its purpose."""

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def ok(self) -> bool:
        return self.failure is None and self.status is not None and 200 <= self.status < 300


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call in words: what happened, and the next step."""

    code: str
    reason: str
    remedy: str


def explain(who: str, answer: Answer) -> Explained | None:
    """Why a call failed, as one sentence about ``who`` (``decode (http://...)``); None if it did not."""
    if answer.failure is not None:
        return _transport(who, answer)
    status = answer.status or 0
    if not 200 <= status < 300:
        return _status(who, status, error_text(answer.body))
    stream = answer.stream
    if stream is None or (answer.left and stream.tokens and stream.error is None):
        return None
    if stream.error is not None:
        if stream.error_code is not None and stream.error_code < 500:
            return _status(who, stream.error_code, stream.error)
        code = "kv_load_failed" if (stream.error_code or 500) >= 500 else "request_refused"
        return Explained(
            code=code,
            reason=f"{who} began to answer and then reported an error: {stream.error}",
            remedy="Read its log around this request; `kvprobe logs` names KV load failures and their causes.",
        )
    if not stream.complete:
        return Explained(
            code="stream_cut",
            reason=f"{who} ended its stream after {len(stream.tokens)} tokens without a finish reason.",
            remedy="Look for a restart of the server, and for time limits or body limits of a proxy in between.",
        )
    if not stream.tokens:
        return Explained(
            code="no_tokens",
            reason=f"{who} answered 200 without a single token.",
            remedy="Ask it for a completion by hand, and read its log.",
        )
    return None


def _transport(who: str, answer: Answer) -> Explained:
    detail = f": {answer.detail}" if answer.detail else ""
    if answer.failure == CONNECT:
        return Explained(
            code="unreachable",
            reason=f"{who} cannot be reached{detail}.",
            remedy="Check the URL, that the server has started (`curl URL/health`), and firewalls in between.",
        )
    if answer.failure == TLS:
        return Explained(
            code="tls_failed",
            reason=f"{who} gave no valid TLS connection{detail}.",
            remedy="Name the authority with --ca-file, or --insecure to skip the check; use http:// if it speaks no TLS.",
        )
    if answer.failure == TIMEOUT:
        return Explained(
            code="timeout",
            reason=f"{who} did not answer within the time limit ({answer.seconds:.1f} s passed).",
            remedy="Look at its queue (vllm:num_requests_waiting) and its log, or raise --timeout.",
        )
    if answer.failure == TOO_LARGE:
        return Explained(
            code="answer_too_large",
            reason=f"{who} sent more than kvprobe reads{detail}.",
            remedy="Check that the URL is a vLLM server.",
        )
    if answer.failure == CUT and answer.status is None:
        return Explained(
            code="connection_closed",
            reason=f"{who} closed the connection without an HTTP answer{detail}.",
            remedy="Look for a crash or restart of the server; check scheme and port (NIXL's side channel is no HTTP).",
        )
    tokens = len(answer.stream.tokens) if answer.stream else 0
    if answer.failure == CUT:
        return Explained(
            code="stream_cut",
            reason=f"{who} closed the connection in the middle of its answer, after {tokens} tokens{detail}.",
            remedy="Look for a crash or restart of the server, and for time limits of a proxy in between.",
        )
    return Explained(
        code="protocol_error",
        reason=f"{who} did not speak HTTP as expected{detail}.",
        remedy="Check scheme and port: the side-channel port of NIXL is not the HTTP port.",
    )


def _status(who: str, status: int, message: str) -> Explained:
    said = f": {message}" if message else ""
    if status in (401, 403) and "scale-out" in message.lower():
        return Explained(
            code="scale_out_disabled",
            reason=f"{who} answered {status}{said}",
            remedy="Start it with --enable-scale-out, as `vllm launch render`, or with --tokens-only.",
        )
    if status in (401, 403):
        return Explained(
            code="unauthorized",
            reason=f"{who} refused the request ({status}){said}",
            remedy="Put the API key into an environment variable and name it with --api-key-env.",
        )
    if status == 404:
        return Explained(
            code="not_found",
            reason=f"{who} does not know the path or the model (404){said}",
            remedy="Check the URL (without /v1) and --model; GET /v1/models lists what it serves.",
        )
    if status in (502, 503, 504):
        return Explained(
            code="upstream_failed",
            reason=f"{who} answered {status}{said}",
            remedy="A proxy has no working server behind it: check prefill and decode directly.",
        )
    if status >= 500:
        return Explained(
            code="kv_load_failed",
            reason=f"{who} answered {status}{said}",
            remedy="With kv_load_failure_policy=fail this is how vLLM ends a request whose KV did not arrive: "
            "read its log (`kvprobe logs FILE`).",
        )
    return Explained(
        code="request_refused",
        reason=f"{who} refused the request ({status}){said}",
        remedy="Read the message: a prompt beyond max_model_len, an unknown field of an old vLLM, or a wrong model.",
    )
