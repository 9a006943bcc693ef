"""KVP301 to KVP306: is a chat template safe for bidirectional KV transfer, and what does it cost the front end?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.statistics import summarize
from kvprobe.models.template_facts import ANY, RETURNS, Cell, TemplateFacts
from kvprobe.models.template_report import fix_of, lost_share
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

_GUIDE = "https://docs.vllm.ai/en/latest/features/nixl_connector_usage/"
_ISSUE = "https://github.com/vllm-project/vllm/issues/43094"
_RULE = "turn N+1 begins with turn N and the generated text: vLLM 0.33 compares token counts, not tokens"


def prefix_holds(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP301: the prompt of turn N+1 begins with the prompt of turn N and what the model generated."""
    cell = facts.decisive()
    if cell.safe is None:
        return
    judged = facts.judged()
    broken = [c for c in judged if c.safe is False]
    if not broken:
        yield Finding(
            id="KVP301",
            name="prompt-prefix",
            status=Status.PASS,
            title=_fine(facts, judged),
            where=facts.source,
            evidence=("prefix",),
            notes=(*_stop_notes(judged), *_assumed_notes(facts)),
        )
        return
    share = lost_share(cell)
    unit = "characters" if cell.tokens is None else "token ids"
    effect = "vLLM would use wrong KV, silently" if facts.bidirectional else "off, so only prefix-cache hits are lost"
    yield Finding(
        id="KVP301",
        name="prompt-prefix",
        status=Status.FAIL if facts.bidirectional else Status.PASS,
        title=f"{_broken_title(facts, broken)}; {effect}",
        measured=Quantity(
            value=share,
            unit="ratio",
            note=f"share of turn N that turn N+1 cannot reuse, in {unit} ({cell.title})",
        ),
        expected=Expected(source=_RULE, value=0, unit="ratio"),
        remedy=Remedy(text=_remedy(facts, cell)),
        where=_where(facts, cell),
        notes=(*_explain(facts, cell), *_other_causes(broken, cell), *_stop_notes(judged), *_assumed_notes(facts)),
        links=(_ISSUE, _GUIDE),
        evidence=("prefix",),
        code=cell.cause,
    )


def _fine(facts: TemplateFacts, judged: tuple[Cell, ...]) -> str:
    what = "token ids" if any(c.tokens for c in judged) else "text"
    if facts.given:
        return f"turn 2 begins with turn 1 and the generated text, compared on {what}"
    kinds = ", ".join(dict.fromkeys(c.title for c in judged))
    return f"the prefix holds in all {len(judged)} chats tested ({kinds}), compared on {what}"


def _broken_title(facts: TemplateFacts, broken: list[Cell]) -> str:
    cell = broken[0]
    if facts.given:
        where = cell.outcome.diverges
        place = f" at character {where.offset} of the {_PLACE[where.place]}" if where else ""
        return f"turn 2 leaves turn 1{place}: {_SAY[cell.cause]}"
    return f"{len(broken)} of {len(facts.judged())} chats break the prefix: {_SAY[cell.cause]}"


