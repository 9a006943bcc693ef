"""KVP301 to KVP306: is a chat template safe for bidirectional KV transfer, and what does it cost the front end?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.statistics import few_note
from kvprobe.models.template_facts import Cell, TemplateFacts
from kvprobe.models.template_report import cpu_per_request, fix_of, lost_share
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.template_text import (
    PLACE,
    SAY,
    assumed_notes,
    explain,
    other_causes,
    remedy_text,
    stop_notes,
    value_text,
)
from kvprobe.units import format_seconds

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
            notes=(*stop_notes(judged), *assumed_notes(facts)),
        )
        return
    share = lost_share(cell)
    unit = "characters" if cell.tokens is None else "token ids"
    effect = (
        "vLLM would use wrong KV, silently"
        if facts.bidirectional
        else "bidirectional transfer is off, so only prefix-cache hits are lost"
    )
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
        remedy=Remedy(text=remedy_text(facts, cell)),
        where=_where(facts, cell),
        notes=(
            *explain(facts, cell),
            *other_causes(broken, cell),
            *stop_notes(judged),
            *assumed_notes(facts),
        ),
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
        place = f" at character {where.offset} of the {PLACE[where.place]}" if where else ""
        return f"turn 2 leaves turn 1{place}: {SAY[cell.cause]}"
    return f"{len(broken)} of {len(facts.judged())} chats break the prefix: {SAY[cell.cause]}"


def _where(facts: TemplateFacts, cell: Cell) -> str:
    switches = ", ".join(f"{k}={value_text(v)}" for k, v in cell.switches.items())
    return f"{facts.source}" + (f" with {switches}" if switches else "")


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
    seconds, samples = cpu_per_request(cost), len(cost.render_seconds)
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
    title = f"{what} a chat of {count} takes {format_seconds(seconds)} of CPU"
    status, expected, remedy = Status.PASS, None, None
    if facts.rate is not None:
        threshold = policy.threshold("frontend_core_share")
        share = seconds * facts.rate
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
        measured=Quantity(
            value=seconds, unit="s", statistic="median", samples=samples, note=few_note(samples)
        ),
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
