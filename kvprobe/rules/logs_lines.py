"""KVP405 and KVP409: can the metrics lines themselves be trusted?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.log_facts import LogFacts
from kvprobe.policy import Policy


def lines_whole(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP405: the metrics lines of the log are whole and their numbers agree."""
    if not facts.damaged:
        return
    share = facts.damaged / (facts.damaged + facts.total.intervals)
    yield Finding(
        id="KVP405",
        name="metrics-lines-whole",
        status=Status.WARN if share > 0.1 else Status.PASS,
        title=f"{facts.damaged:,} metrics {'line was' if facts.damaged == 1 else 'lines were'} cut or damaged and left out",
        measured=Quantity(value=share, unit="ratio"),
        remedy=Remedy(text="See damaged_lines in the JSON report for each reason; a collector that cuts long lines is the usual cause."),
        evidence=(facts.evidence,),
        notes=("Throughput must be Avg MB over Avg xfer time to the rounding of the three",),
    )  # fmt: skip


def zeros_told(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP409: no interval hides failures behind zeros."""
    count = facts.silent_zeros
    if not count:
        return
    yield Finding(
        id="KVP409",
        name="zeros-told",
        status=Status.WARN,
        title=f"{count:,} {'interval prints' if count == 1 else 'intervals print'} only zeros: something failed or expired, uncounted",
        measured=Quantity(value=count, unit="intervals"),
        remedy=Remedy(
            text="Read the counters: this vLLM does not print them.",
            commands=("kvprobe logs --metrics-url http://HOST:8000/metrics",),
        ),
        evidence=(facts.evidence,),
        notes=(
            "vLLM 0.15 to 0.30 prints a line without a transfer only after a failure or an expired lease",
        ),
    )
