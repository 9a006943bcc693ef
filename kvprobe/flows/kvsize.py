"""``kvprobe kvsize``: config -> layout -> plan per prompt; then a log and an installed vLLM as second opinions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.errors import UsageError, WorkerError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.flows.kvsize_result import PlannedPrompt, refused_result, result_of
from kvprobe.formats.log_scan import Needles
from kvprobe.formats.vllm_log import MARKER, parse_metrics_line
from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, Refused, resolve
from kvprobe.models.kv_layout.against_log import Agreement, Logged, compare
from kvprobe.models.kv_layout.specs import SpecComparison, compare_specs
from kvprobe.probes.decode_log import Follow, LogRead
from kvprobe.probes.model_config import load_model_config
from kvprobe.probes.vllm_specs import ask_vllm
from kvprobe.rules.base import run_rules
from kvprobe.rules.kv_size import RULES, KvSizeFacts
from kvprobe.units import MIB

DEFAULT_PROMPTS = (1024, 8192, 32768)


def kvsize(door: Door, params: dict[str, Any]) -> Draft:
    """``params``: the options of the command, by name. Raises UsageError, ProbeError."""
    config = load_model_config(door.system, params["model"], revision=params["revision"])
    model = config.facts
    options = LayoutOptions(
        kv_cache_dtype=params["kv_cache_dtype"],
        tp=params["tp"],
        pp=params["pp"],
        dcp=params["dcp"],
        block_size=params["block_size"],
        gpu_arch=params["gpu_arch"],
        prefix_caching=not params["no_prefix_caching"],
        mtp=params["mtp"],
    )
    evidence: list[AnyEvidence] = []
    try:
        layout = resolve(model, options)
    except Refused as refusal:
        return _refused(door, config, options, refusal, cross_check=params["cross_check"])
    evidence.append(_config_evidence(config, layout.used))
    prompts = _prompts(layout, params["prompt_tokens"])
    agreement = _against_log(door, layout, params, evidence)
    comparison = _cross_check(door, layout, model, options, evidence) if params["cross_check"] else None
    facts = KvSizeFacts(
        model=model.name,
        layout=layout,
        plans=tuple(p.plan for p in prompts if p.plan),
        refused_prompts=_refusals(layout, prompts),
        agreement=agreement,
        log=params["check_against_log"],
        comparison=comparison,
        evidence=tuple(e.id for e in evidence),
    )
    headline = f"{layout.kv_cache_dtype}, TP {options.tp}" + (f", PP {options.pp}" if options.pp > 1 else "")
    return Draft(
        subject={"model": model.name, "headline": headline, "kv_cache_dtype": layout.kv_cache_dtype},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=tuple(evidence),
        result=result_of(layout, prompts, agreement, comparison, explained=params["explain"]),
    )


def _refused(
    door: Door, config: Evidence[ModelConfig], options: LayoutOptions, refusal: Refused, *, cross_check: bool
) -> Draft:
    """No numbers of kvprobe's own; an installed vLLM can still be asked for its."""
    evidence: list[AnyEvidence] = [_config_evidence(config, {})]
    comparison = _cross_check(door, None, config.facts, options, evidence) if cross_check else None
    facts = KvSizeFacts(
        model=config.facts.name,
        refusal=refusal,
        comparison=comparison,
        evidence=tuple(e.id for e in evidence),
    )
    return Draft(
        subject={"model": config.facts.name},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=tuple(evidence),
        result=refused_result(config.facts, options, refusal, comparison),
    )


def _config_evidence(config: Evidence[ModelConfig], used: dict[str, Any]) -> AnyEvidence:
    """The keys that were used, not the whole file: quantization lists can be megabytes."""
    keys = {
        key: value
        for key, value in used.items()
        if not isinstance(value, dict | list) or len(str(value)) < 4096
    }
    return msgspec.structs.replace(config, facts={"model": config.facts.name, "keys": keys})


def _prompts(layout: KvLayout, asked: Sequence[int]) -> list[PlannedPrompt]:
    lengths = list(dict.fromkeys(asked))
    if not lengths:
        limit = layout.max_tokens
        lengths = [n for n in DEFAULT_PROMPTS if limit is None or n <= limit] or [
            min(DEFAULT_PROMPTS[0], limit or 1)
        ]
    found = []
    for length in lengths:
        try:
            found.append(PlannedPrompt(tokens=length, plan=plan(layout, length)))
        except Refused as refusal:
            found.append(PlannedPrompt(tokens=length, refusal=refusal))
    return found


def _refusals(layout: KvLayout, prompts: Sequence[PlannedPrompt]) -> tuple[Refused, ...]:
    """Refusals of single prompts, where the connector takes the model as such."""
    if layout.transfer.status != "ok" or layout.transfer.refuses_requests:
        return ()
    return tuple(p.refusal for p in prompts if p.refusal)


def _against_log(
    door: Door, layout: KvLayout, params: dict[str, Any], evidence: list[AnyEvidence]
) -> Agreement | None:
    path = params["check_against_log"]
    if path is None:
        return None
    if layout.transfer.status != "ok" or layout.transfer.refuses_requests:
        raise UsageError(f"--check-against-log: {layout.transfer.reason}", "Leave the option out.")
    if path != "-" and door.system.path_kind(path) != "file":
        raise UsageError(
            f"--check-against-log {path} is no file.", "Give the decode engine's log, or - for stdin."
        )
    needles = Needles([MARKER])
    logged = []
    for hit in LogRead(door.system, path, needles, Follow(grow=False), door.progress.detail).hits():
        found = parse_metrics_line(hit.text)
        if found is None or not found.measured or found.avg_mib_per_transfer is None:
            continue
        logged.append(
            Logged(
                line=hit.line,
                transfers=found.num_successful_transfers,
                bytes_per_transfer=found.avg_mib_per_transfer * MIB,
                descriptors_per_transfer=found.avg_num_descriptors,
            )
        )
    evidence.append(
        Evidence(
            id="decode-log",
            kind="kv_transfer_intervals",
            origin=Origin.PARSED,
            source="stdin" if path == "-" else path,
            facts=logged,
        )
    )
    return compare(layout, logged, params["prompt_tokens"])


def _cross_check(
    door: Door,
    layout: KvLayout | None,
    model: ModelConfig,
    options: LayoutOptions,
    evidence: list[AnyEvidence],
) -> SpecComparison:
    if options.pp > 1 or options.dcp > 1 or options.mtp:
        raise UsageError(
            "--cross-check compares one pipeline stage without --dcp and --mtp.", "Leave them out."
        )
    door.progress.step("asking the installed vLLM for its KV cache specs")
    try:
        found = ask_vllm(door.system, model, options)
    except WorkerError as error:
        return SpecComparison(error=error.reason, remedy=error.remedy)
    evidence.append(found)
    return compare_specs(layout, found.facts)
