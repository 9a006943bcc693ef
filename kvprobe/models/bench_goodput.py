"""Service-level objectives against a benchmark: met or not, and how many requests a second keep all of them."""

from __future__ import annotations

import msgspec

from kvprobe.formats.bench_result import BenchResult, RawRequest
from kvprobe.models.bench_metrics import statistic_ms
from kvprobe.models.statistics import percentile

METRICS = ("ttft", "tpot", "itl")


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """The user's targets in seconds; None: no target. ``percentile`` of the samples has to meet each."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    itl_seconds: float | None = None
    percentile: float = 99.0

    def of(self, metric: str) -> float | None:
        value: float | None = getattr(self, f"{metric}_seconds")
        return value

    @property
    def given(self) -> bool:
        return any(self.of(m) is not None for m in METRICS)


class SloCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One target on one side."""

    metric: str
    limit_seconds: float
    seconds: float | None
    """The percentile; None when the file does not hold it."""
    samples: int | None

    @property
    def met(self) -> bool | None:
        return None if self.seconds is None else self.seconds <= self.limit_seconds


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second inside the targets."""

    requests_per_second: float
    share: float
    """Of all requests that were sent, failed ones included."""
    source: str
    """``requests``: counted here from saved samples; ``file``: ``request_goodput`` of ``--goodput``."""
    requests: int
    """How many requests the share is of."""


def check_slo(run: BenchResult, slo: Slo) -> tuple[SloCheck, ...]:
    """Every given target against the run's percentile."""
    found = []
    for metric in METRICS:
        limit = slo.of(metric)
        if limit is None:
            continue
        value = statistic_ms(run, metric, slo.percentile)
        found.append(
            SloCheck(
                metric=metric,
                limit_seconds=limit,
                seconds=None if value is None else value / 1e3,
                samples=samples_behind(run, metric),
            )
        )
    return tuple(found)


def samples_behind(run: BenchResult, metric: str) -> int:
    """How many samples a statistic of the run rests on: requests, or token gaps."""
    return max(0, run.total_output_tokens - run.completed) if metric == "itl" else run.completed


def goodput(run: BenchResult, slo: Slo) -> Goodput | None:
    """From the saved requests and the given targets, else what ``--goodput`` wrote; None: not known."""
    if slo.given and run.requests and run.duration_seconds:
        good = sum(keeps(request, slo) for request in run.requests)
        return Goodput(
            requests_per_second=good / run.duration_seconds,
            share=good / max(run.sent, 1),
            source="requests",
            requests=run.sent,
        )
    told, throughput = run.numbers.get("request_goodput"), run.numbers.get("request_throughput")
    if told is None or not throughput or not run.sent:
        return None
    share = told / throughput * run.completed / run.sent
    return Goodput(requests_per_second=told, share=share, source="file", requests=run.sent)


def keeps(request: RawRequest, slo: Slo) -> bool:
    """TTFT and TPOT as vLLM's ``--goodput`` counts them; for ITL the percentile of the request's own gaps."""
    if slo.ttft_seconds is not None and request.ttft_seconds > slo.ttft_seconds:
        return False
    tpot = request.tpot_seconds
    if slo.tpot_seconds is not None and tpot is not None and tpot > slo.tpot_seconds:
        return False
    if slo.itl_seconds is None or not request.itl_seconds:
        return True
    return percentile(request.itl_seconds, slo.percentile) <= slo.itl_seconds


def share_changed(one: Goodput, two: Goodput) -> bool:
    """Whether two good shares differ by more than chance (two-proportion z test, 95 %)."""
    pooled = (one.share * one.requests + two.share * two.requests) / (one.requests + two.requests)
    variance = pooled * (1 - pooled) * (1 / one.requests + 1 / two.requests)
    if variance <= 0:
        return one.share != two.share
    return bool(abs(two.share - one.share) > 1.96 * float(variance) ** 0.5)
