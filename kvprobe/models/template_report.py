"""``result`` of ``kvprobe template``: the keys of the cases, and the whole matrix beside them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.models.statistics import summarize
from kvprobe.models.template_facts import Cell, Cost, TemplateFacts
from kvprobe.models.template_prefix import Outcome

FIXES = {
    "thinking_dropped_by_template": "Keep bidirectional reuse off for this model, or serve a template that keeps the reasoning (and clients that send it back).",
    "analysis_channel_dropped": "Keep bidirectional reuse off for this model: harmony leaves out the analysis of earlier turns by design.",
    "client_dropped_reasoning": "Let the client send the reasoning back (message field reasoning_content), or keep bidirectional reuse off.",
    "client_sent_inline_thinking": "Let the client send content and reasoning_content apart (start vLLM with --reasoning-parser), not the raw text.",
    "client_rewrote_history": "Not a template matter: the client edits or shortens the history; each edit restarts the cache once. Route such a request without kv_transfer_params of the old turn.",
    "empty_think_block_only_in_generation_prompt": "Render the empty think block for earlier assistant turns too (a template fix), or keep bidirectional reuse off.",
    "tool_call_reserialised": "Print tool calls exactly as the model writes them (a template fix), or keep bidirectional reuse off for chats with tools.",
    "whitespace_trimmed": "Print the content untrimmed (a template fix), or keep bidirectional reuse off.",
    "system_prompt_changed": "Not a template matter: keep system text, tools and template arguments the same within a chat.",
    "date_changed": "Pass a fixed date (date_string, VLLM_SYSTEM_START_DATE) or move the clock to the last user message; else accept a miss at each change.",
    "template_error": "Change the request so that the template accepts it; vLLM answers it with 400 too.",
    "template_rewrote_history": "The template prints earlier messages otherwise than it did in their own turn: keep bidirectional reuse off.",
    "retokenised_at_boundary": "The texts agree and the token ids do not: keep bidirectional reuse off, or end the generation prompt with a special token.",
}
"""What to do about each cause."""


def fix_of(cause: str) -> str | None:
    return FIXES.get(cause)


def result_of(facts: TemplateFacts) -> dict[str, Any]:
    """The command's answer: the cell that decides, then every cell, switches, clock and cost."""
    cell = facts.decisive()
    return {
        **_answer(cell),
        "bidirectional": facts.bidirectional,
        "compared": "text" if cell.tokens is None else "token_ids",
        "compared_note": facts.tokens_note,
        "decided_by": {"exchange": cell.exchange, "client": cell.client, "switches": cell.switches},
        "cells": [
            {
                "exchange": c.exchange,
                "title": c.title,
                "client": c.client,
                "switches": c.switches,
                "default_switches": c.default,
                "supported": c.supported,
                **_answer(c),
            }
            for c in facts.cells
        ],
        "safe_settings": [{"switches": s, "client": client} for s, client in facts.safe_settings()]
        if not facts.given
        else [],
        "switches": list(facts.switches),
        "switches_not_varied": list(facts.not_varied),
        "clock": {"changes_every": facts.clock, "strftime": list(facts.strftime)},
        "cost": cost_summary(facts.cost, facts.rate),
    }


def _answer(cell: Cell) -> dict[str, Any]:
    outcome = cell.outcome
    where = outcome.diverges
    return {
        "exact_prefix": outcome.exact_prefix,
        "exact_prefix_without_stop_text": outcome.exact_prefix_without_stop_text,
        "diverges": where
        and {
            "in": where.place,
            "offset": where.offset,
            "turn1_side": where.turn1_side,
            "turn2_side": where.turn2_side,
        },
        "thinking_dropped": outcome.thinking_dropped,
        "bidirectional_safe": cell.safe,
        "cause": cell.cause,
        "causes": list(outcome.causes),
        "fix": fix_of(cell.cause),
        "template_error": outcome.error,
        "turn1_prompt_chars": outcome.turn1_prompt_chars,
        "generated_chars": outcome.generated_chars,
        "common_prefix_chars": outcome.common_prefix_chars,
        "chars_not_reusable": lost_chars(outcome),
        "tokens": None if cell.tokens is None else msgspec.to_builtins(cell.tokens),
    }


def lost_chars(outcome: Outcome) -> int | None:
    """Characters of turn N and its answer behind the first difference; None when nothing was rendered."""
    if outcome.common_prefix_chars is None or outcome.turn1_prompt_chars is None:
        return None
    return outcome.turn1_prompt_chars + (outcome.generated_chars or 0) - outcome.common_prefix_chars


def lost_share(cell: Cell) -> float | None:
    """Share of turn N (prompt and answer) that turn N+1 cannot reuse, on tokens where they are known."""
    if cell.tokens is not None:
        whole = cell.tokens.turn1 + cell.tokens.generated
        return (whole - cell.tokens.common) / whole if whole else None
    lost = lost_chars(cell.outcome)
    whole = (cell.outcome.turn1_prompt_chars or 0) + (cell.outcome.generated_chars or 0)
    return lost / whole if lost is not None and whole else None


def cpu_per_request(cost: Cost) -> float:
    """Median CPU seconds of rendering and, where measured, tokenising one request."""
    return summarize(cost.render_seconds).median + (
        summarize(cost.tokenise_seconds).median if cost.tokenise_seconds is not None else 0.0
    )


def cost_summary(cost: Cost | None, rate: float | None) -> dict[str, Any] | None:
    """Medians, p90 and the share of one core at ``rate`` requests per second."""
    if cost is None:
        return None
    render = summarize(cost.render_seconds)
    tokenise = summarize(cost.tokenise_seconds) if cost.tokenise_seconds is not None else None
    median = cpu_per_request(cost)
    return {
        "tokens": cost.tokens,
        "tokens_origin": cost.tokens_origin,
        "chars": cost.chars,
        "messages": cost.messages,
        "samples": render.samples,
        "render_seconds_median": render.median,
        "render_seconds_p90": render.p90,
        "tokenise_seconds_median": tokenise.median if tokenise else None,
        "tokenise_seconds_p90": tokenise.p90 if tokenise else None,
        "cpu_seconds_median": median,
        "rate": rate,
        "core_share": median * rate if rate is not None else None,
    }
