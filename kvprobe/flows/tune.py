"""`kvprobe tune`: sweeps what an operator can set with the model's real plan, and ranks by the whole tax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import progress_of
from kvprobe.flows.model_layout import layout_of
from kvprobe.flows.pair_setup import placed
from kvprobe.flows.tune_result import result_of
from kvprobe.models.descriptors import plan
from kvprobe.models.experiments import WATCHED
from kvprobe.models.kv_layout import KvLayout, ModelConfig, Refused, resolve
from kvprobe.models.prompt_steps import step_groups
from kvprobe.models.transfer import Setup, Step, operation_of
from kvprobe.models.tuning import BLOCK_SIZES, Cut, Planned, Way, cuts, promising_first, ways
from kvprobe.models.tuning_rank import Candidate, candidate_of, winner
from kvprobe.probes import transfer
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.tuning import RULES, TuneFacts

_SET_UP_SECONDS = 8.0
_BASELINE_SHARE = 0.35
_CONFIRM_SECONDS = 8.0
_NO_GAIN = 0.97
"""A way that leaves what runs now at more than this is not tried with other block sizes."""
_QUICK = (16, 64, 256)
"""Block sizes that every further way is measured with; all of them only as now."""


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvprobe tune` was asked."""

    model: str | None = None
    memory: str = "auto"
    prefill_gpu: int = 0
    decode_gpu: int = 1
    connector: str = "pull"
    kv_cache_dtype: str = "auto"
    tp: int = 1
    block_size: int | None = None
    block_sizes: tuple[int, ...] = ()
    prompt_tokens: int = 8192
    budget: float = 150.0
    vllm_version: str | None = None
    allow_fp8: bool = False
    keep: tuple[str, ...] = ()


def tune(door: Door, params: dict[str, Any]) -> Draft:
    """Measure ways x cuts within the budget. Raises ProbeError when what runs now cannot be measured."""
    request = msgspec.convert(params, TuneRequest, strict=False)
    if not request.model:
        raise UsageError(
            "tune needs --model.", "A name such as Qwen/Qwen2.5-7B-Instruct, a directory or a config.json."
        )
    config = load_model_config(door.system, request.model)
    setup, where, evidence = placed(
        door, Setup(), memory=request.memory, prefill_gpu=request.prefill_gpu, decode_gpu=request.decode_gpu
    )
    layout = layout_of(
        config.facts, kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size, capability=where
    )  # fmt: skip
    operation = operation_of(request.connector)
    listed = cuts(
        layout, _plans(config.facts, layout, request), request.vllm_version, allow_dtype=request.allow_fp8
    )
    now, *tried = ways(setup, door.system.environ(WATCHED), operation, request.keep)
    sweep = _Sweep(door, request, listed)
    sweep.baseline(now)
    sweep.ways(promising_first(tried, emulated=sweep.emulated))
    sweep.confirm()
    facts = TuneFacts(
        candidates=tuple(sweep.candidates),
        baseline=sweep.candidates[0],
        layout=layout,
        left_out=tuple(sweep.left_out),
        failures=tuple(sweep.failures),
    )
    evidence += sweep.evidence
    return Draft(
        subject={
            "model": request.model,
            "model_source": config.source,
            "headline": setup.name,
            "prompt_tokens": request.prompt_tokens,
        },
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=(config, *evidence),
        result=result_of(facts, request.prompt_tokens, operation),
    )


