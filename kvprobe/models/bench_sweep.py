"""Runs of a rate sweep: which of both sides belong together, repeated runs pooled, and where each side gives in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_checks import saturation
from kvprobe.models.bench_goodput import Slo, check_slo, goodput
from kvprobe.models.statistics import median


class Load(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a run asked of the server."""

    request_rate: float
    """Requests/s; ``inf``: all at once; -1: the file does not tell."""
    max_concurrency: float
    """``inf``: not limited."""

    @property
    def words(self) -> str:
        rate = "all at once" if math.isinf(self.request_rate) else f"{self.request_rate:g} requests/s"
        if self.request_rate < 0:
            rate = "an untold rate"
        return rate if math.isinf(self.max_concurrency) else f"{rate}, {self.max_concurrency:g} in flight"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides at one load; None: that side has no run there."""

    load: Load | None
    """None: two single runs at different loads."""
    colocated: BenchResult | None
    pd: BenchResult | None


def load_of(run: BenchResult) -> Load:
    rate = -1.0 if run.request_rate is None else run.request_rate
    return Load(request_rate=rate, max_concurrency=run.max_concurrency or math.inf)


def by_load(runs: Sequence[BenchResult]) -> dict[Load, BenchResult]:
    """One result a load, repeated runs pooled."""
    groups: dict[Load, list[BenchResult]] = {}
    for run in runs:
        groups.setdefault(load_of(run), []).append(run)
    return {load: pool(groups[load]) for load in sorted(groups)}


def pool(runs: Sequence[BenchResult]) -> BenchResult:
    """Repeated runs of one load: counts added, every statistic the median over the runs, its range kept."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    numbers: dict[str, float | None] = {}
    ranges: dict[str, tuple[float, float]] = {}
    for name in first.numbers:
        told = [v for run in runs if (v := run.numbers.get(name)) is not None]
        numbers[name] = median(told) if len(told) == len(runs) else None
        if len(told) == len(runs):
            ranges[name] = (min(told), max(told))
    prompts = [run.num_prompts for run in runs]
    return msgspec.structs.replace(
        first,
        source=f"{first.source} and {len(runs) - 1} more",
        num_prompts=sum(p or 0 for p in prompts) if all(prompts) else None,
        duration_seconds=sum(run.duration_seconds for run in runs),
        completed=sum(run.completed for run in runs),
        failed=sum(run.failed for run in runs),
        total_input_tokens=sum(run.total_input_tokens for run in runs),
        total_output_tokens=sum(run.total_output_tokens for run in runs),
        numbers=numbers,
        latencies_seconds=tuple(v for run in runs for v in run.latencies_seconds),
        requests=tuple(r for run in runs for r in run.requests) if all(run.requests for run in runs) else (),
        runs=len(runs),
        run_range=ranges,
    )


def pair_up(colocated: Sequence[BenchResult], pd: Sequence[BenchResult]) -> tuple[Pair, ...]:
    """Pairs by load, lowest first; two single loads are one pair even when they differ."""
    one, two = by_load(colocated), by_load(pd)
    if len(one) <= 1 and len(two) <= 1:
        load = next(iter(one), None)
        return (
            Pair(
                load=load if load in two else None,
                colocated=next(iter(one.values()), None),
                pd=next(iter(two.values()), None),
            ),
        )
    return tuple(Pair(load=load, colocated=one.get(load), pd=two.get(load)) for load in sorted({*one, *two}))


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a sweep at one load, held against the targets."""

    load: Load
    carries: bool | None
    """None: the files do not tell."""
    because: str
    """What broke, such as ``TTFT p99``; empty when it carries the load."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest load that a side carries inside the targets, and the lowest at which it does not."""

    basis: str
    """``targets``, ``goodput`` (90 % of the requests good) or ``queue`` (no target: the rate is served)."""
    carries: Load | None
    breaks_at: Load | None
    because: str
    points: tuple[Carried, ...]


GOOD_SHARE = 0.9


def capacity(runs: dict[Load, BenchResult], slo: Slo) -> Capacity | None:
    """Where one side of a sweep gives in; None for fewer than two loads."""
    if len(runs) < 2:
        return None
    basis = "targets" if slo.given else "queue"
    if not slo.given and all(goodput(run, slo) for run in runs.values()):
        basis = "goodput"
    points = tuple(_carried(load, run, slo, basis) for load, run in sorted(runs.items()))
    broken = next((p for p in points if p.carries is False), None)
    # A load above the first broken one does not count, even if chance let it pass.
    held = [p.load for p in points if p.carries and (broken is None or p.load < broken.load)]
    return Capacity(
        basis=basis,
        carries=held[-1] if held else None,
        breaks_at=broken.load if broken else None,
        because=broken.because if broken else "",
        points=points,
    )


def _carried(load: Load, run: BenchResult, slo: Slo, basis: str) -> Carried:
    if not run.completed:
        return Carried(load=load, carries=False, because="no request completed")
    told = saturation(run)
    if told and told.saturated:
        return Carried(load=load, carries=False, because="the queue grows")
    if basis == "targets":
        checks = check_slo(run, slo)
        broken = [f"{c.metric.upper()} p{slo.percentile:g}" for c in checks if c.met is False]
        unknown = any(c.met is None for c in checks)
        carries = False if broken else None if unknown else True
        return Carried(load=load, carries=carries, because=", ".join(broken))
    if basis == "goodput":
        good = goodput(run, slo)
        carries = None if good is None else good.share >= GOOD_SHARE
        return Carried(load=load, carries=carries, because="" if carries else "goodput")
    return Carried(load=load, carries=True, because="")


def cache_fills(runs: dict[Load, BenchResult]) -> tuple[Load, Load] | None:
    """Two loads of one side between which TTFT falls by a third or more although the rate rises.

    The same seed at every rate sends the same prompts again, so later runs find them in the prefix cache.
    """
    told = [(load, run.ms("median", "ttft"), run) for load, run in sorted(runs.items())]
    for (low, before, a), (high, after, b) in zip(told, told[1:], strict=False):
        same = abs((a.input_tokens_per_request or 0) / (b.input_tokens_per_request or 1) - 1) < 0.02
        if before and after and same and after < before * 2 / 3:
            return low, high
    return None
