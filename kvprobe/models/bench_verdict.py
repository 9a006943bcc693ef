"""From figures side by side to the decision that P/D is: what got better, what was paid for it, is it inside the targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_goodput import Goodput, SloCheck, share_changed
from kvprobe.models.bench_metrics import MetricPair, tail_percentile

NOISE = 0.05
"""Medians, means and throughputs closer than this are the same; run-to-run scatter of a busy server."""
TAIL_NOISE = 0.10
FEW_FOR_P99 = 500
"""Below this many requests fewer than five of them set the p99."""
_FEW_NOISE = 0.30
TTFT_TAX_SECONDS = 0.200

# What each blocking label leads to, worst first: nothing may be concluded beyond it.
LEADS_TO = (
    ("foreign_result_format", "not_comparable"),
    ("same_run", "not_comparable"),
    ("no_completed_requests", "invalid_run"),
    ("single_token_outputs", "invalid_run"),
    ("zero_ttft_with_completed_requests", "invalid_run"),
    ("no_kv_transfer_seen", "pd_not_active"),
    ("load_missing", "not_comparable"),
    ("model_differs", "not_comparable"),
    ("tokenizer_differs", "not_comparable"),
    ("backend_differs", "not_comparable"),
    ("input_tokens_per_request_differ", "not_comparable"),
    ("output_tokens_per_request_differ", "not_comparable"),
    ("request_rate_differs", "not_comparable"),
    ("max_concurrency_differs", "not_comparable"),
    ("burstiness_differs", "not_comparable"),
    ("suspect_prefix_cache", "suspect_prefix_cache"),
    ("failed_requests", "no_verdict"),
    ("saturated", "no_verdict"),
    ("tail_itl_missing", "no_verdict"),
)
INCONCLUSIVE = frozenset(verdict for _, verdict in LEADS_TO) | {"itl_unusable"}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that differs by more than noise."""

    name: str
    """``TTFT median``, ``ITL p99``, ``goodput`` ..."""
    better: bool
    """With P/D."""
    colocated: float
    pd: float
    unit: str
    """``s``, ``requests/s`` or ``ratio``."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    gains: tuple[Change, ...] = ()
    losses: tuple[Change, ...] = ()
    price: Change | None = None
    """A longer TTFT that stays inside the target, so that it does not count as a loss."""
    slo_broken: bool = False
    """P/D misses a target that the user or the benchmark set."""
    more_gpus: bool = False
    tax_limit: str = ""
    """Why a longer TTFT counts as a price only, such as ``inside the TTFT target``."""


def blocked(codes: Iterable[str]) -> str | None:
    """The verdict that the blocking labels leave; None when nothing blocks."""
    found = set(codes)
    return next((verdict for code, verdict in LEADS_TO if code in found), None)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision is taken from."""

    colocated: BenchResult
    pd: BenchResult
    metrics: dict[str, MetricPair]
    slo_colocated: tuple[SloCheck, ...] = ()
    slo_pd: tuple[SloCheck, ...] = ()
    goodput_colocated: Goodput | None = None
    goodput_pd: Goodput | None = None
    tax_limit_seconds: float = TTFT_TAX_SECONDS
    noise: float = NOISE
    tail_noise: float = TAIL_NOISE


def decide(figures: Figures) -> Decision:
    """The verdict on two comparable runs."""
    changes = [c for c in _changes(figures) if c is not None]
    ttft = next((c for c in changes if c.name == "TTFT median"), None)
    gains = tuple(c for c in changes if c.better)
    losses = tuple(c for c in changes if not c.better)
    pd_breaks, colocated_breaks = _broken(figures.slo_pd), _broken(figures.slo_colocated)
    goodput_lost = any(c.name == "goodput" for c in losses)
    inside, limit = _tax_inside(figures, losses, goodput_lost)
    price = None
    if ttft and not ttft.better and inside and gains:
        price = ttft
        losses = tuple(c for c in losses if not c.name.startswith("TTFT"))
    more_gpus = bool(figures.colocated.gpus and figures.pd.gpus and figures.pd.gpus > figures.colocated.gpus)
    verdict = _verdict(bool(gains), bool(losses), pd_breaks, colocated_breaks)
    if verdict == "pd_better" and more_gpus:
        verdict = "mixed"
    return Decision(
        verdict=verdict,
        gains=gains,
        losses=losses,
        price=price,
        slo_broken=bool(pd_breaks) or goodput_lost,
        more_gpus=more_gpus,
        tax_limit=limit,
    )


