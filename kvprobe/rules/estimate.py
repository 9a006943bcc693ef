"""KVP670 to KVP674: the terms of an estimated transfer, and whether the link carries the traffic."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.advice import JUDGED_TOKENS
from kvprobe.models.estimate import FitSource, LinkSpec, PromptEstimate
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes, format_rate, format_seconds

_LINK_BUSY = 0.7
TRANSFER = "transfer_8k_seconds"
_MEASURE = Remedy(
    text="Measure it on two GPUs of this kind and give the report: a descriptor costs what UCX's transport makes of it, "
    "and constants of another transport do not carry over.",
    commands=("kvprobe preflight --model MODEL --format json -o R.json", "kvprobe estimate --model MODEL --fit R.json"),
)  # fmt: skip


class EstimateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One estimate at the judged prompt length."""

    told: PromptEstimate
    link: LinkSpec
    fitted: FitSource | None = None
    requests_per_second: float | None = None
    ranks: int = 1


def on_the_wire(facts: EstimateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP670: how long the bytes take on the link."""
    told, link = facts.told, facts.link
    if told.wire_seconds is None:
        return
    size = told.bytes_all_ranks if link.shared else told.bytes
    rate = facts.fitted.fit.bandwidth_bytes_per_second if facts.fitted else link.effective_bytes_per_second
    assert rate is not None  # the wire term exists, so its rate does
    legs = " on each of two legs" if link.relay else ""
    yield Finding(
        id="KVP670",
        name="wire-time",
        status=Status.PASS,
        title=f"{told.prompt_tokens:,} tokens are {format_bytes(size)}{_share(facts)}: {format_seconds(told.wire_seconds)} "
        f"on the wire at {format_rate(rate)}{legs}",
        measured=Quantity(value=told.wire_seconds, unit="s", note="computed"),
        notes=(f"{link.name}: {link.source}",),
    )  # fmt: skip


def _share(facts: EstimateFacts) -> str:
    if facts.ranks == 1:
        return ""
    return f" of all {facts.ranks} ranks" if facts.link.shared else f" a rank (of {facts.ranks})"


def descriptor_term(facts: EstimateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP671: what the descriptors cost is known for this link."""
    told = facts.told
    count = f"{told.descriptors:,} descriptors of {format_bytes(told.descriptor_bytes)}"
    if told.descriptor_seconds is None:
        yield Finding(
            id="KVP671",
            name="descriptor-term",
            status=Status.UNKNOWN,
            title=f"What {count} cost on this link is not known, so the transfer takes at least "
            f"{format_seconds(told.at_least_seconds)}",
            remedy=_MEASURE,
            notes=(
                "Recorded with cuda_ipc on 2x H200: 3.3 to 3.8 us each, far more than the bytes; other transports differ.",
            ),
            code="descriptor_term_unknown",
        )  # fmt: skip
        return
    if facts.fitted is None:
        yield Finding(
            id="KVP671",
            name="descriptor-term",
            status=Status.PASS,
            title=f"{count}: their cost is part of the measured rate of {facts.link.name}",
        )
        return
    fit, source = facts.fitted.fit, facts.fitted
    low, high = fit.range_descriptors
    title = f"{count} take {format_seconds(told.descriptor_seconds)} over {source.transport or 'an unnamed transport'}"
    notes = [
        f"Fit of {len(fit.points)} points in {source.source}, worst residual {fit.worst_residual * 100:.0f} %, measured "
        f"from {low:,} to {high:,} descriptors and {format_bytes(fit.range_bytes[0])} to {format_bytes(fit.range_bytes[1])}."
    ]  # fmt: skip
    host = source.memory == "dram"
    if host:
        notes.append("The fit was measured in host memory, not between GPUs.")
    if told.extrapolated or host:
        yield Finding(
            id="KVP671",
            name="descriptor-term",
            status=Status.UNKNOWN if host else Status.WARN,
            title=title + (", from host memory" if host else ", beyond what was measured"),
            measured=Quantity(value=told.descriptor_seconds, unit="s", note="extrapolated"),
            remedy=_MEASURE,
            notes=tuple(notes),
            code="fit_of_host_memory" if host else "extrapolated",
        )
        return
    yield Finding(
        id="KVP671",
        name="descriptor-term",
        status=Status.PASS,
        title=title,
        measured=Quantity(value=told.descriptor_seconds, unit="s", note="from the fit"),
        notes=tuple(notes),
    )


def link_carries(facts: EstimateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP672: the link carries the KV of the stated request rate."""
    rate, link = facts.requests_per_second, facts.link
    speed = link.effective_bytes_per_second
    if rate is None or speed is None:
        return
    links = 1 if link.shared else facts.ranks
    needed = rate * facts.told.bytes_all_ranks
    share = needed / (speed * links)
    status = Status.FAIL if share > 1 else Status.WARN if share > _LINK_BUSY else Status.PASS
    yield Finding(
        id="KVP672",
        name="link-carries-rate",
        status=status,
        title=f"{rate:g} requests/s of {facts.told.prompt_tokens:,} tokens move {format_rate(needed)}, {share * 100:.0f} % "
        f"of {format_rate(speed * links)}",
        measured=Quantity(value=share, unit="ratio", note="computed"),
        expected=Expected(max=1.0, unit="ratio", source="the link's rate"),
        remedy=None
        if status is Status.PASS
        else Remedy(text="A faster or further link, fp8 KV cache (--kv-cache-dtype fp8 halves the bytes), or prefix caching "
                    "on decode, which asks only for what it does not hold."),
        code=None if status is Status.PASS else "link_overloaded" if share > 1 else "link_busy",
    )  # fmt: skip


def window(facts: EstimateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP673: enough bytes are in flight to fill a link with this round trip."""
    link = facts.link
    needed, speed = link.in_flight_to_fill, link.effective_bytes_per_second
    hop = (
        "The read counts one round trip a leg; a proxy beside prefill adds one more for its call to decode.",
    )
    if needed is None or speed is None or link.bytes_per_second is None:
        return
    if link.window_bytes is None:
        yield Finding(
            id="KVP673",
            name="window-fills-link",
            status=Status.UNKNOWN,
            title=f"To fill {format_rate(link.bytes_per_second)} over {format_seconds(link.rtt_seconds)} round trip "
            f"{format_bytes(needed)} must be in flight; whether they are was not told",
            remedy=Remedy(text="Give the socket buffer times the number of streams: --window 64MiB."),
            notes=hop,
            code="window_unknown",
        )  # fmt: skip
        return
    fills = link.window_bytes >= needed
    yield Finding(
        id="KVP673",
        name="window-fills-link",
        status=Status.PASS if fills else Status.WARN,
        title=f"{format_bytes(link.window_bytes)} in flight over {format_seconds(link.rtt_seconds)} round trip: "
        f"{format_rate(speed)}" + ("" if fills else f" of {format_rate(link.bytes_per_second)}"),
        measured=Quantity(value=speed, unit="B/s", note="computed"),
        expected=Expected(min=needed, unit="B", source="bandwidth times round trip"),
        remedy=None
        if fills
        else Remedy(
            text="More parallel streams or larger socket buffers (net.core.rmem_max, net.ipv4.tcp_rmem)."
        ),
        notes=hop,
        code=None if fills else "window_limits_link",
    )


def transfer_in_policy(facts: EstimateFacts, policy: Policy) -> Iterable[Finding]:
    """KVP674: the estimated transfer stays inside the policy's limit for 8,192 tokens."""
    if TRANSFER not in policy.thresholds:
        return
    threshold, told = policy.threshold(TRANSFER), facts.told
    # Longer prompts are scaled to the length that the limit is for; shorter ones count as they are.
    seconds = told.at_least_seconds * JUDGED_TOKENS / max(told.prompt_tokens, JUDGED_TOKENS)
    status = threshold.status(seconds)
    if not told.complete and status is not Status.FAIL:
        return  # a lower bound inside the limit says nothing; KVP671 is UNKNOWN
    limit = threshold.fail_above if threshold.fail_above is not None else threshold.warn_above
    least = "" if told.complete else "at least "
    scaled = (
        f" ({format_seconds(seconds)} for {JUDGED_TOKENS:,})" if told.prompt_tokens > JUDGED_TOKENS else ""
    )
    yield Finding(
        id="KVP674",
        name="estimated-transfer-within-policy",
        status=status,
        title=f"The transfer of {told.prompt_tokens:,} tokens would take {least}{format_seconds(told.at_least_seconds)}{scaled}",
        measured=Quantity(value=seconds, unit="s", note="estimated, not measured"),
        expected=Expected(max=limit, unit="s", source=policy.cite(TRANSFER)),
        remedy=None
        if status is Status.PASS
        else Remedy(text="A faster link or fewer bytes (fp8 KV cache); at this speed P/D adds the transfer to every first token."),
        code=None if status is Status.PASS else "transfer_too_slow",
    )  # fmt: skip


RULES: tuple[Rule[EstimateFacts], ...] = (
    Rule("KVP670", "wire-time", on_the_wire),
    Rule("KVP671", "descriptor-term", descriptor_term),
    Rule("KVP672", "link-carries-rate", link_carries),
    Rule("KVP673", "window-fills-link", window),
    Rule("KVP674", "estimated-transfer-within-policy", transfer_in_policy),
)
