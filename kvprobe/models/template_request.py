"""Which prompts to render for one exchange, so that the cause of a divergence can be found by experiment.

Turn N+1 is rendered as sent, and again with one thing put right at a time: the clock of turn N, the messages
and tools of turn N in front, the answer as the model wrote it. What moves the first difference further back was
its cause; no guess from the template's text.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec

from kvprobe.formats.chat_template_conversation import Message, Request, as_rendered
from kvprobe.models.template_thinking import Generated, mentions_marks

CLOCK, PREFIX, ANSWER, EXACT_ANSWER, RAW_ANSWER = "clock", "prefix", "answer", "exact_answer", "raw_answer"
_ANSWERS = (ANSWER, EXACT_ANSWER, RAW_ANSWER)
_DATE_KEY = re.compile(r"date|time|clock|(^|_)now($|_)|today", re.IGNORECASE)
_SYSTEM_ROLES = ("system", "developer")


class Render(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that the worker shall render."""

    id: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    kwargs: dict[str, Any]
    now: str
    add_generation_prompt: bool = True


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Both requests in the form in which they are rendered."""

    turn1: Request
    turn2: Request


def as_sent(turn1: Request, turn2: Request, now: str) -> Turns:
    """Both requests as vLLM hands them to the template; a request without a clock gets ``now``."""

    def ready(request: Request) -> Request:
        return msgspec.structs.replace(
            request, messages=[as_rendered(m) for m in request.messages], now=request.now or now
        )

    return Turns(turn1=ready(turn1), turn2=ready(turn2))


def render_of(request: Request, id: str, generation: bool = True) -> Render:
    return Render(
        id=id,
        messages=request.messages,
        tools=request.tools,
        kwargs=request.chat_template_kwargs,
        now=request.now or "",
        add_generation_prompt=generation,
    )


def repaired(turns: Turns, generated: Generated) -> dict[frozenset[str], Request]:
    """Turn N+1 with every combination of repairs that changes it; the empty set is turn N+1 as sent."""
    options: list[tuple[str | None, ...]] = [(None, CLOCK), (None, PREFIX), (None, *_ANSWERS)]
    found: dict[frozenset[str], Request] = {}
    seen: list[Request] = []
    for choice in itertools.product(*options):
        names = frozenset(name for name in choice if name)
        request: Request | None = turns.turn2
        for name in (c for c in choice if c):
            request = _repair(name, turns, generated, request) if request else None
        if request is None or (names and request in seen):
            continue
        seen.append(request)
        found[names] = request
    return found


def _repair(name: str, turns: Turns, generated: Generated, request: Request) -> Request | None:
    if name == CLOCK:
        return _with_clock(turns.turn1, request)
    if name == PREFIX:
        return _with_prefix(turns.turn1, request)
    return _with_answer(name, turns.turn1, request, generated)


def _with_clock(turn1: Request, request: Request) -> Request:
    kwargs = {k: v for k, v in request.chat_template_kwargs.items() if not _DATE_KEY.search(k)}
    kwargs |= {k: v for k, v in turn1.chat_template_kwargs.items() if _DATE_KEY.search(k)}
    return msgspec.structs.replace(request, now=turn1.now, chat_template_kwargs=kwargs)


def _with_prefix(turn1: Request, request: Request) -> Request | None:
    start = answer_index(turn1, request)
    if start is None:
        return None
    kwargs = {k: v for k, v in turn1.chat_template_kwargs.items() if not _DATE_KEY.search(k)}
    kwargs |= {k: v for k, v in request.chat_template_kwargs.items() if _DATE_KEY.search(k)}
    return msgspec.structs.replace(
        request,
        messages=[*turn1.messages, *request.messages[start:]],
        tools=turn1.tools,
        chat_template_kwargs=kwargs,
    )


def answer_index(turn1: Request, turn2: Request) -> int | None:
    """Where turn N+1 carries the answer to turn N: the assistant message behind turn N's last message."""
    messages = turn2.messages
    at = len(turn1.messages)
    if (
        at < len(messages)
        and messages[at].get("role") == "assistant"
        and messages[at - 1] == turn1.messages[-1]
    ):
        return at
    for index in range(len(messages) - 1, 0, -1):
        if messages[index].get("role") == "assistant" and messages[index - 1] == turn1.messages[-1]:
            return index
    if at < len(messages) and messages[at].get("role") == "assistant":
        return at
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") == "assistant"), None)


def _with_answer(name: str, turn1: Request, request: Request, generated: Generated) -> Request | None:
    at = answer_index(turn1, request)
    if at is None:
        return None
    message = dict(request.messages[at])
    content = message.get("content")
    sent_reasoning = message.get("reasoning")
    if name == RAW_ANSWER:
        if sent_reasoning is not None or generated.reasoning is None or message.get("tool_calls"):
            return None
        message["content"] = generated.body
    else:
        raw = name == EXACT_ANSWER
        if generated.reasoning is not None:
            text = generated.reasoning if raw else generated.reasoning.strip()
            message["reasoning"] = message["reasoning_content"] = text
        if not message.get("tool_calls") and isinstance(content, str):
            if raw:
                message["content"] = generated.answer
            elif mentions_marks(content):
                message["content"] = generated.answer.strip()
    return msgspec.structs.replace(
        request, messages=[*request.messages[:at], message, *request.messages[at + 1 :]]
    )


def prefix_change(turns: Turns) -> str | None:
    """What the client changed in front of the answer: ``history``, ``reasoning``, ``system``; None for nothing."""
    first, second = turns.turn1, turns.turn2
    ours = [m for m in first.messages if m.get("role") not in _SYSTEM_ROLES]
    theirs = [m for m in second.messages if m.get("role") not in _SYSTEM_ROLES][: len(ours)]
    if theirs != ours:
        same = [_without_reasoning(m) for m in ours] == [_without_reasoning(m) for m in theirs]
        return "reasoning" if same else "history"
    system = [[m for m in r.messages if m.get("role") in _SYSTEM_ROLES] for r in (first, second)]
    if system[0] != system[1] or first.tools != second.tools:
        return "system"
    if first.chat_template_kwargs != second.chat_template_kwargs:
        return "system"
    return None


def _without_reasoning(message: Message) -> Message:
    return {k: v for k, v in message.items() if k not in ("reasoning", "reasoning_content", "thinking")}