class _Sweep:
    """The measurements of one run; what runs now is the first candidate."""

    def __init__(self, door: Door, request: TuneRequest, listed: tuple[Cut, ...]) -> None:
        self.door, self.request, self.listed = door, request, listed
        self.candidates: list[Candidate] = []
        self.left_out: list[str] = []
        self.failures: list[str] = []
        self.evidence: list[AnyEvidence] = []
        self.emulated = False
        self._started = door.system.now()

    def baseline(self, way: Way) -> None:
        """Every cut as now, within its share of the time: each further way deserves a try."""
        self.door.progress.step(f"tune: {way.name}")
        found = self._measure(way, self.listed, self.request.budget * _BASELINE_SHARE)
        if not found or found[0].cut is not self.listed[0]:
            why = self.failures[0] if self.failures else "no sample"
            raise ProbeError(
                f"What runs now could not be measured: {why}", "Mend that first: kvprobe preflight."
            )
        self.emulated = "emulation" in (found[0].transport or "")
        self.candidates += found

    def ways(self, tried: Sequence[Way]) -> None:
        """The block size as now first; the other cuts only where that gained something."""
        quick = tuple(c for c in self.listed if c.block_size in _QUICK or c is self.listed[0])
        limit = self.candidates[0].whole_seconds * _NO_GAIN
        for number, way in enumerate(tried):
            left = self._left() - _CONFIRM_SECONDS
            if left < _SET_UP_SECONDS + 2 or self.door.system.interrupted:
                self.left_out.append(way.name)
                continue
            self.door.progress.step(f"tune: {way.name}", index=number + 1, total=len(tried))
            self.candidates += self._measure(way, quick, max(5.0, left - _SET_UP_SECONDS), stop_above=limit)

    def confirm(self) -> None:
        """The winner once more, with more samples: the best of many is partly luck."""
        best = winner(self.candidates)
        if best is None or best is self.candidates[0] or self.door.system.interrupted:
            return
        self.door.progress.step(f"tune: once more, {best.name}")
        again = self._measure(best.way, (best.cut,), _CONFIRM_SECONDS, samples=20, min_samples=5)
        if again:
            place = self.candidates.index(best)
            self.candidates[place] = again[0]

    def _left(self) -> float:
        return self.request.budget - (self.door.system.now() - self._started).total_seconds()

    def _measure(
        self,
        way: Way,
        listed: Sequence[Cut],
        budget: float,
        *,
        stop_above: float | None = None,
        samples: int = 15,
        min_samples: int = 2,
    ) -> list[Candidate]:
        steps = [
            Step(
                id=f"{way.operation.lower()}-{cut.slug}",
                op=way.operation,
                order="shuffled",
                prompt_tokens=self.request.prompt_tokens,
                groups=step_groups(cut.plan),
                samples=samples,
                min_samples=min_samples,
                max_seconds=1.5,
            )
            for cut in listed
        ]
        name = f"tune-{len(self.evidence)}"
        seen = transfer.measure(
            self.door.system, way.setup, steps, budget_seconds=budget, stop_above_seconds=stop_above,
            on_event=progress_of(self.door, way.name), evidence_id=name,
        )  # fmt: skip
        self.evidence.append(seen)
        if seen.facts.failure:
            self.failures.append(f"{way.name}: {seen.facts.failure}")
        over = seen.facts.transport(way.operation)
        return [
            candidate_of(way, cut, series, over.label if over else None, self.request.vllm_version)
            for step, cut in zip(steps, listed, strict=True)
            if (series := next((s for s in seen.facts.series if s.id == step.id and s.seconds), None))
        ]


def _plans(config: ModelConfig, layout: KvLayout, request: TuneRequest) -> list[Planned]:
    """What runs now first; then the other block sizes, packed layers and fp8 for three of them."""
    sizes = dict.fromkeys([layout.block_size_tokens, *(request.block_sizes or BLOCK_SIZES)])
    found: list[Planned] = []
    for size in sizes:
        try:
            found.append(Planned(block_size=size, plan=plan(layout, request.prompt_tokens, block_size=size)))
        except Refused:
            if size == layout.block_size_tokens:
                raise
    quick = [p.block_size for p in found if p.block_size in _QUICK]
    found += [
        Planned(
            block_size=n, packed=True, plan=plan(layout, request.prompt_tokens, block_size=n, packed=True)
        )
        for n in quick
    ]
    if layout.kv_cache_dtype in ("bfloat16", "float16"):
        half = resolve(config, msgspec.structs.replace(layout.options, kv_cache_dtype="fp8"))
        found += [
            Planned(block_size=n, kv_cache_dtype="fp8", plan=plan(half, request.prompt_tokens, block_size=n))
            for n in quick
            if half.block_size_tokens == layout.block_size_tokens
        ]
    return found
