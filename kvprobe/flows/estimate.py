"""``kvprobe estimate``: what P/D would cost over a link that is named, or with a cost that another run fitted."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kvprobe.errors import FormatError, UsageError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.finding import Finding, Status
from kvprobe.flows import Door, Draft
from kvprobe.flows.case_request import CaseRequest
from kvprobe.flows.model_layout import layout_of
from kvprobe.models.advice import AdviceFacts
from kvprobe.models.cost_fit import CostFit
from kvprobe.models.descriptors import DescriptorPlan, plan
from kvprobe.models.estimate import (
    FitSource,
    LinkSpec,
    PromptEstimate,
    TaxInputs,
    estimate_prompt,
    for_dynamo,
)
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.links import LINKS, MEASURED
from kvprobe.models.transfer import operation_of
from kvprobe.probes.model_config import load_model_config
from kvprobe.report import decode
from kvprobe.rules import advice as advice_rules
from kvprobe.rules import budget, estimate
from kvprobe.rules.base import run_rules
from kvprobe.units import format_rate

DEFAULT_PROMPTS = (8192,)


class EstimateRequest(CaseRequest, frozen=True, kw_only=True):
    """What `kvprobe estimate` was asked; bytes, seconds, bytes per second."""

    model: str | None = None
    bandwidth: float | None = None
    link: str | None = None
    fit: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    tp: int = 1
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    connector: str = "pull"
    shared_link: bool = False
    relay: bool = False
    rtt: float | None = None
    window: float | None = None
    vllm_version: str | None = None
    kv_buffer_device: str = "cuda"
    emit: str | None = None


def flow(door: Door, params: dict[str, Any]) -> Draft:
    """Layout, plan, terms, advice. Raises UsageError for an impossible request."""
    request = msgspec.convert(params, EstimateRequest, strict=False)
    _check(request)
    assert request.model is not None  # _check
    config = load_model_config(door.system, request.model)
    layout = layout_of(
        config.facts, kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size, capability=None
    )  # fmt: skip
    evidence: list[AnyEvidence] = [config]
    fitted = None
    if request.fit:
        fitted = _fit(door, request.fit, operation_of(request.connector))
        evidence.append(
            Evidence(
                id="cost-fit", kind="cost_fit", origin=Origin.READ, source=request.fit,
                facts={"transport": fitted.transport, "memory": fitted.memory, "points": len(fitted.fit.points)},
            )
        )  # fmt: skip
    link = _link(request, fitted)
    evidence.append(
        Evidence(
            id="link", kind="link", origin=link.origin, source=link.source, facts=msgspec.to_builtins(link)
        )
    )
    inputs = TaxInputs(vllm_version=request.vllm_version, kv_buffer_device=request.kv_buffer_device)
    told = [
        estimate_prompt(_plan(layout, tokens), link, fitted, inputs)
        for tokens in sorted(set(request.prompt_tokens or DEFAULT_PROMPTS))
    ]
    judged = told[-1]
    facts = estimate.EstimateFacts(
        told=judged, link=link, fitted=fitted, requests_per_second=request.rate, ranks=request.tp
    )
    advice = _advice_facts(request, judged, link)
    budget_facts = budget.BudgetFacts(
        estimates=tuple(t.tax for t in told),
        judged_tokens=judged.prompt_tokens,
        ttft_slo_seconds=request.ttft_slo,
        base_ttft_seconds=request.base_ttft,
    )
    findings = [
        *run_rules(estimate.RULES, facts, door.policy),
        *_within_budget(run_rules(budget.RULES, budget_facts, door.policy), judged),
        *run_rules(advice_rules.RULES, advice, door.policy),
    ]
    weighed = advice_rules.advice_of(advice, door.policy) if advice.case.told else None
    planner = for_dynamo(judged) if request.emit == "dynamo" else None
    result = {
        "model": config.facts.name,
        "kv": _kv(layout),
        "link": _shown(link),
        "fit": None if fitted is None else msgspec.to_builtins(fitted),
        "judged_tokens": judged.prompt_tokens,
        "prompts": [_prompt(t) for t in told],
        # The rows that preflight also writes; only complete ones, so that no chart draws a lower bound as a value.
        "tax": [_tax_row(t) for t in told if t.complete],
        "advice": msgspec.to_builtins(weighed) if weighed else None,
        "planner": None if planner is None else {"tool": "dynamo", **msgspec.to_builtins(planner)},
    }
    subject = {
        "model": config.facts.name,
        "headline": link.name,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "tp": request.tp,
    }
    return Draft(subject=subject, findings=tuple(findings), evidence=tuple(evidence), result=result)


def _check(request: EstimateRequest) -> None:
    if not request.model:
        raise UsageError(
            "estimate needs --model.",
            "A name such as Qwen/Qwen2.5-7B-Instruct, a directory or a config.json.",
        )
    given = [n for n in ("bandwidth", "link", "fit") if getattr(request, n)]
    if len(given) != 1:
        what = "no link was given" if not given else "--" + " and --".join(given) + " exclude each other"
        raise UsageError(
            f"estimate needs one link, {what}.", "--bandwidth 400Gb/s, --link ndr-400g or --fit REPORT.json."
        )
    if request.fit and (request.window or request.shared_link):
        raise UsageError("--window and --shared-link change the rate of a link, and --fit has its own.")
    for name in ("bandwidth", "rtt", "window", "base_ttft", "ttft_slo", "itl_slo", "itl_p99"):
        value = getattr(request, name)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} must be more than 0.")
    if request.window and not request.rtt:
        raise UsageError("--window limits the rate only together with --rtt.")


def _link(request: EstimateRequest, fitted: FitSource | None) -> LinkSpec:
    """The link of the request; a fit brings its own rates."""
    name, rate, source, origin, whole = "fit", None, "", Origin.ASSUMED, False
    if request.link:
        if request.link not in LINKS:
            raise UsageError(f"No link {request.link!r} is known.", f"One of: {', '.join(LINKS)}.")
        known = LINKS[request.link]
        name, rate, whole = known.name, known.bytes_per_second, known.includes_descriptors
        source = f"{known.basis}, {known.source}"
        origin = Origin.READ if known.basis == MEASURED else Origin.ASSUMED
    elif request.bandwidth:
        name, rate, source = format_rate(request.bandwidth), request.bandwidth, "given with --bandwidth"
    elif fitted:
        name, source, origin = fitted.transport or "fit", fitted.source, Origin.READ
    return LinkSpec(
        name=name,
        bytes_per_second=rate,
        source=source,
        origin=origin,
        includes_descriptors=whole,
        rtt_seconds=request.rtt or 0.0,
        window_bytes=int(request.window) if request.window else None,
        relay=request.relay,
        shared=request.shared_link,
    )


def _fit(door: Door, path: str, operation: str) -> FitSource:
    """The fit of a preflight report. Raises FormatError when there is none for the operation."""
    report = decode(door.system.read_text(path).encode(), path)
    fits = report.result.get("fit")
    found = fits.get(operation) if isinstance(fits, dict) else None
    if not isinstance(found, dict):
        has = ", ".join(fits) if isinstance(fits, dict) and fits else "none"
        raise FormatError(
            f"{path} holds no cost fit of {operation} (it has {has}).",
            "Give the JSON report of a `kvprobe preflight` that measured transfers.",
        )
    try:
        fit = msgspec.convert(found, CostFit)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: result.fit.{operation} is damaged: {error}.") from None
    figures = (fit.t0_seconds, fit.seconds_per_descriptor, fit.seconds_per_descriptor_single_thread)
    bandwidth = fit.bandwidth_bytes_per_second
    if (
        not fit.points
        or any(not 0 <= v < math.inf for v in figures)
        or (bandwidth is not None and not bandwidth > 0)
    ):
        raise FormatError(f"{path}: result.fit.{operation} holds no points, or a negative term.")
    when = report.run.started_at or "an unknown time"
    memory = report.result.get("memory")
    return FitSource(
        fit=fit,
        source=f"{path}, {operation} fit of {report.run.host or 'an unknown host'}, {when}",
        transport=found.get("transport") if isinstance(found.get("transport"), str) else None,
        memory=memory if isinstance(memory, str) else None,
    )


def _plan(layout: KvLayout, tokens: int) -> DescriptorPlan:
    if layout.max_tokens is not None and tokens > layout.max_tokens:
        raise UsageError(
            f"{layout.model} takes at most {layout.max_tokens:,} tokens, not {tokens:,}.", "Give a shorter --prompt-tokens."
        )  # fmt: skip
    return plan(layout, tokens)


def _within_budget(found: list[Finding], judged: PromptEstimate) -> list[Finding]:
    """A lower bound can break a target but never keep it."""
    if judged.complete:
        return found
    return [
        f
        if f.status is Status.FAIL
        else msgspec.structs.replace(
            f,
            status=Status.SKIP,
            title="Not judged: the tax is a lower bound (KVP671)",
            remedy=None,
            notes=(),
        )
        for f in found
    ]


def _advice_facts(request: EstimateRequest, told: PromptEstimate, link: LinkSpec) -> AdviceFacts:
    transfer = next(t for t in told.tax.terms if t.name == "transfer")
    unknown_window = bool(link.rtt_seconds and link.bytes_per_second and link.window_bytes is None)
    return AdviceFacts(
        prompt_tokens=told.prompt_tokens,
        transfer_seconds=told.at_least_seconds,
        transfer_origin=transfer.origin,
        tax_seconds=told.tax.p50_seconds,
        tax_origin=Origin.ASSUMED,
        lower_bound=not told.complete or unknown_window,
        case=request.case,
    )


def _kv(layout: KvLayout) -> dict[str, Any]:
    return {
        "bytes_per_token": msgspec.to_builtins(layout.bytes_per_token),
        "kv_cache_dtype": layout.kv_cache_dtype,
        "block_size_tokens": layout.block_size_tokens,
        "tp": layout.options.tp,
        "assumptions": msgspec.to_builtins(layout.assumptions),
    }


def _shown(link: LinkSpec) -> dict[str, Any]:
    return {**msgspec.to_builtins(link), "effective_bytes_per_second": link.effective_bytes_per_second}


def _prompt(told: PromptEstimate) -> dict[str, Any]:
    return {**msgspec.to_builtins(told), "tax_is_lower_bound": not told.complete}


def _tax_row(told: PromptEstimate) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(told.tax),
        "bytes": told.bytes,
        "descriptors": told.descriptors,
        "transfer_seconds": told.transfer_seconds,
    }
