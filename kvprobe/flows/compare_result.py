"""The ``result`` of ``kvprobe compare``: its keys are documented in the README; ``..._ms`` keys are vLLM's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.finding import Finding, Status
from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_facts import CompareFacts, SweepFacts
from kvprobe.models.bench_goodput import Goodput, SloCheck, check_slo, goodput, samples_behind
from kvprobe.models.bench_log import tax_share
from kvprobe.models.bench_metrics import MetricPair, compare_metrics, samples_ms
from kvprobe.models.bench_sweep import Capacity, Load, Pair
from kvprobe.models.statistics import percentile_sorted

_CURVE_POINTS = 101


def pair_result(facts: CompareFacts, findings: Sequence[Finding]) -> dict[str, Any]:
    """One pair of runs: verdict, figures of both sides, targets, tax and the curves of a chart."""
    one, two = facts.colocated, facts.pd
    metrics = facts.figures.metrics if facts.figures else compare_metrics(one, two)
    decision = facts.decision
    return {
        "comparable": not facts.blocking and one is not None and two is not None,
        "blocking": list(facts.blocking),
        "warnings": list(
            dict.fromkeys(f.code for f in findings if f.status is Status.WARN and f.code and f.id != "KVP620")
        ),
        "verdict": decision.verdict if decision else None,
        "metrics": {name: _metric(pair) for name, pair in metrics.items()},
        "sides": {"colocated": _side(one), "pd": _side(two)},
        "slo": _slo(facts),
        "goodput": {"colocated": _goodput(one, facts), "pd": _goodput(two, facts)},
        "ttft_tax": _tax(facts, metrics),
        "series": {"colocated": _curves(one), "pd": _curves(two)},
    }


def _metric(pair: MetricPair) -> dict[str, Any]:
    found: dict[str, Any] = {
        "colocated": pair.colocated,
        "pd": pair.pd,
        "delta_pd_minus_colocated": pair.delta,
        "ratio_pd_over_colocated": pair.ratio,
    }
    if pair.interval is not None:
        found["delta_interval"] = {
            "low": pair.interval.low,
            "high": pair.interval.high,
            "confidence": pair.interval.confidence,
            "from": pair.interval_from,
        }
    return found


def _side(run: BenchResult | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "source": run.source,
        "date": run.date,
        "model": run.model_id,
        "backend": run.backend,
        "request_rate": _rate(run.request_rate),
        "max_concurrency": run.max_concurrency,
        "runs": run.runs,
        "completed": run.completed,
        "failed": run.failed,
        "token_gaps": samples_behind(run, "itl"),
        "input_tokens_per_request": run.input_tokens_per_request,
        "output_tokens_per_request": run.output_tokens_per_request,
        "gpus": run.gpus,
        "output_throughput_per_gpu": _per_gpu(run),
        "run_range": run.run_range,
    }


def _per_gpu(run: BenchResult) -> float | None:
    throughput = run.numbers.get("output_throughput")
    return throughput / run.gpus if throughput is not None and run.gpus else None


def _rate(rate: float | None) -> float | str | None:
    return "inf" if rate is not None and math.isinf(rate) else rate


def _slo(facts: CompareFacts) -> dict[str, Any] | None:
    if not facts.slo.given:
        return None
    told = facts.slo
    return {
        "percentile": told.percentile,
        "ttft_seconds": told.ttft_seconds,
        "tpot_seconds": told.tpot_seconds,
        "itl_seconds": told.itl_seconds,
        "colocated": _checks(facts, facts.colocated),
        "pd": _checks(facts, facts.pd),
    }


def _checks(facts: CompareFacts, run: BenchResult | None) -> dict[str, Any] | None:
    if run is None or facts.blocking:
        return None
    checks: tuple[SloCheck, ...] = check_slo(run, facts.slo)
    return {c.metric: {"seconds": c.seconds, "met": c.met, "samples": c.samples} for c in checks}


def _goodput(run: BenchResult | None, facts: CompareFacts) -> dict[str, Any] | None:
    found: Goodput | None = goodput(run, facts.slo) if run else None
    return None if found is None else msgspec.to_builtins(found)


def _tax(facts: CompareFacts, metrics: dict[str, MetricPair]) -> dict[str, Any] | None:
    pair = metrics.get("median_ttft_ms")
    if facts.blocking or pair is None or pair.delta is None:
        return None
    told = tax_share(pair.delta, facts.log)
    return {
        "measured_median_delta_ms": pair.delta,
        "kv_transfer_ms_from_log": facts.log.transfer_seconds * 1e3
        if facts.log and facts.log.transfer_seconds is not None
        else None,
        "transfers_in_log": facts.log.transfers if facts.log else None,
        "share_explained_by_transfer": told.share if told else None,
    }


def _curves(run: BenchResult | None) -> dict[str, Any]:
    """Percentiles 0, 1 ... 100 of the saved samples, for a distribution chart; empty without samples."""
    found: dict[str, Any] = {}
    for metric in ("ttft", "tpot", "itl"):
        values = sorted(samples_ms(run, metric)) if run else []
        if values:
            found[f"{metric}_ms_percentiles"] = [percentile_sorted(values, p) for p in range(_CURVE_POINTS)]
    return found


def sweep_result(
    judged: Sequence[tuple[CompareFacts, Sequence[Finding]]],
    facts: SweepFacts,
    pairs: Sequence[Pair],
) -> dict[str, Any]:
    """A rate sweep: ``points`` holds a pair result a load; the metrics on top are those of the highest comparable one."""
    points = []
    for (point, findings), pair in zip(judged, pairs, strict=True):
        points.append({**_load(pair.load), **pair_result(point, findings)})
    usable = [p for p in points if p["comparable"]]
    shown = usable[-1] if usable else points[-1]
    blocking = [] if usable else list(dict.fromkeys(b for p in points for b in p["blocking"]))
    if facts.filled_cache:
        blocking = ["suspect_prefix_cache"]
    return {
        **shown,
        "comparable": bool(usable) and not facts.filled_cache,
        "blocking": blocking,
        "warnings": list(dict.fromkeys(w for p in points for w in p["warnings"])),
        "verdict": facts.decision.verdict if facts.decision else None,
        "points": points,
        "capacity": {"colocated": _capacity(facts.colocated), "pd": _capacity(facts.pd)},
    }


def _load(load: Load | None) -> dict[str, Any]:
    if load is None:
        return {"request_rate": None, "max_concurrency": None}
    rate = None if load.request_rate < 0 else _rate(load.request_rate)
    return {
        "request_rate": rate,
        "max_concurrency": None if math.isinf(load.max_concurrency) else load.max_concurrency,
    }


def _capacity(told: Capacity | None) -> dict[str, Any] | None:
    if told is None:
        return None
    return {
        "basis": told.basis,
        "carries": _load(told.carries) if told.carries else None,
        "breaks_at": _load(told.breaks_at) if told.breaks_at else None,
        "because": told.because,
        "points": [{**_load(p.load), "carries": p.carries, "because": p.because} for p in told.points],
    }
