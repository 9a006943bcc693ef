"""What the findings about a template say: causes in words, notes, and the way out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvprobe.models.template_facts import ANY, RETURNS, Cell, TemplateFacts
from kvprobe.models.template_report import fix_of

PLACE = {"turn1_prompt": "turn-1 prompt", "generated_text": "generated text"}
SAY = {
    "thinking_dropped_by_template": "the template leaves out the reasoning of earlier turns",
    "analysis_channel_dropped": "harmony's analysis channel is left out of earlier turns",
    "client_dropped_reasoning": "the client did not send the reasoning back",
    "client_sent_inline_thinking": "the client sent raw text with think tags, which the template renders again or strips",
    "client_rewrote_history": "the client shortened or edited earlier messages of the history",
    "empty_think_block_only_in_generation_prompt": "an empty think block stands in the generation prompt and not in the history",
    "tool_call_reserialised": "the tool call is written again in another form than the model generated",
    "whitespace_trimmed": "white space that the model generated is trimmed or added",
    "system_prompt_changed": "the system text, the tools or the template arguments differ between the turns",
    "date_changed": "a date or clock in the prompt has moved on",
    "template_rewrote_history": "the template prints an earlier message otherwise than in its own turn",
    "retokenised_at_boundary": "the texts agree, the token ids do not: tokens merge across the boundary",
}


def explain(facts: TemplateFacts, cell: Cell) -> list[str]:
    outcome = cell.outcome
    notes = []
    if where := outcome.diverges:
        notes.append(
            f"turn 1 and its answer go on with {where.turn1_side!r}, turn 2 with {where.turn2_side!r}"
            f" ({PLACE[where.place]}, character {where.offset})"
        )
    if outcome.block:
        notes.append(f"missing in turn 2: {outcome.block!r}")
    if outcome.kept_inside_turn:
        notes.append(
            "the template keeps reasoning only behind the last user message: tool loops are safe, the next question is not"
        )
    if cell.cause == "empty_think_block_only_in_generation_prompt":
        named = [s["name"] for s in facts.switches if "think" in s["name"] or "reason" in s["name"]]
        notes.append(
            f"no reasoning was generated; the block comes from the generation prompt ({', '.join(named) or 'no switch'})"
        )
    if cell.cause == "client_sent_inline_thinking":
        notes.append("the content that the client sent holds think tags such as </think>")
    if cell.cause == "thinking_dropped_by_template" and not facts.given and cell.client == "returned":
        notes.append("the client did send the reasoning back; the template does not print it")
    if cell.cause == "thinking_dropped_by_template" and facts.reasoning_fields in (
        ("thinking",),
        ("thought",),
    ):
        notes.append(
            f"the template reads message.{facts.reasoning_fields[0]}, vLLM sets reasoning and reasoning_content only"
        )
    if cell.cause == "date_changed":
        forms = ", ".join(facts.strftime) or "a template argument"
        when = "every minute" if facts.clock == "minute" else "at midnight"
        notes.append(f"the date comes from strftime_now {forms} and changes {when}")
        if outcome.same_clock_is_exact:
            notes.append("with the same date in both turns the prefix holds")
    if cell.cause == "client_rewrote_history":
        notes.append("the template is not the cause: the messages of turn 2 do not continue those of turn 1")
    if not facts.given:
        notes.append(
            "built-in chat: the answer is written as the template prints it, an assumption about the model"
        )
    return notes


def other_causes(broken: list[Cell], cell: Cell) -> list[str]:
    first = cell.cause
    notes = [
        f"also: {SAY[cause]} ({other.title}, reasoning {other.client})"
        for other in broken
        for cause in (other.cause,)
        if cause != first
    ]
    later = [SAY[c] for c in cell.outcome.causes if c != first and c in SAY]
    return list(dict.fromkeys([*notes, *(f"behind it: {text}" for text in later)]))


def stop_notes(cells: Iterable[Cell]) -> tuple[str, ...]:
    if any(c.outcome.cause == "stop_text_rewritten" for c in cells):
        return ("only the stop token is printed otherwise in history; no KV exists yet for it",)
    return ()


def assumed_notes(facts: TemplateFacts) -> tuple[str, ...]:
    if not facts.special_tokens_assumed:
        return ()
    names = ", ".join(facts.special_tokens_assumed)
    return (
        f"no tokenizer_config.json beside the template: {names} rendered with stand-ins, the same in both turns",
    )


def remedy_text(facts: TemplateFacts, cell: Cell) -> str:
    text = fix_of(cell.cause) or ""
    safe = [s for s in facts.safe_settings() if s[0] != cell.switches] if not facts.given else []
    if not facts.given and (cell.switches, RETURNS) in facts.safe_settings() and facts.client == ANY:
        return f"Safe with clients that send the reasoning back: confirm that with --client returns. {text}"
    if safe:
        switches, client = safe[0]
        need = ", with clients that send the reasoning back" if client == RETURNS else ""
        told = json.dumps(switches, ensure_ascii=False)
        return f"Safe here with --default-chat-template-kwargs '{told}'{need}. Otherwise: {text[:1].lower()}{text[1:]}"
    return text


def value_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
