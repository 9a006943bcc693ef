"""``--conversation FILE``: two requests of one chat and what the model generated in between."""

from __future__ import annotations

import datetime
import json
from typing import Any

import msgspec

from kvprobe.errors import FormatError
from kvprobe.formats.chat_template import parse_object

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_DEPTH_LIMIT = 60


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One chat request as the client sends it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    now: str | None = None
    """Local time at which it is rendered, ISO 8601; None: the time of the test."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Turn N, what the model generated, and turn N+1."""

    turn1: Request
    turn2: Request
    generated_text: str
    """Raw text of turn N, special tokens included."""
    stop_text_in_generated: str | None = None
    special_tokens: dict[str, str] = {}
    model: str = ""
    reasoning_parser: str | None = None

    @property
    def stop_text(self) -> str:
        """The text of the sampled stop token at the end of ``generated_text``; empty when it was cut off."""
        if self.stop_text_in_generated is not None:
            return self.stop_text_in_generated
        eos = self.special_tokens.get("eos_token", "")
        return eos if eos and self.generated_text.endswith(eos) else ""


def parse_conversation(text: str, source: str) -> Conversation:
    """Read a conversation file. Raises FormatError that names the wrong field."""
    data = parse_object(text, source)
    try:
        found = msgspec.convert(data, Conversation)
    except msgspec.ValidationError as error:
        raise FormatError(
            f"{source}: {error}.", "kvprobe explain KVP301 shows the form of this file."
        ) from None
    for name, request in (("turn1", found.turn1), ("turn2", found.turn2)):
        _check(request, f"{source}: {name}")
    if found.stop_text and not found.generated_text.endswith(found.stop_text):
        raise FormatError(
            f"{source}: generated_text does not end with stop_text_in_generated {found.stop_text!r}."
        )
    return found


def _check(request: Request, where: str) -> None:
    if not request.messages:
        raise FormatError(f"{where} has no messages.")
    for index, message in enumerate(request.messages):
        if message.get("role") not in ROLES:
            raise FormatError(
                f"{where}.messages[{index}] has role {message.get('role')!r}.", f"Roles: {', '.join(ROLES)}."
            )
    if _depth(request.messages) > _DEPTH_LIMIT:
        raise FormatError(f"{where} is nested deeper than {_DEPTH_LIMIT} levels.")
    if request.now is not None and not _is_time(request.now):
        raise FormatError(f"{where}.now is {request.now!r}, not an ISO 8601 time.")


def _is_time(text: str) -> bool:
    try:
        return 1900 <= datetime.datetime.fromisoformat(text).year < 9000
    except ValueError:
        return False


def _depth(value: Any) -> int:
    level, deepest = [value], 0
    while level and deepest <= _DEPTH_LIMIT:
        deepest += 1
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return deepest


def as_rendered(message: Message) -> Message:
    """A message as vLLM 0.33 hands it to the template.

    ``reasoning`` and ``reasoning_content`` are both set, arguments of tool calls that are JSON texts become
    objects, and a missing content becomes an empty text (``entrypoints/chat_utils.py``).
    """
    out = dict(message)
    reasoning = out.get("reasoning") if out.get("reasoning") is not None else out.get("reasoning_content")
    if reasoning is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning
    if out.get("content") is None:
        out["content"] = ""
    calls = out.get("tool_calls")
    if isinstance(calls, list):
        out["tool_calls"] = [_call(c) for c in calls]
    return out


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return call
    elif arguments is None:
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}
