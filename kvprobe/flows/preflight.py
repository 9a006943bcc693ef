"""The main job: look, measure the ladder of one pair (or all), judge."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence, Evidence
from kvprobe.finding import Finding
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import Plan, measure_dram, measure_gpu_pair
from kvprobe.flows.model_layout import layout_of
from kvprobe.flows.pair_judgement import (
    diagnose_ladder,
    judge_host,
    judge_topology,
    suspicious,
    with_diagnosis,
)
from kvprobe.flows.preflight_request import PreflightRequest
from kvprobe.flows.preflight_result import kv_result, pair_result
from kvprobe.flows.preflight_tax import judge_tax, tax_estimates, tax_rows
from kvprobe.flows.preflight_upper import engine_rung, user_rungs
from kvprobe.models.calibration import parse_calibration
from kvprobe.models.kv_layout import ModelConfig
from kvprobe.models.prompt_steps import JUDGED_TOKENS
from kvprobe.models.ttft import Calibration
from kvprobe.probes import gpus, host
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.kvprobe_itself import not_measured
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.run import interrupted
from kvprobe.rules.transfer import RULES as TRANSFER_RULES
from kvprobe.rules.transfer_quality import LADDER_RULES, PATH_RULES, GpuPathFacts

RULES = (*TRANSFER_RULES, *LADDER_RULES)


def preflight(door: Door, params: dict[str, Any]) -> Draft:
    """Measure rungs 0 to 4 (5 and 6 where a log or servers are given) and judge. Raises UsageError."""
    request = msgspec.convert(params, PreflightRequest, strict=False)
    if not request.model:
        raise UsageError(
            "preflight needs --model.",
            "A name such as Qwen/Qwen2.5-7B-Instruct, a directory or a config.json.",
        )
    return _Preflight(door, request).draft()


class _Preflight:
    """One run; collects evidence and findings on its way."""

    def __init__(self, door: Door, request: PreflightRequest) -> None:
        self.door, self.request = door, request
        self._check()
        self.config: Evidence[ModelConfig] = load_model_config(door.system, request.model or "")
        self.host = host.look(door.system)
        self.version = request.vllm_version or self.host.facts.packages.get("vllm")
        self.calibration = self._calibration()
        self.evidence: list[AnyEvidence] = [self.config, self.host]
        self.findings: list[Finding] = []
        self.ladders: list[LadderFacts] = []
        self.diagnosis: dict[str, Any] | None = None
        self.live: dict[str, Any] | None = None

    def _check(self) -> None:
        """What would end the run after minutes of measuring ends it now. Raises UsageError."""
        request = self.request
        if bool(request.prefill_url) != bool(request.decode_url):
            raise UsageError("Rungs 5 and 6 need both --prefill-url and --decode-url.")
        if request.decode_log and self.door.system.path_kind(request.decode_log) != "file":
            raise UsageError(f"--decode-log {request.decode_log} is not a file.")

    def draft(self) -> Draft:
        if self.request.memory == "dram":
            self._plan(None)
            self._dram()
            return self._finish(judged=True)
        try:
            seen = gpus.look(self.door.system)
            pairs = self._pairs(seen.facts)
        except ProbeError as error:
            return self._instead(error)
        self.evidence.append(seen)
        self._plan(pairs[0][1].compute_capability)
        self.findings += judge_host(self.door.policy, self.host.facts)
        try:
            for prefill, decode in pairs:
                if not self.door.system.interrupted or not self.ladders:
                    self._pair(seen.facts, prefill, decode)
        except KeyboardInterrupt:
            # Between two runs of workers; within one, its outcomes say so.
            if not self.ladders:
                raise
            self.door.system.interrupted = True
        if len(self.ladders) < len(pairs):
            self.findings += interrupted(None, self.door.policy)
        draft = self._finish(judged=True)
        return draft if self.diagnosis is None else with_diagnosis(self.door, draft, self.diagnosis)

    def _plan(self, capability: str | None) -> None:
        request = self.request
        self.layout = layout_of(
            self.config.facts, kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size,
            capability=capability,
        )  # fmt: skip
        self.plan = Plan(
            layout=self.layout,
            prompt_tokens=request.prompt_tokens,
            operation=request.operation,
            budget_seconds=request.budget,
            memory_bytes=request.max_memory,
            ucx=request.ucx,
        )

    def _calibration(self) -> Calibration | None:
        path = self.request.calibration
        if not path:
            return None
        if self.door.system.path_kind(path) == "absent":
            raise UsageError(f"--calibration {path} does not exist.", "Write one with `kvprobe calibrate`.")
        return parse_calibration(self.door.system.read_text(path), path)[1]

    def _pairs(self, seen: gpus.GpuFacts) -> list[tuple[gpus.Gpu, gpus.Gpu]]:
        if not self.request.all_pairs:
            return [gpus.require_pair(seen, self.request.prefill_gpu, self.request.decode_gpu)]
        ordinals = [g.cuda_index for g in seen.visible if g.cuda_index is not None]
        if len(ordinals) < 2:
            gpus.require_pair(seen, 0, 1)
        return [gpus.require_pair(seen, a, b) for a in ordinals for b in ordinals if a != b]

    def _pair(self, seen: gpus.GpuFacts, prefill: gpus.Gpu, decode: gpus.Gpu) -> None:
        facts, found = measure_gpu_pair(self.door, self.plan, seen, prefill, decode)
        self.evidence += found
        self.findings += judge_topology(
            self.door.policy, seen, prefill, decode, self.request.connector, facts
        )
        wanted = self.diagnosis is None and self.request.diagnose != "off"
        if wanted and suspicious(facts) and not self.door.system.interrupted:
            self.diagnosis, more = diagnose_ladder(self.door, self.plan, facts, self.request.diagnose_budget)
            self.evidence += more
            facts = msgspec.structs.replace(facts, diagnosed=self.diagnosis is not None)
        self.ladders.append(facts)

    def _dram(self) -> None:
        facts, found = measure_dram(self.door, self.plan)
        self.ladders.append(facts)
        self.evidence += found

    def _instead(self, error: ProbeError) -> Draft:
        """No GPU pair: UNKNOWN, and the host-memory path is measured so that the run is not for nothing."""
        self._plan(None)
        if self.request.memory == "auto":
            self.door.progress.warn(f"{error.reason} Measuring the host-memory path instead.")
            self._dram()
        missing = LadderFacts(
            subject=f"GPU {self.request.prefill_gpu} -> GPU {self.request.decode_gpu}",
            memory="vram",
            judged_tokens=JUDGED_TOKENS,
            operation=self.request.operation,
            reduced="no GPU pair was measured",
            reduced_remedy="What is missing stands in KVP210.",
        )
        path = GpuPathFacts(
            reason=error.reason,
            remedy=error.remedy,
            commands=error.commands,
            instead=self.ladders[0] if self.ladders else None,
        )
        self.findings += run_rules(RULES, missing, self.door.policy)
        self.findings += run_rules(PATH_RULES, path, self.door.policy)
        return self._finish(judged=False)

    def _upper(self, facts: LadderFacts) -> LadderFacts:
        """Rungs 5 and 6, where the user gave something to read them from."""
        request, size = self.request, self.plan.plans[JUDGED_TOKENS].bytes
        rungs = list(facts.rungs)
        try:
            if request.decode_log:
                rung, seen = engine_rung(self.door, request.decode_log, size)
                rungs.append(rung)
                self.evidence.append(seen)
            if request.prefill_url and request.decode_url and not self.door.system.interrupted:
                more, draft = user_rungs(
                    self.door, request.prefill_url, request.decode_url, request.colocated_url
                )
                numbers = {r.number for r in rungs}
                rungs += [r for r in more if r.number not in numbers]
                self.evidence += draft.evidence
                self.findings += draft.findings
                self.live = draft.result
        except ProbeError as error:
            # What was measured below is not lost for it.
            self.findings += not_measured(error, self.door.policy)
        return msgspec.structs.replace(facts, rungs=tuple(rungs))

    def _finish(self, *, judged: bool) -> Draft:
        several = len(self.ladders) > 1
        worst = max(range(len(self.ladders)), key=lambda i: _slowness(self.ladders[i]), default=None)
        if worst is not None:
            self.ladders[worst] = self._upper(self.ladders[worst])
        estimates = [
            tax_estimates(self.plan, facts, self.version, self.request.kv_buffer_device, self.calibration)
            for facts in self.ladders
        ]
        if judged:
            for facts in self.ladders:
                found = run_rules(RULES, facts, self.door.policy)
                self.findings += [
                    msgspec.structs.replace(f, where=facts.subject) if several else f for f in found
                ]
        result: dict[str, Any] = {
            "memory": self.ladders[worst].memory if worst is not None else None,
            "judged": {
                "prompt_tokens": JUDGED_TOKENS,
                "operation": self.plan.operation,
                "order": "shuffled",
                "statistic": "median",
            },
            "kv": kv_result(self.layout, self.plan),
        }
        if worst is not None:
            rows = tax_rows(self.plan, estimates[worst])
            result |= {**pair_result(self.ladders[worst]), "tax": rows}
            if judged:
                more, result["advice"] = judge_tax(self.door, self.request, estimates[worst])
                self.findings += more
        if several:
            result["pairs"] = [
                {"subject": f.subject, **pair_result(f), "tax": tax_rows(self.plan, e)}
                for f, e in zip(self.ladders, estimates, strict=True)
            ]
        if self.live is not None:
            result["live"] = self.live
        return Draft(
            subject=self._subject(self.ladders[worst].subject if worst is not None else "nothing measured"),
            findings=tuple(self.findings),
            evidence=tuple(self.evidence),
            result=result,
            required=self.door.policy.required,
        )

    def _subject(self, where: str) -> dict[str, Any]:
        request = self.request
        return {
            "model": request.model,
            "model_source": self.config.source,
            "kv_cache_dtype": request.kv_cache_dtype,
            "tp": request.tp,
            "prefill": {"gpu": request.prefill_gpu, "tp": request.tp},
            "decode": {"gpu": request.decode_gpu, "tp": request.tp},
            "connector": request.connector,
            "vllm_version": self.version,
            "headline": f"all pairs, worst {where}" if len(self.ladders) > 1 else where,
        }


def _slowness(facts: LadderFacts) -> float:
    """For the choice of the worst pair: an unmeasured one is the worst of all."""
    series = facts.judged
    return series.median_seconds or float("inf") if series else float("inf")
