"""``kvprobe compare``: read both sides, pair them by load, look for traps, decide, and sum the sweep up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.finding import Finding, Status
from kvprobe.flows import Door, Draft
from kvprobe.flows.compare_result import pair_result, sweep_result
from kvprobe.models.bench_facts import CompareFacts, SweepFacts
from kvprobe.models.bench_goodput import Slo, check_slo, goodput
from kvprobe.models.bench_log import DecodeLog, merge, read_decode_log
from kvprobe.models.bench_metrics import compare_metrics
from kvprobe.models.bench_overall import PointVerdict, decide_sweep
from kvprobe.models.bench_sweep import Pair, by_load, cache_fills, capacity, pair_up
from kvprobe.models.bench_verdict import (
    NOISE,
    TAIL_NOISE,
    TTFT_TAX_SECONDS,
    Decision,
    Figures,
    blocked,
    decide,
)
from kvprobe.policy import Policy
from kvprobe.probes.bench_results import Side, read_side
from kvprobe.rules import compare as verdict_rules
from kvprobe.rules import compare_decoding, compare_sweep, compare_traps, compare_workload
from kvprobe.rules.base import run_rules

_TRAPS = (*compare_workload.RULES, *compare_traps.RULES, *compare_decoding.RULES)


def flow(door: Door, params: dict[str, Any]) -> Draft:
    """``params``: ``results`` (colocated, P/D, further P/D), ``decode_log``, the targets in seconds."""
    paths: Sequence[str] = params["results"]
    if len(paths) < 2:
        raise UsageError(
            "compare needs two results: the colocated one, then the P/D one.",
            "kvprobe compare COLOCATED.json PD.json",
        )
    for name in ("ttft_slo", "tpot_slo", "itl_slo"):
        if params.get(name) is not None and not params[name] > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be more than 0.")
    slo = Slo(
        ttft_seconds=params.get("ttft_slo"),
        tpot_seconds=params.get("tpot_slo"),
        itl_seconds=params.get("itl_slo"),
        percentile=params.get("slo_percentile") or 99.0,
    )
    door.progress.step("Reading the results")
    names = ["colocated", *(["pd"] if len(paths) == 2 else [f"pd-{n}" for n in range(1, len(paths))])]
    sides = [read_side(door.system, name, path) for name, path in zip(names, paths, strict=True)]
    logs = [read_decode_log(door.system.read_text(path), path) for path in params.get("decode_log") or ()]
    evidence: list[AnyEvidence] = [_shown(side) for side in sides]
    evidence += [
        Evidence(id=f"decode-log-{n}", kind="decode_log", origin=Origin.PARSED, source=log.source, facts=log)
        for n, log in enumerate(logs, 1)
    ]
    if logs and len(sides) > 2:
        raise UsageError("--decode-log goes with one P/D result.", "Compare the P/D results one at a time.")
    door.progress.step("Comparing")
    results, findings = [], []
    for side in sides[1:]:
        found, result = _compare(sides[0].facts, side.facts, merge(logs), slo, door.policy)
        if len(sides) > 2:
            found = [
                msgspec.structs.replace(f, where=", ".join(filter(None, (side.source, f.where))))
                for f in found
            ]
        findings += found
        results.append({"pd_source": side.source, **result})
    result = {k: v for k, v in results[0].items() if k != "pd_source"}
    if len(results) > 1:
        result["comparisons"] = results
    first = next((run for side in sides for run in side.facts.runs), None)
    model = first.model_id if first else None
    subject = {"model": model, "colocated": paths[0], "pd": paths[1] if len(paths) == 2 else list(paths[1:])}
    return Draft(subject=subject, findings=tuple(findings), evidence=tuple(evidence), result=result)


def _shown(side: Evidence[Side]) -> AnyEvidence:
    """The evidence without the samples: which files, how many runs of which date."""
    facts = {
        "side": side.facts.name,
        "runs": [
            {"source": r.source, "date": r.date, "completed": r.completed, "saved_requests": len(r.requests)}
            for r in side.facts.runs
        ],
    }
    return Evidence(id=side.id, kind=side.kind, origin=side.origin, source=side.source, facts=facts)


def _compare(
    colocated: Side, pd: Side, log: DecodeLog | None, slo: Slo, policy: Policy
) -> tuple[list[Finding], dict[str, Any]]:
    if colocated.unreadable or pd.unreadable:
        facts = CompareFacts(
            colocated=next(iter(colocated.runs), None),
            pd=next(iter(pd.runs), None),
            unreadable=(*colocated.unreadable, *pd.unreadable),
            slo=slo,
        )
        findings, judged = _judge(facts, policy)
        return findings, pair_result(judged, findings)
    pairs = pair_up(colocated.runs, pd.runs)
    if len(pairs) == 1:
        findings, judged = _judge(_facts(pairs[0], None, log, slo), policy)
        return findings, pair_result(judged, findings)
    return _sweep(colocated, pd, pairs, log, slo, policy)


def _facts(pair: Pair, where: str | None, log: DecodeLog | None, slo: Slo) -> CompareFacts:
    return CompareFacts(colocated=pair.colocated, pd=pair.pd, where=where, log=log, slo=slo)


def _judge(facts: CompareFacts, policy: Policy) -> tuple[list[Finding], CompareFacts]:
    """Traps first; the figures are only weighed when none of them blocks."""
    traps = run_rules(_TRAPS, facts, policy)
    codes = [f.code for f in traps if f.status is Status.UNKNOWN and f.code]
    # Nothing completed: one finding says so, and both labels hold.
    codes += ["failed_requests"] if "no_completed_requests" in codes else []
    blocking = tuple(dict.fromkeys(codes))
    verdict = blocked(blocking)
    one, two = facts.colocated, facts.pd
    if verdict is not None or one is None or two is None:
        decision = Decision(verdict=verdict or "not_comparable")
        return traps, msgspec.structs.replace(facts, blocking=blocking, decision=decision)
    figures = Figures(
        colocated=one,
        pd=two,
        metrics=compare_metrics(one, two),
        slo_colocated=check_slo(one, facts.slo),
        slo_pd=check_slo(two, facts.slo),
        goodput_colocated=goodput(one, facts.slo),
        goodput_pd=goodput(two, facts.slo),
        tax_limit_seconds=_limit(policy, "compare_ttft_tax_seconds", TTFT_TAX_SECONDS),
        noise=_limit(policy, "compare_noise", NOISE),
        tail_noise=_limit(policy, "compare_tail_noise", TAIL_NOISE),
    )
    decision = decide(figures)
    if any(f.code == "itl_bundled" for f in traps):
        decision = Decision(verdict="itl_unusable")
    facts = msgspec.structs.replace(facts, figures=figures, decision=decision)
    return traps + run_rules(verdict_rules.RULES, facts, policy), facts


def _limit(policy: Policy, key: str, default: float) -> float:
    threshold = policy.thresholds.get(key)
    return threshold.warn_above if threshold and threshold.warn_above is not None else default


def _sweep(
    colocated: Side, pd: Side, pairs: tuple[Pair, ...], log: DecodeLog | None, slo: Slo, policy: Policy
) -> tuple[list[Finding], dict[str, Any]]:
    judged = []
    for pair in pairs:
        assert pair.load is not None  # only a lone pair has none
        judged.append(_judge(_facts(pair, f"at {pair.load.words}", log, slo), policy))
    one, two = by_load(colocated.runs), by_load(pd.runs)
    carried = capacity(one, slo), capacity(two, slo)
    filled = tuple(
        (side, *loads)
        for side, runs in (("colocated", one), ("P/D", two))
        if (loads := cache_fills(runs)) is not None
    )
    points = [
        PointVerdict(
            load=pair.load,
            verdict=point.decision.verdict,
            comparable=not point.blocking,
            more_gpus=point.decision.more_gpus,
        )
        for (_, point), pair in zip(judged, pairs, strict=True)
        if pair.load and point.decision
    ]
    facts = SweepFacts(
        colocated=carried[0],
        pd=carried[1],
        filled_cache=filled,
        decision=decide_sweep(points, *carried, filled_cache=bool(filled)),
    )
    sweep_findings = run_rules((compare_sweep.SWEEP_DECISION, *compare_sweep.RULES), facts, policy)
    compared = any(point.comparable for point in points)
    per_load = {rule.id for rule in verdict_rules.RULES}
    findings = [
        # Where other loads can be compared, one that cannot (the saturated end of a sweep) decides nothing.
        msgspec.structs.replace(f, status=Status.SKIP)
        if compared and point.blocking and f.status is not Status.PASS
        else f
        for found, point in judged
        for f in found
        # The decision on each load stands in the table; the sweep has one of its own.
        if f.id not in per_load or f.id == "KVP634"
    ]
    return [*_collapsed(findings), *sweep_findings], sweep_result([(p, f) for f, p in judged], facts, pairs)


def _collapsed(findings: list[Finding]) -> list[Finding]:
    """One line for what passes at several loads."""
    kept: list[Finding] = []
    for finding in findings:
        same = [f for f in findings if f.id == finding.id and f.status is Status.PASS]
        if finding.status is not Status.PASS or len(same) == 1:
            kept.append(finding)
        elif finding is same[0]:
            title = f"{finding.title} (and at {len(same) - 1} more load{'s' if len(same) > 2 else ''})"
            kept.append(msgspec.structs.replace(finding, title=title))
    return kept
