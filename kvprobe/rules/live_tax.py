"""KVP690 to KVP692: what the running deployment adds, held against targets and the ladder."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.paired import LengthResult, Transfer
from kvprobe.models.paired_facts import LiveFacts
from kvprobe.models.statistics import few_note
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds, significant

_JUDGED_TOKENS = 8192
_TAX, _TRANSFER = "ttft_tax_seconds", "transfer_8k_seconds"
_ENGINE, _PROXY = "engine_over_nixl", "proxy_overhead_seconds"


def ttft_tax(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP690: the measured TTFT tax stays inside the target."""
    missing = [f"{n:,}" for n in facts.asked_tokens if n not in {one.prompt_tokens for one in facts.lengths}]
    if missing or not facts.lengths:
        which = f" of {', '.join(missing)} tokens" if facts.lengths else ""
        yield Finding(
            id="KVP690",
            name="ttft-tax",
            status=Status.UNKNOWN,
            title=f"The TTFT tax{which} was not measured: {facts.stopped or 'no pair of requests succeeded'}",
            remedy=Remedy(text=facts.stop_remedy or "Mend what the other findings name, then measure again."),
        )
    if facts.left_out:
        yield Finding(
            id="KVP690",
            name="ttft-tax",
            status=Status.SKIP,
            title=f"Not measured: {'; '.join(facts.left_out)}",
        )
    slo = facts.slo.ttft_seconds
    for one in facts.lengths:
        title = (
            f"P/D adds {format_seconds(one.tax.median)} to the TTFT of {one.prompt_tokens:,} tokens "
            f"({format_seconds(one.colocated_ttft.median)} on {facts.baseline}, "
            f"{format_seconds(one.pd_ttft.median)} through P/D)"
        )
        low, high = one.tax_interval.low, one.tax_interval.high
        notes = [f"95 % interval {format_seconds(low)} to {format_seconds(high)}, {one.pairs} pairs"]
        if not one.tax_interval.excludes_zero:
            notes.append("the interval holds 0: no difference can be told from noise")
        status, expected = Status.SKIP, None
        if slo is not None:
            status = (
                Status.FAIL
                if one.pd_ttft.median > slo
                else Status.WARN
                if one.pd_ttft.p90 > slo
                else Status.PASS
            )
            expected = Expected(source="--ttft-slo, TTFT through P/D", max=slo, unit="s")
        elif _TAX in policy.thresholds and one.prompt_tokens == _JUDGED_TOKENS:
            threshold = policy.threshold(_TAX)
            status = threshold.status(one.tax.median)
            limit = threshold.fail_above if threshold.fail_above is not None else threshold.warn_above
            expected = Expected(source=policy.cite(_TAX), max=limit, unit="s")
        else:
            notes.append("not judged: give --ttft-slo, or a policy with ttft_tax_seconds")
        yield Finding(
            id="KVP690",
            name="ttft-tax",
            status=status,
            title=title,
            measured=one.tax.quantity("s"),
            expected=expected,
            remedy=None if status in (Status.PASS, Status.SKIP) else _advice(one),
            notes=tuple(notes),
            where=None if status is Status.SKIP else f"{one.prompt_tokens:,} tokens",
            evidence=("pairs",),
            code=None if status in (Status.PASS, Status.SKIP) else "ttft_slo_missed",
        )


