"""KVP624, KVP625, KVP629, KVP632: figures of a benchmark that do not mean what they seem to."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.bench_checks import cached_prompts, saturation, warm_up
from kvprobe.models.bench_facts import CompareFacts
from kvprobe.models.bench_verdict import FEW_FOR_P99, NOISE
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds


def not_saturated(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP624: the server kept up with the request rate, so that TTFT is not the length of a queue."""
    for side, run in facts.sides:
        told = saturation(run)
        if told is None or not told.saturated:
            continue
        if math.isinf(told.request_rate):
            text = (
                f"{side}: all {run.sent} requests were sent at once (request_rate inf), so TTFT is the queue that "
                f"they form; request_throughput was {told.request_throughput:.3g}/s"
            )
        else:
            text = (
                f"{side}: saturated, request_rate {told.request_rate:g}/s asked, request_throughput "
                f"{told.request_throughput:.3g}/s served; TTFT is the length of the queue"
            )
        notes = ["The queue grows with --num-prompts, so its TTFT says nothing about prefill or transfer."]
        if told.latency_growth:
            notes.append(
                f"The last third of the requests took {told.latency_growth:.2g} times as long as the first."
            )
        yield Finding(
            id="KVP624",
            name="not-saturated",
            status=Status.UNKNOWN,
            title=text,
            measured=Quantity(value=told.request_throughput, unit="requests/s", samples=run.sent),
            remedy=Remedy(
                text="Lower --request-rate until request_throughput follows it (or limit --max-concurrency), then "
                "compare latencies. The throughputs themselves may be compared as they are."
            ),
            notes=tuple(notes),
            where=facts.where or run.source,
            code="saturated",
        )


def cold_prompts(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP625: the prompts were computed, not found in the prefix cache."""
    other = {"P/D": facts.colocated, "colocated": facts.pd}
    for side, run in facts.sides:
        key = "pd" if side == "P/D" else "colocated"
        seen = cached_prompts(key, run, other[side])
        if seen is None:
            continue
        notes = []
        if seen.colocated_ttft_ms:
            notes.append(
                f"The colocated server needed {seen.colocated_ttft_ms:.4g} ms for the same prompt; splitting cannot make "
                f"the prefill itself {seen.colocated_ttft_ms / seen.ttft_ms:.2g} times as fast."
            )
        if seen.decode_steps:
            notes.append(
                f"{seen.ttft_ms:.3g} ms are {seen.decode_steps:.2g} decode steps of this run; no GPU computes "
                f"{seen.input_tokens:.6g} tokens in that time."
            )
        notes.append("The default --seed 0 sends the same random prompts in every run.")
        yield Finding(
            id="KVP625",
            name="cold-prompts",
            status=Status.UNKNOWN,
            title=f"{side}: TTFT of {format_seconds(seen.ttft_ms / 1e3)} for {seen.input_tokens:.6g} tokens "
            f"({seen.prompt_tokens_per_second:,.0f} prompt tokens/s) looks like a prefix cache hit",
            measured=Quantity(value=seen.ttft_ms / 1e3, unit="s", statistic="median", samples=run.completed),
            remedy=Remedy(
                text="Start every server with --no-enable-prefix-caching, or give each run its own --seed and reset "
                "the cache between runs.",
                commands=(
                    "vllm serve ... --no-enable-prefix-caching",
                    "vllm bench serve ... --seed 1",
                ),
            ),
            notes=tuple(notes),
            where=facts.where or run.source,
            code="suspect_prefix_cache",
        )


def enough_for_p99(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP629: a p99 that seems to decide rests on enough requests."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None or not one.completed or not two.completed:
        return
    count = min(one.completed, two.completed)
    middle, tail = [(one.ms(s, "ttft"), two.ms(s, "ttft")) for s in ("median", "p99")]
    if not (middle[0] and middle[1] and tail[0] and tail[1]):
        return
    steady = abs(middle[1] / middle[0] - 1) <= NOISE
    moved = abs(tail[1] / tail[0] - 1) > NOISE
    if count >= FEW_FOR_P99 or not ((steady and moved) or count < 20):
        return
    deciding = max(1, math.ceil(count / 100))
    yield Finding(
        id="KVP629",
        name="samples-for-p99",
        status=Status.WARN,
        title=f"TTFT p99 of {count} requests is set by {deciding} of them; the medians are "
        f"{'the same' if steady else 'not enough to check it'}",
        measured=Quantity(value=count, unit="requests"),
        expected=Expected(min=FEW_FOR_P99, unit="requests", source="five requests beyond the p99"),
        remedy=Remedy(
            text=f"Repeat both sides with --num-prompts {FEW_FOR_P99} or more, or three times each, before a p99 decides."
        ),
        where=facts.where,
        code="few_samples_for_p99",
    )


def no_warm_up(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP632: the first request's start-up is not part of the sample."""
    for side, run in facts.sides:
        told = warm_up(run)
        if told is None:
            continue
        yield Finding(
            id="KVP632",
            name="no-warm-up-in-sample",
            status=Status.WARN,
            title=f"{side}: the first request's {told.what} was {format_seconds(told.first_seconds)}, the median is "
            f"{format_seconds(told.median_seconds)}: start-up is in the sample",
            measured=Quantity(value=told.first_seconds, unit="s"),
            remedy=Remedy(
                text="Warm both sides up with other prompts first (--num-warmups, another --seed): the first P/D request "
                "pays the NIXL handshake and UCX's wire-up."
            ),
            where=facts.where or run.source,
            code="warm_up_in_sample",
        )  # fmt: skip


RULES: tuple[Rule[CompareFacts], ...] = (
    Rule("KVP624", "not-saturated", not_saturated),
    Rule("KVP625", "cold-prompts", cold_prompts),
    Rule("KVP629", "samples-for-p99", enough_for_p99),
    Rule("KVP632", "no-warm-up-in-sample", no_warm_up),
)
