"""What long prompts do to running streams, P/D against colocated, and which arrivals keep their targets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.statistics import percentile


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One long prompt that arrived during a window; None: it failed or did not finish."""

    ttft_seconds: float | None
    tpot_seconds: float | None = None
    """Mean gap between its tokens."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One way at one rate."""

    way: str
    """``pd`` or ``colocated``."""
    rate: float
    """Arrivals a second."""
    seconds: float
    streams: int
    gaps: tuple[float, ...]
    """Inter-token gaps of the long streams inside the window, seconds."""
    arrivals: tuple[Arrival, ...]


class WindowResult(msgspec.Struct, frozen=True, kw_only=True):
    """A window in figures; None: not measured."""

    way: str
    rate: float
    seconds: float
    streams: int
    gaps: int
    itl_p50: float | None
    itl_p99: float | None
    itl_max: float | None
    arrived: int
    finished: int
    ttft_p50: float | None
    ttft_p99: float | None
    good: int | None
    """Arrivals inside both targets; None without a target."""
    goodput_per_second: float | None


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Targets of one request, seconds."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    @property
    def given(self) -> bool:
        return self.ttft_seconds is not None or self.tpot_seconds is not None

    def met(self, arrival: Arrival) -> bool:
        for value, limit in (
            (arrival.ttft_seconds, self.ttft_seconds),
            (arrival.tpot_seconds, self.tpot_seconds),
        ):
            if limit is not None and (value is None or value > limit):
                return False
        return arrival.ttft_seconds is not None


def gaps_within(times: Sequence[float], begin: float, end: float) -> tuple[float, ...]:
    """Gaps between neighbours of which the later lies in the window: a stall across its begin counts."""
    return tuple(b - a for a, b in zip(times, times[1:], strict=False) if begin <= b <= end)


def summarize_window(window: Window, slo: Slo) -> WindowResult:
    """p50, p99 and maximum of the gaps, TTFT of the arrivals, goodput."""
    ttfts = [a.ttft_seconds for a in window.arrivals if a.ttft_seconds is not None]
    good = sum(slo.met(a) for a in window.arrivals) if slo.given else None
    return WindowResult(
        way=window.way,
        rate=window.rate,
        seconds=window.seconds,
        streams=window.streams,
        gaps=len(window.gaps),
        itl_p50=percentile(window.gaps, 50) if window.gaps else None,
        itl_p99=percentile(window.gaps, 99) if window.gaps else None,
        itl_max=max(window.gaps, default=None),
        arrived=len(window.arrivals),
        finished=len(ttfts),
        ttft_p50=percentile(ttfts, 50) if ttfts else None,
        ttft_p99=percentile(ttfts, 99) if ttfts else None,
        good=good,
        goodput_per_second=good / window.seconds if good is not None and window.seconds > 0 else None,
    )


def broken(result: WindowResult, slo: Slo, *, factor: float = 3.0) -> bool:
    """Whether the streams' tail has broken: p99 above the target, or (without one) above three times the median."""
    if result.itl_p99 is None or result.itl_p50 is None:
        return False
    limit = slo.tpot_seconds if slo.tpot_seconds is not None else factor * result.itl_p50
    return result.itl_p99 > limit
