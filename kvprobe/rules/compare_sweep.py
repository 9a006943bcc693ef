"""KVP635 and KVP636, and KVP620 over a whole rate sweep."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.bench_facts import SweepFacts
from kvprobe.models.bench_sweep import Capacity
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.compare import status_of


def sweep_decision(facts: SweepFacts, policy: Policy) -> Iterable[Finding]:
    """KVP620: P/D gains more than it costs, inside the targets (over the loads of a sweep)."""
    told = facts.decision
    if told is None:
        return
    counts: dict[str, list[str]] = {}
    for point in told.points:
        words = point.verdict if point.comparable or point.verdict == "itl_unusable" else "not compared"
        counts.setdefault(words.replace("_", " ").replace("pd ", "P/D "), []).append(
            f"{point.load.request_rate:g}"
        )
    loads = "; ".join(f"{words} at {', '.join(rates)} requests/s" for words, rates in counts.items())
    yield Finding(
        id="KVP620",
        name="pd-against-colocated",
        status=status_of(told.verdict, told.slo_broken),
        title=f"Over the sweep: {loads}",
        notes=("The highest load inside the targets decided (KVP635).",) if told.by_capacity else (),
        code=told.verdict,
    )


def rates_carried(facts: SweepFacts, policy: Policy) -> Iterable[Finding]:
    """KVP635: P/D carries at least the rate that colocated carries."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None:
        return
    basis = {
        "targets": "inside the targets",
        "goodput": "with 90 % of the requests good",
        "queue": "without a growing queue",
    }[two.basis]
    texts = [f"{side} {_carries(told)}" for side, told in (("colocated", one), ("P/D", two))]
    status = Status.PASS
    if two.carries is None or (one.carries and two.carries < one.carries):
        status = Status.WARN
    yield Finding(
        id="KVP635",
        name="rate-carried",
        status=status,
        title=f"Highest load {basis}: {', '.join(texts)}",
        measured=Quantity(value=two.carries.request_rate, unit="requests/s") if two.carries else None,
        expected=Expected(min=one.carries.request_rate, unit="requests/s", source="the colocated side")
        if one.carries
        else None,
        remedy=Remedy(
            text="The first stage to fill up sets the rate: add a prefill instance when TTFT breaks, a decode instance "
            "when ITL or TPOT breaks."
        )
        if status is Status.WARN
        else None,
    )


def _carries(told: Capacity) -> str:
    held = told.carries.words if told.carries else "none of the measured ones"
    if told.breaks_at is None:
        return f"{held} (the highest measured)" if told.carries else held
    return f"{held} (breaks at {told.breaks_at.words}: {told.because})"


def sweep_is_cold(facts: SweepFacts, policy: Policy) -> Iterable[Finding]:
    """KVP636: a sweep does not fill its own prefix cache from rate to rate."""
    for side, low, high in facts.filled_cache:
        yield Finding(
            id="KVP636",
            name="sweep-without-warm-cache",
            status=Status.UNKNOWN,
            title=f"{side}: TTFT falls by a third or more from {low.words} to {high.words}: later rates hit the prefix cache",
            remedy=Remedy(
                text="The same --seed sends the same prompts at every rate: give each rate its own --seed, reset the "
                "prefix cache between runs, or start the servers with --no-enable-prefix-caching."
            ),
            code="suspect_prefix_cache",
        )  # fmt: skip


SWEEP_DECISION: Rule[SweepFacts] = Rule("KVP620", "pd-against-colocated", sweep_decision)
"""Registered once, by :mod:`kvprobe.rules.compare`."""
RULES: tuple[Rule[SweepFacts], ...] = (
    Rule("KVP635", "rate-carried", rates_carried),
    Rule("KVP636", "sweep-without-warm-cache", sweep_is_cold),
)
