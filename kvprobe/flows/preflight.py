"""The main job: look, measure the ladder of one pair (or all), judge."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence, Evidence
from kvprobe.finding import Finding
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import Plan, measure_dram, measure_gpu_pair
from kvprobe.flows.pair_judgement import diagnose_ladder, judge_topology, suspicious, with_diagnosis
from kvprobe.flows.preflight_result import kv_result, pair_result, tax_rows
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, Refused, resolve
from kvprobe.models.prompt_steps import JUDGED_TOKENS
from kvprobe.probes import gpus
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.transfer import RULES as TRANSFER_RULES
from kvprobe.rules.transfer_quality import LADDER_RULES, PATH_RULES, GpuPathFacts

RULES = (*TRANSFER_RULES, *LADDER_RULES)


class PreflightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvprobe preflight` was asked; sizes in bytes, times in seconds."""

    model: str | None = None
    memory: str = "auto"
    prefill_gpu: int = 0
    decode_gpu: int = 1
    all_pairs: bool = False
    connector: str = "pull"
    kv_cache_dtype: str = "auto"
    tp: int = 1
    block_size: int | None = None
    prompt_tokens: tuple[int, ...] = ()
    budget: float = 20.0
    max_memory: int | None = None
    vllm_version: str | None = None
    kv_buffer_device: str = "cuda"
    calibration: str | None = None
    ttft_slo: float | None = None
    base_ttft: float | None = None
    diagnose: str = "auto"
    diagnose_budget: float = 90.0
    ucx: bool = True


def preflight(door: Door, params: dict[str, Any]) -> Draft:
    """Measure rungs 0, 1, 3 and 4 and judge them. Raises UsageError for an impossible request."""
    request = msgspec.convert(params, PreflightRequest, strict=False)
    if not request.model:
        raise UsageError(
            "preflight needs --model.",
            "A name such as Qwen/Qwen2.5-7B-Instruct, a directory or a config.json.",
        )
    config = load_model_config(door.system, request.model)
    evidence: list[AnyEvidence] = [config]
    if request.memory == "dram":
        layout = _layout(config.facts, request, None)
        plan = _plan(layout, request)
        facts, found = measure_dram(door, plan)
        return _draft(door, request, config, layout, plan, [facts], [*evidence, *found], [])
    try:
        seen = gpus.look(door.system)
        pairs = _pairs(seen.facts, request)
    except ProbeError as error:
        layout = _layout(config.facts, request, None)
        return _instead(door, request, config, layout, _plan(layout, request), error)
    layout = _layout(config.facts, request, pairs[0][1].compute_capability)
    plan = _plan(layout, request)
    ladders: list[LadderFacts] = []
    findings: list[Finding] = []
    diagnosis: dict[str, Any] | None = None
    for prefill, decode in pairs:
        facts, found = measure_gpu_pair(door, plan, seen.facts, prefill, decode)
        ladders.append(facts)
        evidence += found
        findings += judge_topology(door.policy, seen.facts, prefill, decode, request.connector, facts)
        if diagnosis is None and request.diagnose != "off" and suspicious(facts):
            diagnosis, more = diagnose_ladder(door, plan, facts, request.diagnose_budget)
            evidence += more
            ladders[-1] = msgspec.structs.replace(facts, diagnosed=diagnosis is not None)
    draft = _draft(door, request, config, layout, plan, ladders, [*evidence, seen], findings)
    return draft if diagnosis is None else with_diagnosis(door, draft, diagnosis)


def _layout(config: ModelConfig, request: PreflightRequest, capability: str | None) -> KvLayout:
    """``capability``: of the decode GPU, such as ``9.0``; None: no GPU, an assumption of the layout."""
    arch = f"sm{capability.replace('.', '')}" if capability else None
    options = LayoutOptions(
        kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size, gpu_arch=arch
    )
    try:
        return resolve(config, options)
    except Refused as error:
        reason = f"The KV layout of {config.name} cannot be computed: {error.reason}"
        raise ProbeError(reason, error.remedy) from error


def _plan(layout: KvLayout, request: PreflightRequest) -> Plan:
    return Plan(
        layout=layout,
        prompt_tokens=request.prompt_tokens,
        operation="READ" if request.connector == "pull" else "WRITE",
        budget_seconds=request.budget,
        memory_bytes=request.max_memory,
        ucx=request.ucx,
    )


