"""KVP11x: the size of the KV cache, whether NixlConnector moves it, and what contradicts the numbers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.kv_layout.against_log import Agreement
from kvprobe.models.kv_layout.specs import SpecComparison
from kvprobe.models.kv_layout.types import KvLayout, NoKvCache, Refused
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes

_SOURCE = "vLLM 0.33's KV cache specs"


class KvSizeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one model's cache; exactly one of ``layout`` and ``refusal`` is there."""

    model: str
    layout: KvLayout | None = None
    refusal: Refused | None = None
    plans: tuple[DescriptorPlan, ...] = ()
    refused_prompts: tuple[Refused, ...] = ()
    agreement: Agreement | None = None
    log: str | None = None
    comparison: SpecComparison | None = None
    evidence: tuple[str, ...] = ()


def size_known(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP110: the size of the KV cache follows from the config, exact to the byte."""
    refusal = facts.refusal
    if isinstance(refusal, NoKvCache):
        yield _finding(
            facts, Status.PASS, refusal.reason, code="no_kv_cache", measured=Quantity(value=0, unit="B")
        )
    elif refusal is not None:
        remedy = Remedy(text=refusal.remedy) if refusal.remedy else None
        yield _finding(facts, Status.UNKNOWN, refusal.reason, code=refusal.reason_code, remedy=remedy)
    elif facts.layout is not None:
        yield _finding(
            facts,
            Status.PASS,
            _size(facts.layout),
            measured=_quantity(facts.layout),
            notes=facts.layout.notes,
        )


def _size(layout: KvLayout) -> str:
    parts = []
    if layout.bytes_per_token.per_rank:
        parts.append(f"{layout.bytes_per_token.per_rank:,} B a token on each rank")
    if layout.state_bytes_per_sequence.per_rank:
        parts.append(
            f"{format_bytes(layout.state_bytes_per_sequence.per_rank)} of state a sequence on each rank"
        )
    return f"{layout.model}: {' and '.join(parts)}, {layout.kv_cache_dtype}, TP {layout.options.tp}"


def _quantity(layout: KvLayout) -> Quantity:
    value = layout.bytes_per_token.per_rank or layout.state_bytes_per_sequence.per_rank
    return Quantity(value=value, unit="B", note="computed from config.json")


def transferable(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP111: NixlConnector can move this cache."""
    layout = facts.layout
    if layout is None:
        return
    transfer = layout.transfer
    if transfer.status == "ok" and not transfer.refuses_requests:
        notes = tuple(f"Both sides need {setting} in their environment." for setting in transfer.needs)
        yield _finding(facts, Status.PASS, "NixlConnector moves this cache", rule=TRANSFERABLE, notes=notes)
        return
    yield _finding(
        facts,
        Status.WARN,
        f"{layout.model}: P/D with NixlConnector is not possible. {transfer.reason}",
        rule=TRANSFERABLE,
        code=transfer.reason_code,
        remedy=Remedy(text="Serve it colocated, or with a connector that moves this kind of cache."),
    )


def copies(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP112: every rank holds a part of the cache, not a copy."""
    layout = facts.layout
    if layout is None or layout.options.tp == 1:
        return
    copied = [
        g for g in layout.layer_groups if g.replicated or _repeated(layout, g.kv_heads_per_rank, g.arithmetic)
    ]
    if not copied:
        yield _finding(facts, Status.PASS, "TP divides the cache without copies", rule=COPIES)
        return
    total = layout.bytes_per_token.all_ranks
    yield _finding(
        facts,
        Status.PASS,
        f"TP {layout.options.tp} does not divide all of the cache: {total:,} B a token on all ranks together",
        rule=COPIES,
        notes=(f"Copied: {', '.join(sorted({g.kind.replace('_', ' ') for g in copied}))}.",),
    )


def _repeated(layout: KvLayout, heads: int, arithmetic: tuple[str, ...]) -> bool:
    return heads == 1 and any("a copy of one of" in line for line in arithmetic)


def length_possible(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP113: the planned prompts are no longer than the model takes."""
    longer = [p.prompt_tokens for p in facts.plans if p.longer_than_model]
    if facts.layout is None or not longer:
        return
    yield _finding(
        facts,
        Status.WARN,
        f"{', '.join(f'{n:,}' for n in longer)} tokens are more than the model takes",
        rule=LENGTH,
        measured=Quantity(value=max(longer), unit="tokens"),
        expected=Expected(
            max=facts.layout.max_tokens, unit="tokens", source="config.json's own length limit"
        ),
        remedy=Remedy(
            text="Shorten --prompt-tokens; the bytes are right for a server with a raised --max-model-len."
        ),
    )


def prompts_movable(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP116: vLLM can transfer prompts of the planned lengths."""
    for refusal in facts.refused_prompts:
        yield _finding(
            facts,
            Status.WARN,
            refusal.reason,
            rule=PROMPTS,
            code=refusal.reason_code,
            remedy=Remedy(text="Send a prompt of another length; one token more or less is enough."),
        )


def log_agrees(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP114: the decode log's "Avg MB per transfer" agrees with the computed bytes."""
    agreement = facts.agreement
    if agreement is None:
        return
    if agreement.verdict == "nothing":
        title = f"{facts.log} holds no KV Transfer metrics line with a completed transfer"
        remedy = Remedy(text="Give the log of the decode engine (pull mode).")
        yield _finding(facts, Status.UNKNOWN, title, rule=LOG, where=facts.log, remedy=remedy)
        return
    status = {"disagrees": Status.FAIL, "unmatched": Status.WARN}.get(agreement.verdict, Status.PASS)
    wanted = "possible" if agreement.verdict == "unmatched" else agreement.verdict
    line = next(c for c in agreement.lines if c.verdict == wanted)
    words = {"agrees": "agree with", "explained": "fit", "disagrees": "contradict"}.get(wanted, "can be")
    count = f"{agreement.count(wanted)} of {len(agreement.lines)} log lines {words} the computed size"
    yield _finding(
        facts,
        status,
        f"{count}: {format_bytes(line.logged_bytes)} a transfer, {line.explanation}",
        rule=LOG,
        where=f"{facts.log}:{line.line}",
        measured=Quantity(value=line.logged_bytes, unit="B", statistic="mean", samples=line.transfers),
        expected=Expected(value=line.computed_bytes, unit="B", source=_SOURCE)
        if line.computed_bytes
        else None,
        notes=(agreement.explanation,) if agreement.verdict == "unmatched" else (),
        remedy=Remedy(text="Give the servers' own --tp, --kv-cache-dtype, --block-size and prompt lengths.")
        if status is not Status.PASS
        else None,
    )


def vllm_agrees(facts: KvSizeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP115: the installed vLLM declares the same caches."""
    comparison = facts.comparison
    if comparison is None:
        return
    if comparison.error:
        yield _finding(
            facts, Status.UNKNOWN, comparison.error, rule=VLLM,
            remedy=Remedy(text=comparison.remedy or "Run kvprobe in the environment of a vLLM with a CUDA GPU."),
        )  # fmt: skip
    elif comparison.differences:
        yield _finding(
            facts, Status.FAIL, f"vLLM {comparison.version} declares other caches: {comparison.differences[0]}", rule=VLLM,
            notes=comparison.differences[1:], remedy=Remedy(text="Trust vLLM's numbers, and report this difference."),
        )  # fmt: skip
    else:
        what = "the same caches" if facts.layout else "caches; kvprobe has no numbers of its own to compare"
        yield _finding(facts, Status.PASS, f"vLLM {comparison.version} declares {what}", rule=VLLM)


SIZE, TRANSFERABLE, COPIES = ("KVP110", "kv-size"), ("KVP111", "kv-transferable"), ("KVP112", "kv-copies")
LENGTH, LOG, VLLM = ("KVP113", "prompt-length"), ("KVP114", "kv-size-log"), ("KVP115", "kv-size-vllm")
PROMPTS = ("KVP116", "prompt-movable")


def _finding(
    facts: KvSizeFacts,
    status: Status,
    title: str,
    *,
    rule: tuple[str, str] = SIZE,
    code: str | None = None,
    measured: Quantity | None = None,
    expected: Expected | None = None,
    remedy: Remedy | None = None,
    where: str | None = None,
    notes: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        id=rule[0],
        name=rule[1],
        status=status,
        title=title,
        code=code,
        measured=measured,
        expected=expected,
        remedy=remedy,
        where=where,
        notes=notes,
        evidence=facts.evidence,
    )


RULES: tuple[Rule[KvSizeFacts], ...] = (
    Rule(*SIZE, size_known),
    Rule(*TRANSFERABLE, transferable),
    Rule(*COPIES, copies),
    Rule(*LENGTH, length_possible),
    Rule(*LOG, log_agrees),
    Rule(*VLLM, vllm_agrees),
    Rule(*PROMPTS, prompts_movable),
)
