"""The TTFT tax of a measured pair: estimates, budget rules, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvprobe.evidence import Origin
from kvprobe.finding import Finding
from kvprobe.flows import Door
from kvprobe.flows.ladder import Plan
from kvprobe.flows.preflight_request import PreflightRequest
from kvprobe.models.prompt_steps import JUDGED_TOKENS
from kvprobe.models.ttft import Calibration, TaxEstimate, tax
from kvprobe.rules.advice import RULES as ADVICE_RULES
from kvprobe.rules.advice import AdviceFacts, advice_of
from kvprobe.rules.base import run_rules
from kvprobe.rules.budget import RULES as BUDGET_RULES
from kvprobe.rules.budget import BudgetFacts
from kvprobe.rules.ladder_facts import LadderFacts


def tax_estimates(
    plan: Plan,
    facts: LadderFacts,
    vllm_version: str | None,
    kv_buffer_device: str,
    calibration: Calibration | None,
) -> dict[int, TaxEstimate]:
    """By prompt length; the transfer is measured where it was, else the run's own fit, marked where it extrapolates."""
    run = facts.transfer
    if run is None or not run.series:
        return {}
    fitted = run.fit(plan.operation)
    found: dict[int, TaxEstimate] = {}
    for tokens, planned in plan.plans.items():
        series = run.find(plan.operation, "shuffled", tokens)
        if series is not None and series.median_seconds is not None:
            seconds, origin = series.median_seconds, Origin.MEASURED
            source = f"rung 4, median of {len(series.seconds)}"
        elif fitted is not None:
            seconds = fitted.predict(planned.descriptors, planned.bytes)
            inside = fitted.covers(planned.descriptors, planned.bytes)
            origin = Origin.MEASURED if inside else Origin.ASSUMED
            source = "cost fit of this run" + ("" if inside else ", extrapolated beyond what was measured")
        else:
            continue
        found[tokens] = tax(
            tokens,
            seconds,
            vllm_version=vllm_version,
            bytes=planned.bytes,
            kv_buffer_device=kv_buffer_device,
            calibration=calibration,
            transfer_origin=origin,
            transfer_source=source,
        )
    return found


def tax_rows(plan: Plan, estimates: Mapping[int, TaxEstimate]) -> list[dict[str, Any]]:
    """``result.tax``, shortest prompt first."""
    plans = plan.plans
    rows = []
    for tokens, estimate in estimates.items():
        moved = next(t for t in estimate.terms if t.name == "transfer")
        rows.append(
            {
                **msgspec.to_builtins(estimate),
                "bytes": plans[tokens].bytes,
                "descriptors": plans[tokens].descriptors,
                "transfer_seconds": moved.seconds,
                "transfer_origin": moved.origin.value,
                "transfer_source": moved.source,
            }
        )
    return rows


def judge_tax(
    door: Door, request: PreflightRequest, estimates: Mapping[int, TaxEstimate]
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Budget and advice findings, and ``result.advice`` where a case was stated."""
    budget = BudgetFacts(
        estimates=tuple(estimates.values()),
        judged_tokens=JUDGED_TOKENS,
        ttft_slo_seconds=request.ttft_slo,
        base_ttft_seconds=request.base_ttft,
    )
    found = run_rules(BUDGET_RULES, budget, door.policy)
    judged = estimates.get(JUDGED_TOKENS)
    if judged is None or not request.case.told:
        return found, None
    moved = next(t for t in judged.terms if t.name == "transfer")
    facts = AdviceFacts(
        prompt_tokens=JUDGED_TOKENS,
        transfer_seconds=moved.seconds,
        transfer_origin=moved.origin,
        tax_seconds=judged.p50_seconds,
        case=request.case,
    )
    advice = advice_of(facts, door.policy)
    return [*found, *run_rules(ADVICE_RULES, facts, door.policy)], msgspec.to_builtins(advice)