def _pairs(seen: gpus.GpuFacts, request: PreflightRequest) -> list[tuple[gpus.Gpu, gpus.Gpu]]:
    if not request.all_pairs:
        return [gpus.require_pair(seen, request.prefill_gpu, request.decode_gpu)]
    ordinals = [g.cuda_index for g in seen.visible if g.cuda_index is not None]
    if len(ordinals) < 2:
        gpus.require_pair(seen, 0, 1)
    return [gpus.require_pair(seen, a, b) for a in ordinals for b in ordinals if a != b]


def _instead(
    door: Door,
    request: PreflightRequest,
    config: Evidence[ModelConfig],
    layout: KvLayout,
    plan: Plan,
    error: ProbeError,
) -> Draft:
    """No GPU pair: the verdict is UNKNOWN, and the host-memory path is measured so that the run is not for nothing."""
    door.progress.warn(f"{error.reason} Measuring the host-memory path instead.")
    facts, found = ([], []) if request.memory == "vram" else _dram(door, plan)
    missing = LadderFacts(
        subject=f"GPU {request.prefill_gpu} -> GPU {request.decode_gpu}",
        memory="vram",
        judged_tokens=JUDGED_TOKENS,
        operation=plan.operation,
        reduced="no GPU pair was measured",
    )
    extra = [
        *run_rules(RULES, missing, door.policy),
        *run_rules(
            PATH_RULES,
            GpuPathFacts(
                reason=error.reason,
                remedy=error.remedy,
                commands=error.commands,
                instead=facts[0] if facts else None,
            ),
            door.policy,
        ),
    ]
    return _draft(door, request, config, layout, plan, facts, [config, *found], extra, judged=False)


def _dram(door: Door, plan: Plan) -> tuple[list[LadderFacts], list[AnyEvidence]]:
    facts, found = measure_dram(door, plan)
    return [facts], found


def _draft(
    door: Door,
    request: PreflightRequest,
    config: Evidence[ModelConfig],
    layout: KvLayout,
    plan: Plan,
    ladders: list[LadderFacts],
    evidence: list[AnyEvidence],
    findings: list[Finding],
    *,
    judged: bool = True,
) -> Draft:
    taxes = [tax_rows(request.vllm_version, request.kv_buffer_device, plan, facts) for facts in ladders]
    for facts in ladders:
        if judged:
            found = run_rules(RULES, facts, door.policy)
            findings += [
                msgspec.structs.replace(f, where=facts.subject) if len(ladders) > 1 else f for f in found
            ]
    worst = max(range(len(ladders)), key=lambda i: _seconds(ladders[i]), default=None)
    result: dict[str, Any] = {
        "memory": ladders[worst].memory if worst is not None else None,
        "judged": {
            "prompt_tokens": JUDGED_TOKENS,
            "operation": plan.operation,
            "order": "shuffled",
            "statistic": "median",
        },
        "kv": kv_result(layout, plan),
    }
    if worst is not None:
        result |= pair_result(ladders[worst])
        result["tax"] = taxes[worst]
    if len(ladders) > 1:
        result["pairs"] = [
            {"subject": facts.subject, **pair_result(facts), "tax": rows}
            for facts, rows in zip(ladders, taxes, strict=True)
        ]
    return Draft(
        subject=_subject(request, config, ladders, worst),
        findings=tuple(findings),
        evidence=tuple(evidence),
        result=result,
        required=door.policy.required,
    )


def _seconds(facts: LadderFacts) -> float:
    """For the choice of the worst pair: an unmeasured one is the worst of all."""
    series = facts.judged
    return series.median_seconds or float("inf") if series else float("inf")


def _subject(
    request: PreflightRequest, config: Evidence[ModelConfig], ladders: list[LadderFacts], worst: int | None
) -> dict[str, Any]:
    where = ladders[worst].subject if worst is not None else "nothing measured"
    return {
        "model": request.model,
        "model_source": config.source,
        "kv_cache_dtype": request.kv_cache_dtype,
        "tp": request.tp,
        "prefill": {"gpu": request.prefill_gpu},
        "decode": {"gpu": request.decode_gpu},
        "connector": request.connector,
        "headline": f"all pairs, worst {where}" if len(ladders) > 1 else where,
    }
