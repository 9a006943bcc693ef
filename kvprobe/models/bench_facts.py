"""What the comparison rules look at: one pair of results at one load."""

from __future__ import annotations

import msgspec

from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_goodput import Slo
from kvprobe.models.bench_log import DecodeLog
from kvprobe.models.bench_overall import SweepDecision
from kvprobe.models.bench_sweep import Capacity, Load
from kvprobe.models.bench_verdict import Decision, Figures


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is no ``vllm bench serve`` result."""

    side: str
    source: str
    reason: str


class CompareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of results. None or empty: that part is not there."""

    colocated: BenchResult | None
    pd: BenchResult | None
    where: str | None = None
    """The load, when there are several."""
    unreadable: tuple[Unreadable, ...] = ()
    log: DecodeLog | None = None
    slo: Slo = Slo()
    figures: Figures | None = None
    """Set once nothing blocks."""
    decision: Decision | None = None
    blocking: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[tuple[str, BenchResult], ...]:
        """``("colocated", run), ("P/D", run)``: those that are there."""
        named = (("colocated", self.colocated), ("P/D", self.pd))
        return tuple((name, run) for name, run in named if run is not None)


class SweepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of a rate sweep."""

    colocated: Capacity | None
    pd: Capacity | None
    decision: SweepDecision | None = None
    filled_cache: tuple[tuple[str, Load, Load], ...] = ()
    """Side, and two loads between which TTFT fell although the rate rose."""
