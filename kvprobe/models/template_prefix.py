"""Does turn N+1 begin with turn N and what the model generated, and if not: where and why?"""

from __future__ import annotations

import json
import os.path
import re
from typing import Any

import msgspec

from kvprobe.models.template_request import (
    ANSWER,
    CLOCK,
    EXACT_ANSWER,
    PREFIX,
    RAW_ANSWER,
    Turns,
    answer_index,
    prefix_change,
)
from kvprobe.models.template_thinking import FAMILIES, Block, Generated, find_blocks, is_kept, mentions_marks

_SHOWN = 24
_ALIKE = 12
"""Characters that must agree behind white space to call it the only difference."""
_SPACE = re.compile(r"\s+")
_CALL_MARK = re.compile(r"[\[<{`]|functools|to=")


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first character that differs; ``place`` is ``turn1_prompt`` or ``generated_text``."""

    place: str
    offset: int
    turn1_side: str
    turn2_side: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one exchange; None everywhere when the template refused it."""

    exact_prefix: bool | None
    exact_prefix_without_stop_text: bool | None
    diverges: Divergence | None = None
    thinking_dropped: bool | None = None
    cause: str
    causes: tuple[str, ...] = ()
    """All causes, the first divergence first."""
    turn1_prompt_chars: int | None = None
    generated_chars: int | None = None
    common_prefix_chars: int | None = None
    error: str | None = None
    """The template's own words when it refused."""
    error_turn: int | None = None
    kept_inside_turn: bool = False
    """The reasoning is rendered as long as no further user message follows."""
    same_clock_is_exact: bool = False
    block: str | None = None
    """The reasoning block that is missing, shortened."""

    @property
    def safe(self) -> bool | None:
        """Text alone; token ids may still differ."""
        return self.exact_prefix_without_stop_text


def common_prefix(a: str, b: str) -> int:
    """Length of the common prefix in characters."""
    return len(os.path.commonprefix([a, b]))


def refused(message: str, turn: int) -> Outcome:
    return Outcome(
        exact_prefix=None,
        exact_prefix_without_stop_text=None,
        cause="template_error",
        causes=("template_error",),
        error=message,
        error_turn=turn,
    )


def compare(
    turns: Turns,
    generated_text: str,
    stop_text: str,
    generated: Generated,
    prompts: dict[frozenset[str], str],
    turn1: str,
    turn1_open: str | None,
    inside: str | None = None,
) -> Outcome:
    """Hold turn N+1 against turn N plus the generated text.

    ``prompts``: turn N+1 by set of repairs (:func:`kvprobe.models.template_request.repaired`); ``turn1_open``:
    turn N without its generation prompt; ``inside``: turn N with the answer as its last message.
    """
    whole = turn1 + generated_text
    kept = whole[: len(whole) - len(stop_text)] if stop_text else whole
    second = prompts[frozenset()]
    at = common_prefix(whole, second)
    exact, without = at == len(whole), at >= len(kept)
    blocks = find_blocks(whole)
    dropped = [b for b in blocks if b.inner(whole).strip() and not is_kept(b, whole, second)]
    causes: list[str] = []
    if not exact:
        causes = (
            ["stop_text_rewritten"]
            if without
            else _causes(turns, whole, kept, generated, prompts, turn1, turn1_open)
        )
    divergence = None
    if not exact:
        inside_prompt = at < len(turn1)
        divergence = Divergence(
            place="turn1_prompt" if inside_prompt else "generated_text",
            offset=at if inside_prompt else at - len(turn1),
            turn1_side=whole[at : at + _SHOWN],
            turn2_side=second[at : at + _SHOWN],
        )
    same_clock = prompts.get(frozenset({CLOCK}))
    return Outcome(
        exact_prefix=exact,
        exact_prefix_without_stop_text=without,
        diverges=divergence,
        thinking_dropped=bool(dropped),
        cause=causes[0] if causes else "none",
        causes=tuple(causes),
        turn1_prompt_chars=len(turn1),
        generated_chars=len(generated_text),
        common_prefix_chars=at,
        kept_inside_turn=bool(dropped) and inside is not None and is_kept(dropped[0], whole, inside),
        same_clock_is_exact=not without and same_clock is not None and same_clock.startswith(kept),
        block=_shorten(dropped[0], whole) if dropped else None,
    )


def _causes(
    turns: Turns,
    whole: str,
    kept: str,
    generated: Generated,
    prompts: dict[frozenset[str], str],
    turn1: str,
    turn1_open: str | None,
) -> list[str]:
    """Put one thing right after the other; what moves the first difference back was its cause."""
    applied: frozenset[str] = frozenset()
    current = prompts[applied]
    causes: list[str] = []
    while (at := common_prefix(kept, current)) < len(kept):
        for step in (CLOCK, PREFIX, ANSWER, EXACT_ANSWER, RAW_ANSWER):
            names = (
                applied - {ANSWER, EXACT_ANSWER, RAW_ANSWER}
                if step in (ANSWER, EXACT_ANSWER, RAW_ANSWER)
                else applied
            )
            candidate = prompts.get(names | {step})
            if step in applied or candidate is None or common_prefix(kept, candidate) <= at:
                continue
            causes.append(_cause_of(step, turns, generated))
            applied, current = names | {step}, candidate
            break
        else:
            causes.append(_template_cause(turns, whole, kept, current, at, turn1, turn1_open))
            break
    return list(dict.fromkeys(causes))


