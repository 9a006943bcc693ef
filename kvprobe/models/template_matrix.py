"""The chats that kvprobe tests when none is given: plain, a tool call, and the next question after it.

Each runs with every setting of the template's switches, and with a client that returns the reasoning and one that
drops it. What the model would generate is taken from the template itself: the answer as the template prints it,
the reasoning in the form of its family; both are assumptions, and the report says so.
"""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvprobe.formats.chat_template_conversation import Message, Request
from kvprobe.models.template_thinking import FAMILIES, Marks, family_of

REASONING = "The user wants a fact; one short sentence is enough here."
ANSWER = "It is 4 degrees and it rains."
CALL_REASONING = "The weather changes, so the tool has to be asked first."
LONG_QUESTION = (
    "We run a small warehouse with three docks. On Mondays 40 trucks arrive between 6 and 9 in the morning, and the "
    "queue reaches the street. How should the slots be planned so that no truck waits longer than 20 minutes?"
)
LONG_ANSWER = (
    "Spread the arrivals: give each dock a slot of 25 minutes, which makes about 7 trucks per dock in the three hours, 21 in "
    "all, and move the other 19 to the afternoon.\n\n1. Let carriers book their slot the day before.\n2. Keep one dock in "
    "every hour free for late trucks.\n3. Measure the waiting time at the gate, not at the dock.\n\nWith this plan the "
    "expected wait is below 15 minutes as long as fewer than 4 trucks an hour come outside their slot."
)
MAX_SETTINGS = 36
RETURNED, DROPPED, NO_REASONING = "returned", "dropped", "none"

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Malmö", "days": 2}},
}
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,20}\]")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One built-in chat: turn N, the answer, and what comes next."""

    name: str
    title: str
    before: list[Message]
    answer: Message
    after: list[Message]
    reasoning: str
    text: str
    """What must occur in the rendered answer; otherwise the template cannot express it."""
    tools: list[dict[str, Any]] | None = None


def exchanges() -> tuple[Exchange, ...]:
    question = {"role": "user", "content": "What is the weather in Malmö?"}
    call = {"role": "assistant", "content": "", "reasoning": CALL_REASONING, "tool_calls": [_CALL]}
    tool = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "4 C, rain"}
    answer = {"role": "assistant", "content": ANSWER, "reasoning": REASONING}
    thanks = {"role": "user", "content": "And tomorrow?"}
    return (
        Exchange(
            name="plain", title="plain chat",
            before=[question], answer=answer, after=[thanks], reasoning=REASONING, text=ANSWER,
        ),
        Exchange(
            name="tool_step", title="tool call",
            before=[question], answer=call, after=[tool], reasoning=CALL_REASONING, text="get_weather", tools=[_TOOL],
        ),
        Exchange(
            name="after_tool", title="after tool call",
            before=[question, call, tool], answer=answer, after=[thanks], reasoning=REASONING, text=ANSWER, tools=[_TOOL],
        ),
    )  # fmt: skip


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange under one setting of the switches; ``id`` prefixes its renders."""

    id: str
    exchange: Exchange
    kwargs: dict[str, Any]
    now: str

    def turn1(self, client: str) -> Request:
        return self._request(self.exchange.before, client)

    def turn2(self, client: str) -> Request:
        return self._request([*self.exchange.before, self.exchange.answer, *self.exchange.after], client)

    def probes(self) -> dict[str, Request]:
        """Turn N with the answer as its last message, with and without reasoning: how the template writes it."""
        whole = [*self.exchange.before, self.exchange.answer]
        return {"self": self._request(whole, RETURNED), "bare": self._request(whole, NO_REASONING)}

    def _request(self, messages: Sequence[Message], client: str) -> Request:
        sent = [
            m if client == RETURNED else {k: v for k, v in m.items() if k != "reasoning"} for m in messages
        ]
        return Request(
            messages=sent, tools=self.exchange.tools, chat_template_kwargs=self.kwargs, now=self.now
        )


def settings(
    switches: Sequence[dict[str, Any]], fixed: dict[str, Any], now: str
) -> tuple[list[Setting], tuple[str, ...]]:
    """Every exchange under every setting of the switches, and the names of switches that were not varied.

    ``fixed`` are the operator's own template arguments: they hold in every setting. More than ``MAX_SETTINGS``
    combinations: each switch is varied alone.
    """
    varied = {s["name"]: s["values"] for s in switches if s["values"] and s["name"] not in fixed}
    free = tuple(s["name"] for s in switches if not s["values"] and s["name"] not in fixed)
    axes = [[None, *values] for values in varied.values()]
    count = 1
    for axis in axes:
        count *= len(axis)
    choices: Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]
    if count <= MAX_SETTINGS:
        choices = itertools.product(*axes)
    else:
        nothing = tuple(None for _ in axes)
        alone = [(*nothing[:i], v, *nothing[i + 1 :]) for i, axis in enumerate(axes) for v in axis[1:]]
        choices = [nothing, *alone][:MAX_SETTINGS]
    found = []
    for number, choice in enumerate(choices):
        kwargs = {**fixed, **{name: v for name, v in zip(varied, choice, strict=True) if v is not None}}
        found += [
            Setting(id=f"{number}:{exchange.name}", exchange=exchange, kwargs=kwargs, now=now)
            for exchange in exchanges()
        ]
    return found, free


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is assumed to generate in a setting."""

    text: str
    stop_text: str
    thinks: bool