_PLACE = {"turn1_prompt": "turn-1 prompt", "generated_text": "generated text"}
_SAY = {
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


def _where(facts: TemplateFacts, cell: Cell) -> str:
    switches = ", ".join(f"{k}={_value(v)}" for k, v in cell.switches.items())
    return f"{facts.source}" + (f" with {switches}" if switches else "")


def _explain(facts: TemplateFacts, cell: Cell) -> list[str]:
    outcome = cell.outcome
    notes = []
    if where := outcome.diverges:
        notes.append(
            f"turn 1 and its answer go on with {where.turn1_side!r}, turn 2 with {where.turn2_side!r}"
            f" ({_PLACE[where.place]}, character {where.offset})"
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
    if cell.cause == "thinking_dropped_by_template" and facts.reasoning_fields in (("thinking",), ("thought",)):
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


def _other_causes(broken: list[Cell], cell: Cell) -> list[str]:
    first = cell.cause
    notes = [
        f"also: {_SAY[cause]} ({other.title}, reasoning {other.client})"
        for other in broken
        for cause in (other.cause,)
        if cause != first
    ]
    later = [_SAY[c] for c in cell.outcome.causes if c != first and c in _SAY]
    return list(dict.fromkeys([*notes, *(f"behind it: {text}" for text in later)]))


def _stop_notes(cells: Iterable[Cell]) -> tuple[str, ...]:
    if any(c.outcome.cause == "stop_text_rewritten" for c in cells):
        return ("only the stop token is printed otherwise in history; no KV exists yet for it",)
    return ()


def _assumed_notes(facts: TemplateFacts) -> tuple[str, ...]:
    if not facts.special_tokens_assumed:
        return ()
    names = ", ".join(facts.special_tokens_assumed)
    return (f"no tokenizer_config.json beside the template: {names} rendered with stand-ins, the same in both turns",)


def _remedy(facts: TemplateFacts, cell: Cell) -> str:
    text = fix_of(cell.cause) or ""
    safe = [s for s in facts.safe_settings() if s[0] != cell.switches] if not facts.given else []
    if not facts.given and (cell.switches, RETURNS) in facts.safe_settings() and facts.client == ANY:
        return f"Safe with clients that send the reasoning back: confirm that with --client returns. {text}"
    if safe:
        switches, client = safe[0]
        need = ", with clients that send the reasoning back" if client == RETURNS else ""
        told = json.dumps(switches, ensure_ascii=False)
        return f"Safe here with --default-chat-template-kwargs '{told}'{need}. Otherwise: {text}"
    return text


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def template_renders(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP302: the template accepts the conversation and ends in time."""
    cell = facts.decisive()
    if cell.safe is None:
        yield Finding(
            id="KVP302",
            name="template-renders",
            status=Status.UNKNOWN,
            title=f"the template refuses turn {cell.outcome.error_turn}: {cell.outcome.error}",
            remedy=Remedy(text=fix_of("template_error") or ""),
            where=facts.source,
            code="template_error",
        )
        return
    for other in (c for c in facts.cells if c.default and not c.supported):
        yield Finding(
            id="KVP302",
            name="template-renders",
            status=Status.SKIP,
            title=f"not tested: {other.title} ({other.outcome.error})",
            where=facts.source,
        )


def token_ids(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP303: the prefix holds on token ids, not only on text."""
    cell = facts.decisive()
    if cell.safe is None:
        return
    if facts.tokens_note:
        yield Finding(
            id="KVP303",
            name="prefix-on-token-ids",
            status=Status.SKIP,
            title=f"token ids not compared, text only: {facts.tokens_note}",
        )
    elif all(c.safe for c in facts.judged()):
        counted = [c.tokens for c in facts.judged() if c.tokens]
        ids = sum(t.turn1 + t.generated for t in counted)
        yield Finding(
            id="KVP303",
            name="prefix-on-token-ids",
            status=Status.PASS,
            title=f"all {ids:,} token ids of turn N agree in {len(counted)} chats",
            notes=("the generated text is encoded again; the ids that the model samples may still differ",),
            evidence=("prefix",),
        )


def render_cost(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP304: one core of the front end can render and tokenise the asked request rate."""
    if facts.cost is None:
        if facts.cost_error:
            yield Finding(
                id="KVP304",
                name="render-cost",
                status=Status.SKIP,
                title=f"CPU cost not measured: {facts.cost_error[:200]}",
            )
        return
    cost = facts.cost
    figure = summarize(cost.cpu_seconds)
    what = (
        "rendering and tokenising"
        if cost.tokenise_seconds is not None
        else "rendering alone (tokenising not measured)"
    )
    count = (
        f"{cost.tokens:,} tokens"
        if cost.tokens_origin == "measured"
        else f"about {cost.tokens:,} tokens (assumed, 4 characters each)"
    )
    title = f"{what} a chat of {count} takes {figure.median * 1e3:.3g} ms of CPU"
    status, expected, remedy = Status.PASS, None, None
    if facts.rate is not None:
        threshold = policy.threshold("frontend_core_share")
        share = figure.median * facts.rate
        status = threshold.status(share)
        title += f", {share * 100:.3g} % of a core at {facts.rate:g} requests/s"
        expected = Expected(source=policy.cite("frontend_core_share"), max=threshold.warn_above, unit="ratio")
        if status is not Status.PASS:
            remedy = Remedy(
                text="Render on another node (vllm launch render), start more API servers, or hand prompt_token_ids from prefill to decode (vLLM 0.32+)."
            )
    yield Finding(
        id="KVP304",
        name="render-cost",
        status=status,
        title=title,
        measured=figure.quantity("s"),
        expected=expected,
        remedy=remedy,
        evidence=("render-cost",),
    )


def clock_in_prompt(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP305: the same request gives the same prompt a minute and a day later."""
    if facts.clock is None or facts.decisive().cause == "date_changed":
        return
    when = "every minute" if facts.clock == "minute" else "at midnight"
    forms = ", ".join(facts.strftime) or "a clock"
    minute = facts.clock == "minute"
    yield Finding(
        id="KVP305",
        name="clock-in-prompt",
        status=Status.FAIL if minute and facts.bidirectional else Status.WARN,
        title=f"the prompt changes {when} by itself ({forms}): a chat that lasts longer loses its prefix",
        remedy=Remedy(text=fix_of("date_changed") or ""),
        where=facts.source,
        code="date_changed",
    )


def harmony(facts: TemplateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP306: the tested template is the one that vLLM renders with."""
    if facts.harmony:
        yield Finding(
            id="KVP306",
            name="template-in-use",
            status=Status.WARN,
            title="a harmony template: vLLM renders gpt-oss with openai-harmony, so this file alone proves nothing",
            remedy=Remedy(
                text="Compare both turns through the server's /v1/chat/completions/render instead, and set VLLM_SYSTEM_START_DATE."
            ),
            where=facts.source,
        )


RULES: tuple[Rule[TemplateFacts], ...] = (
    Rule("KVP301", "prompt-prefix", prefix_holds),
    Rule("KVP302", "template-renders", template_renders),
    Rule("KVP303", "prefix-on-token-ids", token_ids),
    Rule("KVP304", "render-cost", render_cost),
    Rule("KVP305", "clock-in-prompt", clock_in_prompt),
    Rule("KVP306", "template-in-use", harmony),
)