def engine_transfer(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP691: the engine moves the KV about as fast as NIXL alone does, and fast enough."""
    for one in facts.lengths:
        moved = one.transfer
        if moved is None:
            continue
        seconds = one.xfer.median if one.xfer else moved.xfer_seconds
        quantity = one.xfer.quantity("s") if one.xfer else _mean(moved)
        alone = facts.rung4.get(one.prompt_tokens)
        if alone and _ENGINE in policy.thresholds:
            ratio = seconds / alone
            status = policy.threshold(_ENGINE).status(ratio)
            yield Finding(
                id="KVP691",
                name="engine-transfer",
                status=status,
                title=f"The engine's transfer of {one.prompt_tokens:,} tokens takes {format_seconds(seconds)}, "
                f"{significant(ratio)} times NIXL alone ({format_seconds(alone)})",
                measured=quantity,
                expected=Expected(
                    source=policy.cite(_ENGINE), max=policy.threshold(_ENGINE).warn_above, unit="times"
                ),
                remedy=None
                if status is Status.PASS
                else Remedy(
                    text="Contention, polling or another transport than NIXL chose alone: compare the UCX lines of "
                    "decode's log with the preflight report.",
                    commands=("kvprobe logs decode.log",),
                ),
                where=f"{one.prompt_tokens:,} tokens",
                evidence=("engine-transfer",),
                code=None if status is Status.PASS else "engine_slower_than_nixl",
            )
        elif one.prompt_tokens == _JUDGED_TOKENS and _TRANSFER in policy.thresholds:
            threshold = policy.threshold(_TRANSFER)
            status = threshold.status(seconds)
            limit = threshold.fail_above if threshold.fail_above is not None else threshold.warn_above
            yield Finding(
                id="KVP691",
                name="engine-transfer",
                status=status,
                title=f"The engine's transfer of {one.prompt_tokens:,} tokens takes {format_seconds(seconds)}",
                measured=quantity,
                expected=Expected(source=policy.cite(_TRANSFER), max=limit, unit="s"),
                remedy=None
                if status is Status.PASS
                else Remedy(
                    text="Find the layer: `preflight` climbs the ladder on this node, `tune` tries the settings.",
                    commands=("kvprobe preflight --model MODEL", "kvprobe tune --model MODEL"),
                ),
                where=f"{one.prompt_tokens:,} tokens",
                evidence=("engine-transfer",),
                code=None if status is Status.PASS else "engine_transfer_slow",
            )


def proxy(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP692: the proxy passes kv_transfer_params on, and adds little time of its own."""
    for one in facts.proxy:
        share = one.fetch.share
        if share is not None and share < 0.95:
            yield Finding(
                id="KVP692",
                name="proxy",
                status=Status.FAIL,
                title=f"Behind the proxy decode fetched {share * 100:.0f} % of {one.fetch.handed_requests} prompts of "
                f"{one.prompt_tokens:,} tokens and computed the rest itself",
                remedy=Remedy(
                    text="The proxy must send do_remote_decode to prefill and hand its kv_transfer_params to decode "
                    "unchanged."
                ),
                where=f"{one.prompt_tokens:,} tokens",
                code="proxy_without_kv_params",
            )
            continue
        threshold = policy.thresholds.get(_PROXY)
        status = threshold.status(one.overhead.median) if threshold else Status.SKIP
        yield Finding(
            id="KVP692",
            name="proxy",
            status=status,
            title=f"The proxy adds {format_seconds(one.overhead.median)} to the TTFT of {one.prompt_tokens:,} tokens",
            measured=one.overhead.quantity("s"),
            expected=Expected(source=policy.cite(_PROXY), max=threshold.warn_above, unit="s")
            if threshold
            else None,
            remedy=None
            if status in (Status.PASS, Status.SKIP)
            else Remedy(
                text="A proxy that parses and re-encodes the prompt, or has one event loop for all requests, is the "
                "usual cause. Use a router built for it (llm-d, Dynamo, vllm-router) or pass bodies through."
            ),
            where=f"{one.prompt_tokens:,} tokens",
            code="proxy_slow" if status in (Status.WARN, Status.FAIL) else None,
        )


def _mean(moved: Transfer) -> Quantity:
    note = few_note(moved.transfers)
    return Quantity(value=moved.xfer_seconds, unit="s", statistic="mean", samples=moved.transfers, note=note)


def _advice(one: LengthResult) -> Remedy:
    moved, beside = one.transfer_seconds, one.beside_transfer_seconds
    if moved is not None and beside is not None and moved > beside:
        text = "The transfer is the larger part: fewer descriptors, another transport, or no host buffer."
    else:
        text = "The transfer is the smaller part: the second call, scheduling and polling belong to vLLM and the proxy."
    return Remedy(
        text=f"{text} If TTFT is the hard limit, serve colocated with chunked prefill.",
        commands=("kvprobe preflight --model MODEL", "kvprobe tune --model MODEL"),
    )


RULES: tuple[Rule[LiveFacts], ...] = (
    Rule("KVP690", "ttft-tax", ttft_tax),
    Rule("KVP691", "engine-transfer", engine_transfer),
    Rule("KVP692", "proxy", proxy),
)
