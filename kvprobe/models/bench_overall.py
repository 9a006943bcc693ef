"""One verdict for a rate sweep: what each side carries inside the targets, else what the single loads say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.bench_sweep import Capacity, Load
from kvprobe.models.bench_verdict import INCONCLUSIVE, LEADS_TO


class PointVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision at one load."""

    load: Load
    verdict: str
    comparable: bool
    more_gpus: bool = False


class SweepDecision(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    by_capacity: bool
    """The highest load inside the targets decided, not the single loads."""
    slo_broken: bool = False
    """P/D carries less than colocated inside the given targets."""
    points: tuple[PointVerdict, ...] = ()


def decide_sweep(
    points: Sequence[PointVerdict],
    colocated: Capacity | None,
    pd: Capacity | None,
    *,
    filled_cache: bool,
) -> SweepDecision:
    """A load at which both sides break decides nothing; the one up to which each side holds does."""
    told = tuple(points)
    if filled_cache:
        return SweepDecision(verdict="suspect_prefix_cache", by_capacity=False, points=told)
    usable = [p for p in told if p.verdict not in INCONCLUSIVE]
    one, two = _carried(colocated), _carried(pd)
    held = colocated is not None and pd is not None and "queue" not in (colocated.basis, pd.basis)
    if not usable or not held or one == two:
        inside = [p for p in usable if held and two is not None and p.load <= two]
        verdict = overall([p.verdict for p in inside or usable or told])
        return SweepDecision(
            verdict=verdict, by_capacity=False, slo_broken=held and two is None, points=told
        )  # fmt: skip
    gains = any(p.verdict in ("pd_better", "mixed") for p in usable)
    if one is None or (two is not None and two > one):
        verdict = "mixed" if any(p.more_gpus for p in usable) else "pd_better"
        return SweepDecision(verdict=verdict, by_capacity=True, points=told)
    return SweepDecision(
        verdict="mixed" if gains else "pd_worse", by_capacity=True, slo_broken=True, points=told
    )  # fmt: skip


def _carried(told: Capacity | None) -> Load | None:
    return told.carries if told else None


def overall(verdicts: Sequence[str]) -> str:
    """One verdict for several loads; those that allow no conclusion do not count beside others."""
    told = {v for v in verdicts if v not in INCONCLUSIVE}
    if not told:
        return next((v for _, v in LEADS_TO if v in verdicts), verdicts[0] if verdicts else "no_verdict")
    if told <= {"pd_better", "no_difference"}:
        return "pd_better" if "pd_better" in told else "no_difference"
    if told <= {"pd_worse", "no_difference"}:
        return "pd_worse"
    return "mixed"