def _cause_of(step: str, turns: Turns, generated: Generated) -> str:
    if step == CLOCK:
        return "date_changed"
    if step == PREFIX:
        change = prefix_change(turns)
        return {"history": "client_rewrote_history", "reasoning": "client_dropped_reasoning"}.get(
            change or "", "system_prompt_changed"
        )
    at = answer_index(turns.turn1, turns.turn2)
    message = turns.turn2.messages[at] if at is not None else {}
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    if mentions_marks(text) and step != RAW_ANSWER:
        return "client_sent_inline_thinking"
    sent = message.get("reasoning")
    if step == RAW_ANSWER or (generated.reasoning is not None and not sent):
        return "client_dropped_reasoning"
    pairs = [(generated.reasoning or "", sent if isinstance(sent, str) else "")]
    if not message.get("tool_calls"):
        pairs.append((generated.answer, text))
    same = all(_SPACE.sub("", a) == _SPACE.sub("", b) for a, b in pairs)
    return "whitespace_trimmed" if same else "client_rewrote_history"


def _template_cause(
    turns: Turns, whole: str, kept: str, second: str, at: int, turn1: str, turn1_open: str | None
) -> str:
    """What the template itself does to turn N: read from where the texts part."""
    opened = len(os.path.commonprefix([turn1, turn1_open])) if turn1_open is not None else len(turn1)
    for block in find_blocks(whole):
        if not _reaches(block, whole, at) or is_kept(block, whole, second[min(at, block.start) :]):
            continue
        if block.marks.name == "harmony analysis":
            return "analysis_channel_dropped"
        if not block.inner(whole).strip() and block.end <= len(turn1):
            return "empty_think_block_only_in_generation_prompt"
        return "thinking_dropped_by_template"
    if opened <= at < len(turn1) and any(m.closing in turn1[opened:] for m in FAMILIES[1:]):
        return "empty_think_block_only_in_generation_prompt"
    if _in_tool_call(turns, whole, second, at, len(turn1)):
        return (
            "client_rewrote_history" if _call_edited(turns, whole[len(turn1) :]) else "tool_call_reserialised"
        )
    if _differs_in_space(kept, second, at):
        return "whitespace_trimmed"
    return "template_rewrote_history"


def _differs_in_space(kept: str, second: str, at: int) -> bool:
    """Whether the texts part in white space alone: behind it they go on alike."""
    ours, theirs = kept[at:].lstrip(), second[at:].lstrip()
    if not ours:
        return True
    if not (kept[at : at + 1].isspace() or second[at : at + 1].isspace()):
        return False
    return theirs.startswith(ours[:_ALIKE]) or _SPACE.sub("", theirs).startswith(_SPACE.sub("", ours))


def _reaches(block: Block, whole: str, at: int) -> bool:
    """Whether the texts part inside the block, or in white space directly before it."""
    return block.start <= at < block.end or (at < block.start and not whole[at : block.start].strip())


def _calls(turns: Turns) -> list[dict[str, Any]]:
    at = answer_index(turns.turn1, turns.turn2)
    calls = turns.turn2.messages[at].get("tool_calls") if at is not None else None
    calls = calls if isinstance(calls, list) else []
    return [c["function"] for c in calls if isinstance(c, dict) and isinstance(c.get("function"), dict)]


def _in_tool_call(turns: Turns, whole: str, second: str, at: int, prompt_chars: int) -> bool:
    """Whether the texts part inside the calls that the model wrote, their marks included."""
    names = [name for name in (str(c.get("name", "")) for c in _calls(turns)) if name]
    starts = [s for s in (whole.find(name, prompt_chars) for name in names) if s >= 0]
    if not starts or not any(name in second for name in names):
        return False
    last_block = max((b.end for b in find_blocks(whole) if b.end <= min(starts)), default=prompt_chars)
    opened = _CALL_MARK.search(whole, max(prompt_chars, last_block), min(starts))
    begin = opened.start() if opened else min(starts)
    if at == begin and second[at : at + 1].isspace():
        return not second[at:].lstrip().startswith(whole[begin : begin + 8])
    return at >= begin


def _call_edited(turns: Turns, generated: str) -> bool:
    """Whether the client sent other arguments than the model wrote (only JSON calls can be told)."""
    written: dict[str, list[Any]] = {}
    for value in _json_objects(generated):
        if isinstance(value, dict) and "name" in value:
            written.setdefault(str(value["name"]), []).append(value.get("arguments", value.get("parameters")))
    return any(
        call.get("arguments") not in written[str(call.get("name"))]
        for call in _calls(turns)
        if str(call.get("name")) in written
    )


def _json_objects(text: str) -> list[Any]:
    found, at, decoder = [], 0, json.JSONDecoder()
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
            found.append(value)
        except (ValueError, RecursionError):
            at = start + 1
    return found


def _shorten(block: Block, whole: str) -> str:
    text = whole[block.start : block.end]
    return text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}"