def _verdict(gains: bool, losses: bool, pd_breaks: set[str], colocated_breaks: set[str]) -> str:
    if pd_breaks - colocated_breaks:
        return "mixed" if gains else "pd_worse"
    if colocated_breaks - pd_breaks and not pd_breaks:
        return "pd_better"
    if gains and (losses or pd_breaks):
        return "mixed"
    return "pd_better" if gains else "pd_worse" if losses else "no_difference"


def _broken(checks: Sequence[SloCheck]) -> set[str]:
    return {c.metric for c in checks if c.met is False}


def _tax_inside(figures: Figures, losses: Sequence[Change], goodput_lost: bool) -> tuple[bool, str]:
    target = next((c for c in figures.slo_pd if c.metric == "ttft"), None)
    if target is not None:
        return target.met is True, "inside the TTFT target"
    if figures.goodput_colocated and figures.goodput_pd:
        return not goodput_lost, "goodput is kept"
    tax = max((c.pd - c.colocated for c in losses if c.name.startswith("TTFT")), default=0.0)
    return tax <= figures.tax_limit_seconds, f"under {figures.tax_limit_seconds * 1e3:g} ms (no target given)"


def _changes(figures: Figures) -> Iterable[Change | None]:
    # With few requests the p99 is set by one or two of them: only a large difference counts.
    few = min(figures.colocated.completed, figures.pd.completed) < FEW_FOR_P99
    yield _latency(figures, "median", "ttft", figures.noise)
    yield _latency(figures, "p99", "ttft", _FEW_NOISE if few else figures.tail_noise)
    tail = tail_percentile(figures.colocated, figures.pd)
    if tail:
        yield _latency(figures, tail, "itl", figures.tail_noise)
    yield _latency(figures, "mean", "tpot", figures.noise)
    throughput = figures.metrics.get("request_throughput")
    if throughput and throughput.differs(figures.noise):
        yield _change("throughput", throughput, "requests/s", more_is_better=True)
    one, two = figures.goodput_colocated, figures.goodput_pd
    if one and two and share_changed(one, two):
        pair = MetricPair(colocated=one.share, pd=two.share)
        yield _change("goodput", pair, "ratio", more_is_better=True)


def _latency(figures: Figures, statistic: str, metric: str, noise: float) -> Change | None:
    name = f"{statistic}_{metric}_ms"
    pair = figures.metrics.get(name)
    if pair is None or not pair.differs(noise) or _ranges_touch(figures, name):
        return None
    assert pair.colocated is not None and pair.pd is not None  # differs() is None otherwise
    seconds = MetricPair(colocated=pair.colocated / 1e3, pd=pair.pd / 1e3)
    return _change(f"{metric.upper()} {statistic}", seconds, "s", more_is_better=False)


def _ranges_touch(figures: Figures, name: str) -> bool:
    """Repeated runs on both sides whose ranges overlap: the difference is run-to-run scatter."""
    one, two = figures.colocated.run_range.get(name), figures.pd.run_range.get(name)
    return one is not None and two is not None and one[0] <= two[1] and two[0] <= one[1]


def _change(name: str, pair: MetricPair, unit: str, *, more_is_better: bool) -> Change:
    assert pair.colocated is not None and pair.pd is not None
    better = (pair.pd > pair.colocated) == more_is_better
    return Change(name=name, better=better, colocated=pair.colocated, pd=pair.pd, unit=unit)
