"""Answers of vLLM's OpenAI completions and token-in/token-out endpoints, whole and streamed.

vLLM answers 200 before the first token of a stream is there, so a request that fails later ends in an ``error``
event (vllm/entrypoints/openai/completion/serving.py); a stream that just stops has neither ``finish_reason`` nor
``[DONE]``. ``kv_transfer_params`` come only in whole answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

_TEXT_LIMIT = 400


class TokenEvent(msgspec.Struct, frozen=True, array_like=True):
    """One streamed event that carries output."""

    at_seconds: float
    """On the clock of the run; when the last byte of the event's line had arrived."""
    text: str = ""
    ids: tuple[int, ...] = ()
    """Token ids, where the server sends them; else empty and the event counts as one token."""


class Streamed(msgspec.Struct, frozen=True, kw_only=True):
    """A streamed answer."""

    tokens: tuple[TokenEvent, ...] = ()
    finish_reason: str | None = None
    done: bool = False
    """``[DONE]`` arrived."""
    error: str | None = None
    """An ``error`` event, or what was not understood."""
    error_code: int | None = None

    @property
    def complete(self) -> bool:
        return self.error is None and (self.done or self.finish_reason is not None)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    text: str = ""
    ids: tuple[int, ...] = ()
    kv_transfer_params: Any = None
    """As it came: a dict when all is well, None when the connector did nothing."""
    error: str | None = None


def read_stream(pieces: Iterable[tuple[float, bytes]]) -> Streamed:
    """Server-sent events from ``(seconds, bytes)`` as they arrived. Never raises: damage is told in ``error``."""
    tokens: list[TokenEvent] = []
    finish: str | None = None
    for at, line in _lines(pieces):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return Streamed(tokens=tuple(tokens), finish_reason=finish, done=True)
        event = _object(data)
        if event is None:
            shown = data[:80].decode("utf-8", "replace")
            return Streamed(
                tokens=tuple(tokens), finish_reason=finish, error=f"an event is not JSON: {shown!r}"
            )
        if "error" in event:
            message, code = _error(event)
            return Streamed(tokens=tuple(tokens), finish_reason=finish, error=message, error_code=code)
        for choice in _choices(event):
            reason = choice.get("finish_reason")
            ids = _ids(choice.get("token_ids"))
            text = _text(choice)
            if ids or text or not reason:
                tokens.append(TokenEvent(at, text, ids))
            if isinstance(reason, str):
                finish = reason
    return Streamed(tokens=tuple(tokens), finish_reason=finish)


def read_completion(body: str) -> Completion:
    """A whole answer of the completions, chat or generate endpoint; damage is told in ``error``."""
    answer = _object(body.encode("utf-8", "replace"))
    if answer is None:
        return Completion(error=f"the answer is not a JSON object: {body[:80]!r}")
    if "error" in answer or answer.get("object") == "error":
        return Completion(error=_error(answer)[0])
    choices = _choices(answer)
    if not choices:
        return Completion(
            error="the answer holds no choices", kv_transfer_params=answer.get("kv_transfer_params")
        )
    return Completion(
        text=_text(choices[0]),
        ids=_ids(choices[0].get("token_ids")),
        kv_transfer_params=answer.get("kv_transfer_params"),
    )


def error_text(body: str) -> str:
    """The message of an HTTP error's body, one line, at most 400 characters."""
    answer = _object(body.encode("utf-8", "replace"))
    if answer is not None and ("error" in answer or "message" in answer or "detail" in answer):
        return _error(answer)[0]
    return " ".join(body.split())[:_TEXT_LIMIT]


def _lines(pieces: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, bytes]]:
    rest = b""
    for at, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield at, line.strip()


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error(answer: dict[str, Any]) -> tuple[str, int | None]:
    error = answer.get("error", answer)
    if isinstance(error, dict):
        code = error.get("code")
        message = error.get("message") or error.get("detail") or json.dumps(error)
        return " ".join(str(message).split())[:_TEXT_LIMIT], code if isinstance(code, int) else None
    return " ".join(str(error).split())[:_TEXT_LIMIT], None


def _choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def _text(choice: dict[str, Any]) -> str:
    for source in (choice, choice.get("delta"), choice.get("message")):
        if isinstance(source, dict):
            for key in ("text", "content"):
                if isinstance(source.get(key), str):
                    return str(source[key])
    return ""


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, list) else ()
