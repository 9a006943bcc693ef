"""`kvprobe tune`: sweeps what an operator can set with the model's real plan, and ranks by the whole tax."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import progress_of
from kvprobe.flows.tune_result import result_of
from kvprobe.models.descriptors import plan
from kvprobe.models.experiments import WATCHED
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, Refused, resolve
from kvprobe.models.prompt_steps import step_groups
from kvprobe.models.statistics import median
from kvprobe.models.transfer import Series, Setup, Step
from kvprobe.models.ttft import tax
from kvprobe.models.tuning import BLOCK_SIZES, Candidate, Cut, Planned, Way, cuts, ways, with_staging
from kvprobe.probes import capacity, gpus, transfer
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.tuning import RULES, TuneFacts

_SET_UP_SECONDS = 8.0
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
    setup, where, evidence = _setup(door, request)
    layout = _layout(config.facts, request, where)
    operation = "READ" if request.connector == "pull" else "WRITE"
    listed = cuts(
        layout, _plans(config.facts, layout, request), request.vllm_version, allow_dtype=request.allow_fp8
    )
    environ = door.system.environ(WATCHED)
    candidates: list[Candidate] = []
    left_out: list[str] = []
    failures: list[str] = []
    started = door.system.now()
    todo = ways(setup, environ, operation, request.keep)
    gain_seconds: float | None = None
    for number, way in enumerate(todo):
        left = request.budget - (door.system.now() - started).total_seconds()
        if (number and left < _SET_UP_SECONDS + 2) or door.system.interrupted:
            left_out.append(way.name)
            continue
        door.progress.step(f"tune: {way.name}", index=number + 1, total=len(todo))
        mine = listed if number == 0 else tuple(c for c in listed if c.block_size in _QUICK or c is listed[0])
        # What runs now may use half of the time: every further way deserves a try.
        budget = request.budget * 0.5 if number == 0 else max(5.0, left - _SET_UP_SECONDS)
        measured, failure, seen = _measure(door, way, mine, request, budget, number, gain_seconds)
        evidence.append(seen)
        candidates += measured
        if failure:
            failures.append(f"{way.name}: {failure}")
        if number == 0 and not measured:
            raise ProbeError(
                f"What runs now could not be measured: {failure}", "Mend that first: kvprobe preflight."
            )
        gain_seconds = gain_seconds or measured[0].whole_seconds * _NO_GAIN
    baseline = next(
        c for c in candidates if c.cut.block_size == layout.block_size_tokens and not c.cut.packed
    )
    facts = TuneFacts(
        candidates=tuple(candidates),
        baseline=baseline,
        layout=layout,
        left_out=tuple(left_out),
        failures=tuple(failures),
    )
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


def _setup(door: Door, request: TuneRequest) -> tuple[Setup, str | None, list[AnyEvidence]]:
    """The set-up of what runs now, and the compute capability of the decode GPU."""
    if request.memory != "dram":
        seen = gpus.look(door.system)
        prefill, decode = gpus.require_pair(seen.facts, request.prefill_gpu, request.decode_gpu)
        return (
            Setup(memory="vram", prefill_gpu=prefill.index, decode_gpu=decode.index),
            decode.compute_capability,
            [seen],
        )
    room = capacity.look(door.system)
    return Setup(memory="dram", progress_thread=room.facts.cores >= 4), None, [room]


def _layout(config: ModelConfig, request: TuneRequest, capability: str | None) -> KvLayout:
    arch = f"sm{capability.replace('.', '')}" if capability else None
    options = LayoutOptions(
        kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size, gpu_arch=arch
    )
    return _resolve(config, options)


def _resolve(config: ModelConfig, options: LayoutOptions) -> KvLayout:
    try:
        return resolve(config, options)
    except Refused as error:
        raise ProbeError(
            f"The KV layout of {config.name} cannot be computed: {error.reason}", error.remedy
        ) from error


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
        half = _resolve(config, msgspec.structs.replace(layout.options, kv_cache_dtype="fp8"))
        found += [
            Planned(block_size=n, kv_cache_dtype="fp8", plan=plan(half, request.prompt_tokens, block_size=n))
            for n in quick
            if half.block_size_tokens == layout.block_size_tokens
        ]
    return found


def _measure(
    door: Door,
    way: Way,
    listed: tuple[Cut, ...],
    request: TuneRequest,
    budget: float,
    number: int,
    stop_above_seconds: float | None,
) -> tuple[list[Candidate], str | None, AnyEvidence]:
    steps = [
        Step(
            id=f"{way.operation.lower()}-{cut.block_size}{'-packed' if cut.packed else ''}{'-' + cut.kv_cache_dtype if cut.kv_cache_dtype else ''}",
            op=way.operation,
            order="shuffled",
            prompt_tokens=request.prompt_tokens,
            groups=step_groups(cut.plan),
            samples=15,
            min_samples=3,
            max_seconds=1.5,
        )
        for cut in listed
    ]
    seen = transfer.measure(
        door.system, way.setup, steps, budget_seconds=budget, on_event=progress_of(door, way.name),
        evidence_id=f"tune-{number}", stop_above_seconds=stop_above_seconds,
    )  # fmt: skip
    over = seen.facts.transport(way.operation)
    found = []
    for step, cut in zip(steps, listed, strict=True):
        series = next((s for s in seen.facts.series if s.id == step.id and s.seconds), None)
        if series is not None:
            found.append(_candidate(way, cut, series, over.label if over else None, request.vllm_version))
    return found, seen.facts.failure, seen


def _candidate(
    way: Way, cut: Cut, series: Series, transport: str | None, vllm_version: str | None
) -> Candidate:
    seconds = median(series.seconds)
    out = median(series.stage_out_seconds) if series.stage_out_seconds else 0.0
    back = median(series.stage_in_seconds) if series.stage_in_seconds else 0.0
    estimate = tax(series.prompt_tokens, seconds, vllm_version=vllm_version, bytes=series.bytes)
    return Candidate(
        way=way,
        cut=cut,
        seconds=seconds,
        samples=len(series.seconds),
        transport=transport,
        nixl_descriptors=series.nixl_descriptors,
        stage_out_seconds=out,
        stage_in_seconds=back,
        tax=with_staging(estimate, out, back),
    )
