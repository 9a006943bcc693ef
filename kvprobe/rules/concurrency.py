"""KVP213: what happens when several prompts arrive at once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.concurrency import Level, knee
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_rate, format_seconds

_ALONE = 1.3


class ConcurrencyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The same plan with one and with more requests in flight."""

    levels: tuple[Level, ...]
    evidence: tuple[str, ...] = ()


def burst(facts: ConcurrencyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP213: transfers in flight together share the path; how far that carries a burst of prompts."""
    bend, most = knee(facts.levels), facts.levels[-1]
    if bend is None:
        return
    alone = facts.levels[0]
    scale = most.bandwidth_bytes_per_second / alone.bandwidth_bytes_per_second
    queues = scale < _ALONE
    yield Finding(
        id="KVP213",
        name="transfers-in-flight",
        status=Status.PASS,
        title=(
            f"{most.in_flight} transfers in flight: {format_seconds(most.seconds)} until the last is done, "
            f"{format_rate(most.bandwidth_bytes_per_second)} together ({scale:.2f} times one alone)"
            + (
                f"; more than {bend.in_flight} at once gain nothing"
                if bend.in_flight < most.in_flight
                else ""
            )
        ),
        measured=Quantity(value=scale, unit="times", statistic="ratio of medians", samples=most.samples),
        expected=Expected(
            source="as many times one alone as there are requests, if the path were not shared",
            value=most.in_flight,
            unit="times",
        ),
        remedy=Remedy(
            text="A burst queues: the last prompt waits for all before it. Spread prefill instances over more GPU pairs, or lower the descriptor count."
        )
        if queues
        else None,  # fmt: skip
        notes=tuple(
            f"{level.in_flight} in flight: {format_seconds(level.seconds)} (median of {level.samples}), "
            f"{format_rate(level.bandwidth_bytes_per_second)}, fairness {level.fairness:.2f}"
            for level in facts.levels
        ),
        evidence=facts.evidence,
    )


RULES: tuple[Rule[ConcurrencyFacts], ...] = (Rule("KVP213", "transfers-in-flight", burst),)
