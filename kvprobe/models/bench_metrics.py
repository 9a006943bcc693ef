"""Two benchmark results side by side: every statistic of both, the difference, and how sure it is."""

from __future__ import annotations

import math

import msgspec

from kvprobe.formats.bench_result import LATENCY, RATES, BenchResult
from kvprobe.models.bootstrap import (
    clustered_percentile_draws,
    difference_interval,
    mean_draws,
    percentile_draws,
)
from kvprobe.models.statistics import Interval, percentile

_ORDER = ("ttft", "tpot", "itl", "e2el")
_Z95 = 1.959964
# Standard error of a median over that of a mean, for a normal distribution: sqrt(pi / 2).
_MEDIAN_ERROR = 1.253314


class MetricPair(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of both sides, in the unit that its name carries (ms, or per second)."""

    colocated: float | None
    pd: float | None
    interval: Interval | None = None
    """95 % interval of ``pd - colocated``; None where the files allow none."""
    interval_from: str | None = None
    """``requests`` (bootstrap of the saved samples) or ``std`` (normal approximation)."""

    @property
    def delta(self) -> float | None:
        return None if self.colocated is None or self.pd is None else self.pd - self.colocated

    @property
    def ratio(self) -> float | None:
        return None if not self.colocated or self.pd is None else self.pd / self.colocated

    def differs(self, noise: float) -> bool | None:
        """Whether the sides differ by more than ``noise`` (a share) and more than chance; None if unknown."""
        if self.ratio is None:
            return None
        if self.interval is not None and not self.interval.excludes_zero:
            return False
        return abs(self.ratio - 1) > noise


def compare_metrics(colocated: BenchResult | None, pd: BenchResult | None) -> dict[str, MetricPair]:
    """Every statistic that a side has, in reading order; intervals where samples or deviations allow them."""
    names = {*(colocated.numbers if colocated else {}), *(pd.numbers if pd else {})}
    found = {}
    for name in sorted(names, key=_reading_order):
        one = colocated.numbers.get(name) if colocated else None
        two = pd.numbers.get(name) if pd else None
        interval, source = None, None
        if colocated and pd and one is not None and two is not None:
            interval, source = _interval(name, colocated, pd)
        found[name] = MetricPair(colocated=one, pd=two, interval=interval, interval_from=source)
    return found


def _reading_order(name: str) -> tuple[int, int, float, str]:
    match = LATENCY.match(name)
    if not match:
        return (len(_ORDER), RATES.index(name), 0, name)
    statistic = match[1]
    rank = (
        float(statistic[1:])
        if statistic.startswith("p")
        else {"median": 50.0, "mean": 0.0}.get(statistic, 200.0)
    )
    return (_ORDER.index(match[2]), 0, rank, name)


def _interval(name: str, colocated: BenchResult, pd: BenchResult) -> tuple[Interval | None, str | None]:
    match = LATENCY.match(name)
    if not match or match[1] == "std" or match[2] == "e2el":
        return None, None
    statistic, metric = match[1], match[2]
    if colocated.requests and pd.requests:
        first, second = _draws(colocated, statistic, metric, 1), _draws(pd, statistic, metric, 2)
        if first and second:
            return difference_interval(first, second), "requests"
    if statistic in ("mean", "median") and metric in ("ttft", "tpot"):
        errors = [_standard_error(side, metric) for side in (colocated, pd)]
        if errors[0] is not None and errors[1] is not None:
            delta = (pd.numbers[name] or 0.0) - (colocated.numbers[name] or 0.0)
            half = _Z95 * math.hypot(errors[0], errors[1]) * (_MEDIAN_ERROR if statistic == "median" else 1.0)
            return Interval(low=delta - half, high=delta + half, confidence=0.95, resamples=0), "std"
    return None, None


def _standard_error(side: BenchResult, metric: str) -> float | None:
    deviation = side.ms("std", metric)
    return None if deviation is None or side.completed < 2 else deviation / math.sqrt(side.completed)


def _draws(side: BenchResult, statistic: str, metric: str, seed: int) -> list[float] | None:
    """Bootstrap draws in ms; None where they would cost too much for what they tell."""
    if metric == "itl":
        if not statistic.startswith("p") or float(statistic[1:]) < 95:
            return None
        groups = [request.itl_seconds for request in side.requests]
        if not any(groups):
            return None
        return [v * 1e3 for v in clustered_percentile_draws(groups, float(statistic[1:]), seed=seed)]
    values = samples_ms(side, metric)
    if not values:
        return None
    if statistic == "mean":
        return mean_draws(values, seed=seed)
    return percentile_draws(values, 50.0 if statistic == "median" else float(statistic[1:]), seed=seed)


def samples_ms(side: BenchResult, metric: str) -> list[float]:
    """The saved samples of ``ttft``, ``tpot`` or ``itl`` in ms; empty without ``--save-detailed``."""
    if metric == "ttft":
        return [r.ttft_seconds * 1e3 for r in side.requests]
    if metric == "tpot":
        return [t * 1e3 for r in side.requests if (t := r.tpot_seconds) is not None]
    return [v * 1e3 for r in side.requests for v in r.itl_seconds]


def tail_percentile(colocated: BenchResult, pd: BenchResult, metric: str = "itl") -> str | None:
    """The tail statistic that both sides have, p99 first, then the highest from p95 on; None if there is none."""
    common = {
        match[1]
        for name in colocated.numbers
        if (match := LATENCY.match(name)) and match[2] == metric and match[1].startswith("p")
        and colocated.numbers[name] is not None and pd.numbers.get(name) is not None
    }  # fmt: skip
    usable = sorted((p for p in common if float(p[1:]) >= 95), key=lambda p: float(p[1:]), reverse=True)
    return "p99" if "p99" in common else usable[0] if usable else None


def statistic_ms(side: BenchResult, metric: str, p: float) -> float | None:
    """The ``p``-th percentile in ms: from the file, else from the saved samples, else None."""
    told = side.ms("median" if p == 50 else f"p{p:g}", metric)
    if told is not None:
        return told
    values = samples_ms(side, metric)
    return percentile(values, p) if values else None
