"""KVP910 to KVP919: this run against an earlier one of the same subject."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvprobe.figures import LOWER, Figure, figures
from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.statistics import FEW_SAMPLES, bootstrap_interval, median
from kvprobe.policy import Policy
from kvprobe.report import Report
from kvprobe.rules.base import Rule, run_rules
from kvprobe.units import format_quantity, significant

KEY = "baseline_regression"
_SUBJECT = ("model", "revision", "kv_cache_dtype", "tp", "connector", "prefill", "decode")
_VERSIONS = ("driver", "cuda", "nixl", "ucx", "vllm", "torch")
_SET_AGAIN = Remedy(
    text="If the change was meant, keep this run as the new baseline.", commands=("kvprobe baseline set",)
)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure then and now, medians of raw samples in the figure's unit."""

    figure: Figure
    before: float
    now: float
    worse: float
    """Relative change, positive for the worse: 0.2 is a fifth slower."""
    outside_spread: bool
    """The 95 % intervals of the two medians do not touch."""


class BaselineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at; ``before_at`` is None when there is no baseline."""

    before_at: str | None = None
    differences: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    too_few: int = 0
    """Figures of both runs that have fewer than five samples in one of them."""


def told_by(now: Report, before: Report | None) -> BaselineFacts:
    """The two runs side by side; nothing is compared where their subjects differ."""
    if before is None:
        return BaselineFacts()
    at = before.run.started_at or "an unknown time"
    differences = tuple(_differences(_identity(before), _identity(now)))
    if before.run.command != now.run.command:
        differences = (f"command {before.run.command} then, {now.run.command} now", *differences)
    if differences:
        return BaselineFacts(before_at=at, differences=differences)
    old = {f.key: f for f in _sampled(before)}
    pairs = [(old[f.key], f) for f in _sampled(now) if f.key in old]
    enough = [(a, b) for a, b in pairs if min(len(a.samples), len(b.samples)) >= FEW_SAMPLES]
    changes = tuple(c for a, b in enough if (c := _change(a, b)) is not None)
    return BaselineFacts(before_at=at, changes=changes, too_few=len(pairs) - len(enough))


def compare(facts: BaselineFacts, policy: Policy) -> list[Finding]:
    """All findings of the comparison."""
    return run_rules(RULES, facts, policy)


def regression(facts: BaselineFacts, policy: Policy) -> Iterable[Finding]:
    """KVP910: no median has become worse than the baseline by more than the policy allows and the spread explains."""
    threshold = policy.threshold(KEY)
    expected = Expected(
        source=policy.cite(KEY), unit="ratio", max=threshold.fail_above or threshold.warn_above
    )
    worst = max(facts.changes, key=lambda c: c.worse, default=None)
    found = False
    for change in facts.changes:
        status = threshold.status(change.worse)
        if status is Status.PASS or not change.outside_spread:
            continue
        found = True
        yield Finding(
            id="KVP910",
            name="baseline-regression",
            status=status,
            title=f"{_told(change)}, {significant(change.worse * 100, 2)} % worse than the baseline",
            measured=Quantity(
                value=change.worse,
                unit="ratio",
                statistic="change of the median",
                samples=len(change.figure.samples),
            ),
            expected=expected,
            remedy=_SET_AGAIN,
            where=_where(change.figure),
            notes=(f"baseline of {facts.before_at}",),
            code="baseline_regression",
        )
    if worst is not None and not found:
        yield Finding(
            id="KVP910",
            name="baseline-regression",
            status=Status.PASS,
            title=f"{len(facts.changes)} medians hold against the baseline of {facts.before_at}",
            measured=Quantity(
                value=worst.worse,
                unit="ratio",
                statistic="largest change for the worse",
                samples=len(worst.figure.samples),
            ),
            expected=expected,
            notes=(f"furthest: {_told(worst)}",),
        )


def comparable(facts: BaselineFacts, policy: Policy) -> Iterable[Finding]:
    """KVP911: the baseline was taken with the same model, GPUs, driver, NIXL and UCX."""
    if facts.differences:
        yield Finding(
            id="KVP911",
            name="baseline-comparable",
            status=Status.WARN,
            title=f"not compared with the baseline: {facts.differences[0]}",
            notes=(*facts.differences[1:], f"baseline of {facts.before_at}"),
            remedy=_SET_AGAIN,
            code="baseline_differs",
        )


def available(facts: BaselineFacts, policy: Policy) -> Iterable[Finding]:
    """KVP912: a baseline is there, and some figure has five samples in both runs."""
    if facts.before_at is None:
        reason = "no baseline has been set for this command"
        remedy = Remedy(text="Keep a good run as the baseline first.", commands=("kvprobe baseline set",))
    elif not facts.differences and not facts.changes:
        few = f" ({facts.too_few} have fewer than {FEW_SAMPLES} samples)" if facts.too_few else ""
        reason = f"no figure of this run can be compared with the baseline of {facts.before_at}{few}"
        remedy = Remedy(text="Measure the same prompts with more samples, or set the baseline again.")
    else:
        return
    yield Finding(
        id="KVP912",
        name="baseline-available",
        status=Status.UNKNOWN,
        title=reason,
        remedy=remedy,
        code="baseline_missing",
    )


RULES: tuple[Rule[BaselineFacts], ...] = (
    Rule("KVP910", "baseline-regression", regression),
    Rule("KVP911", "baseline-comparable", comparable),
    Rule("KVP912", "baseline-available", available),
)


def _sampled(report: Report) -> list[Figure]:
    """Figures with raw samples, each set of samples once (rung 4 is a transfer series, too).

    Of an --all-pairs run those of the pairs: the figures without a pair are the worst pair's, and that may be
    another one next time.
    """
    found = [f for f in figures(report.result) if f.better and f.samples]
    if report.result.get("pairs"):
        found = [f for f in found if "pair" in f.labels]
    once: dict[tuple[str | None, tuple[float, ...]], Figure] = {}
    for figure in found:
        once.setdefault((figure.labels.get("pair"), figure.samples), figure)
    return list(once.values())


def _change(before: Figure, now: Figure) -> Change | None:
    old, new = median(before.samples), median(now.samples)
    if old <= 0:
        return None
    worse = (new - old) / old if now.better == LOWER else (old - new) / old
    then, here = bootstrap_interval(before.samples), bootstrap_interval(now.samples)
    apart = here.low > then.high or here.high < then.low
    return Change(figure=now, before=old, now=new, worse=worse, outside_spread=apart)


def _told(change: Change) -> str:
    unit = change.figure.unit
    then, here = format_quantity(change.before, unit), format_quantity(change.now, unit)
    return f"{change.figure.name} {_where(change.figure)}: {here}, was {then}".replace("  ", " ")


def _where(figure: Figure) -> str:
    return " ".join(f"{k}={v}" for k, v in figure.labels.items())


def _identity(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {k: report.subject[k] for k in _SUBJECT if report.subject.get(k) is not None}
    kv = report.result.get("kv")
    if isinstance(kv, dict):
        found |= {f"KV {k}": kv[k] for k in ("kv_cache_dtype", "block_size_tokens") if kv.get(k) is not None}
    if report.result.get("memory"):
        found["memory"] = report.result["memory"]
    for evidence in report.evidence:
        found |= {name: evidence.versions[name] for name in _VERSIONS if name in evidence.versions}
        if evidence.kind == "gpus":
            facts = msgspec.to_builtins(evidence.facts)
            gpus = facts.get("gpus") if isinstance(facts, dict) else None
            if isinstance(gpus, list):
                found["GPUs"] = sorted(str(g.get("name")) for g in gpus if isinstance(g, dict))
    return found


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterable[str]:
    """What both runs tell and tell differently."""
    for name in sorted(before.keys() & now.keys()):
        old, new = msgspec.to_builtins(before[name]), msgspec.to_builtins(now[name])
        if old != new:
            yield f"{name} {_short(old)} then, {_short(new)} now"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return str(value)