def written(
    setting: Setting,
    turn1: str,
    turn1_open: str,
    bare_open: str,
    rendered: str | None,
    bare: str,
    template: str,
    eos: str,
) -> Written | None:
    """The generated text, from how the template prints the answer (``rendered`` with reasoning, ``bare`` without).

    ``turn1_open`` and ``bare_open`` are turn N without its generation prompt, with and without reasoning in its history.

    None when the template does not print the answer at all (it knows no tool calls).
    """
    if setting.exchange.text not in bare:
        return None
    opened = turn1[len(os.path.commonprefix([turn1, turn1_open])) :]
    marks = _family(template, rendered)
    thinks = marks is not None and marks.closing not in opened
    exchange = setting.exchange
    if rendered is not None and rendered.startswith(turn1) and exchange.text in rendered[len(turn1) :]:
        body = rendered[len(turn1) :]
        if exchange.reasoning in body:
            text, stop = _cut(body, exchange, eos)
            return Written(text=text, stop_text=stop, thinks=True)
    tail = bare[len(os.path.commonprefix([bare_open, bare])) :]
    header = os.path.commonprefix([opened, tail])
    body = tail[len(header) :]
    if marks is not None:
        empty = re.match(re.escape(marks.opening) + r"?\s*" + re.escape(marks.closing) + r"\s*", body)
        body = body[empty.end() :] if empty else body
    text, stop = _cut(body, exchange, eos)
    if not thinks or marks is None:
        return Written(text=text, stop_text=stop, thinks=False)
    start = "" if opened.rstrip().endswith(marks.opening.rstrip()) else marks.opening + marks.after_open
    block = f"{start}{exchange.reasoning}{marks.before_close}{marks.closing}{marks.after_close}"
    prefix = marks.answer_prefix if not exchange.answer.get("tool_calls") else ""
    if prefix and text.startswith(marks.answer_prefix.removeprefix("<|start|>assistant")):
        text = text[len(marks.answer_prefix.removeprefix("<|start|>assistant")) :]
    return Written(text=block + prefix + text, stop_text=stop, thinks=True)


def _family(template: str, rendered: str | None) -> Marks | None:
    """The family whose marks the template prints around reasoning, or else names in its text."""
    for marks in FAMILIES:
        if rendered and marks.opening in rendered and marks.closing in rendered:
            return marks
    return family_of(template)


def _cut(body: str, exchange: Exchange, eos: str) -> tuple[str, str]:
    """The text up to and with the stop token, and the stop token."""
    if exchange.answer.get("tool_calls"):
        text = body.rstrip("\n ")
        if eos and text.endswith(eos):
            return text, eos
        last = list(_SPECIAL.finditer(text))
        if last and last[-1].end() == len(text) and not last[-1][0].startswith("</"):
            return text, last[-1][0]
        return text, ""
    end = body.index(exchange.text) + len(exchange.text)
    rest = body[end:]
    if eos and rest.startswith(eos):
        return body[: end + len(eos)], eos
    match = _SPECIAL.match(rest)
    stop = match[0] if match else ""
    return body[: end + len(stop)], stop
