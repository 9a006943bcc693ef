"""``kvprobe template``: render turn N and N+1, hold them against each other, and time the rendering."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import UsageError, WorkerError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.flows import template_rounds as rounds_of
from kvprobe.flows.template_bench import Bench, cost_request, last
from kvprobe.formats.chat_template import TemplateSource
from kvprobe.formats.chat_template_conversation import Conversation, parse_conversation
from kvprobe.models.template_facts import TemplateFacts
from kvprobe.models.template_report import result_of
from kvprobe.probes import chat_template
from kvprobe.rules.base import run_rules
from kvprobe.rules.template import RULES

_CONVERSATION_LIMIT_BYTES = 16 * 1024 * 1024
_STAND_INS = {"bos_token": "<|bos_token|>", "eos_token": "<|eos_token|>"}
"""For a bare template without a tokenizer configuration; the same in both turns, and the report says so."""
_EXAMPLE = "Example: '{\"enable_thinking\": false}'"


def run(door: Door, params: dict[str, Any]) -> Draft:
    """The flow; ``params`` are the options of :mod:`kvprobe.cli.template`."""
    fixed = _kwargs(params.get("chat_template_kwargs"))
    door.progress.step("Reading the template", index=1, total=3)
    read = chat_template.load(door.system, params["path"], params.get("template_name"))
    template = read.facts
    conversation = _conversation(door, params.get("conversation"))
    now = door.system.now().replace(tzinfo=None).isoformat(timespec="seconds")
    special = {**template.special_tokens, **(conversation.special_tokens if conversation else {})}
    assumed = () if special else tuple(name for name in _STAND_INS if name in template.text)
    special |= {name: _STAND_INS[name] for name in assumed}
    bench = Bench(door, template, special, now)
    door.progress.step("Rendering turn N and N+1", index=2, total=3)
    rounds = rounds_of.given(bench, conversation, fixed) if conversation else rounds_of.built_in(bench, fixed)
    tokenizer, note = _tokenizer(params, template)
    request = None
    if params["cost_tokens"] and not rounds.info.error:
        request = cost_request(bench, params["cost_tokens"], params["samples"], fixed)
    door.progress.step("Token ids and CPU cost", index=3, total=3)
    try:
        final = last(bench, rounds, request, tokenizer)
    except WorkerError as error:
        if params.get("tokenizer"):
            raise
        tokenizer, note = None, error.reason
        final = last(bench, rounds, request, None)
    info = rounds.info.inspection
    facts = TemplateFacts(
        source=template.source,
        bidirectional=params["bidirectional"],
        client=params["client"],
        given=conversation is not None,
        cells=tuple(final.cells),
        switches=tuple(info.get("switches", ())),
        not_varied=rounds.not_varied,
        strftime=tuple(info.get("strftime", ())),
        reasoning_fields=tuple(info.get("reasoning_fields", ())),
        clock=rounds_of.clock(rounds.info),
        harmony="<|channel|>" in template.text and "<|start|>" in template.text,
        tokens_note=note or final.tokens_note,
        special_tokens_assumed=assumed,
        cost=final.cost,
        cost_error=final.cost_error,
        rate=params.get("rate"),
    )
    return Draft(
        subject={
            "headline": template.source,
            "template": template.source,
            "template_name": template.name,
            "conversation": params.get("conversation"),
            "bidirectional": params["bidirectional"],
        },
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=_evidence(read, facts, tokenizer),
        result=result_of(facts),
    )


def _conversation(door: Door, path: str | None) -> Conversation | None:
    if path is None:
        return None
    return parse_conversation(door.system.read_text(path, limit_bytes=_CONVERSATION_LIMIT_BYTES), path)


def _kwargs(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs is not a JSON object: {error}.", _EXAMPLE) from None


def _tokenizer(params: dict[str, Any], template: TemplateSource) -> tuple[str | None, str | None]:
    """Path of the tokenizer, or the reason why token ids are not compared."""
    if params.get("no_tokens"):
        return None, "--no-tokens"
    path = params.get("tokenizer") or template.tokenizer
    return path, None if path else "no tokenizer.json beside the template (--tokenizer FILE)"


def _evidence(
    read: Evidence[TemplateSource], facts: TemplateFacts, tokenizer: str | None
) -> tuple[AnyEvidence, ...]:
    told = {
        "name": read.facts.name,
        "characters": len(read.facts.text),
        "other_names": read.facts.other_names,
        "special_tokens": read.facts.special_tokens,
        "special_tokens_assumed": facts.special_tokens_assumed,
        "switches": facts.switches,
        "strftime": facts.strftime,
    }
    found: list[AnyEvidence] = [
        Evidence(id=read.id, kind=read.kind, origin=read.origin, source=read.source, facts=told),
        Evidence(
            id="prefix",
            kind="prompt_prefix",
            origin=Origin.MEASURED,
            source="both prompts rendered by kvprobe in Jinja's immutable sandbox",
            facts=facts.cells,
        ),
    ]
    if facts.cost:
        source = f"rendered in a child process, tokenised with {tokenizer or 'nothing'}"
        found.append(
            Evidence(
                id="render-cost", kind="render_cost", origin=Origin.MEASURED, source=source, facts=facts.cost
            )
        )
    return tuple(found)
