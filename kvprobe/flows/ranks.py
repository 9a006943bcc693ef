"""`kvprobe transfer --all-ranks`: tensor parallelism measured as it runs, all decode ranks pulling at once."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import progress_of
from kvprobe.flows.model_layout import layout_of
from kvprobe.flows.transfer import TransferRequest, setup_of
from kvprobe.models.descriptors import DescriptorPlan, plan
from kvprobe.models.kv_layout import ModelConfig, Refused
from kvprobe.models.ranks import RankRead, RanksRun, pair
from kvprobe.models.statistics import median
from kvprobe.models.transfer import Setup
from kvprobe.probes import capacity, gpus
from kvprobe.probes import ranks as probe
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.ranks import RULES, RanksFacts
from kvprobe.units import format_bytes

_SLACK_BLOCKS = 16


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has for the ranks."""

    decode_gpus: tuple[int, ...] = ()
    prefill_gpus: tuple[int, ...] = ()
    capability: str | None = None
    free_bytes: int = 0
    """On the fullest of the GPUs, or of the host for all ranks together."""
    cores: int = 0
    lacking: str | None = None
    remedy: str = ""


def all_ranks(door: Door, params: dict[str, Any]) -> Draft:
    """Measure each rank alone and all together. Raises UsageError and ProbeError."""
    request = msgspec.convert(params, TransferRequest, strict=False)
    decode_tp, prefill_tp = request.tp, int(params["prefill_tp"] or request.tp)
    if not request.model:
        raise UsageError(
            "--all-ranks needs --model: how its heads are cut over the ranks decides what each one reads."
        )
    if any((request.regions, request.descriptor_size, request.blocks)):
        raise UsageError(
            "--all-ranks takes the descriptor list from --model, not from --regions and its like."
        )
    if request.op == "write" or request.kv_buffer_device == "cpu" or request.in_flight or request.diagnose:
        raise UsageError(
            "--all-ranks measures READ (pull), one request at a time, without host buffers or --diagnose."
        )
    if request.processes != 2 or request.visible != "one":
        raise UsageError("--all-ranks runs one process with one GPU each rank.")
    config = load_model_config(door.system, request.model)
    evidence: list[AnyEvidence] = [config]
    setup, room = _room(door, request, decode_tp, prefill_tp, evidence)
    tokens = max(request.prompt_tokens or (8192,))
    reads, pools = _paired(config.facts, request, room.capability, tokens, decode_tp, prefill_tp)
    job = probe.RanksJob(
        reads=reads, prefill_tp=prefill_tp, pools=pools, prompt_tokens=tokens,
        order="contiguous" if request.order == "contiguous" else "shuffled", samples=request.samples,
        budget_seconds=request.budget, prefill_gpus=room.prefill_gpus, decode_gpus=room.decode_gpus,
    )  # fmt: skip
    lacking, remedy = room.lacking, room.remedy
    if lacking is None:
        lacking, remedy = _memory_short(job, room, setup)
    run: RanksRun | None = None
    if lacking is None:
        name = f"TP {prefill_tp} -> TP {decode_tp}, {setup.name}"
        told = progress_of(door, name)
        seen = probe.measure(
            door.system, setup, job, on_event=lambda e: told(e) if e["event"] != "setup" else None
        )
        evidence.append(seen)
        run = seen.facts
    used = decode_tp + len({r.prefill_rank for own in reads for r in own})
    crowded = setup.memory == "dram" and room.cores < used
    facts = RanksFacts(
        decode_tp=decode_tp, prefill_tp=prefill_tp, run=run, not_fitting=lacking, not_fitting_remedy=remedy,
        few_cores=f"{used} processes on {room.cores} cores: the ranks compete for the cores, not for a link" if crowded else None,
        evidence=("ranks",) if run else (),
    )  # fmt: skip
    where = "host memory" if setup.memory == "dram" else f"{used} GPUs"
    return Draft(
        subject={"model": request.model, "headline": f"{facts.subject}, all ranks, {where}", "kv_cache_dtype": request.kv_cache_dtype, "tp": decode_tp},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=tuple(evidence),
        result=ranks_result(job, setup, run, lacking),
    )  # fmt: skip


def _room(
    door: Door, request: TransferRequest, decode_tp: int, prefill_tp: int, evidence: list[AnyEvidence]
) -> tuple[Setup, Room]:
    base = setup_of(request)
    seen = capacity.look(door.system)
    cores = seen.facts.cores
    evidence.append(seen)
    if request.memory == "dram":
        # A progress thread spins on a core of its own; with fewer cores than threads it costs more than it brings.
        spin = cores >= 2 * (decode_tp + prefill_tp)
        setup = msgspec.structs.replace(base, memory="dram", progress_thread=spin)
        return setup, Room(free_bytes=seen.facts.memory_available_bytes // 2, cores=cores)
    found = gpus.look(door.system)
    evidence.append(found)
    visible = {g.cuda_index: g for g in found.facts.visible}
    prefill = list(range(request.prefill_gpu, request.prefill_gpu + prefill_tp))
    decode = list(range(request.decode_gpu, request.decode_gpu + decode_tp))
    if set(prefill) & set(decode):
        raise UsageError(f"GPUs {sorted(set(prefill) & set(decode))} would be on both sides.", "Move one side with --prefill-gpu or --decode-gpu.")  # fmt: skip
    setup = msgspec.structs.replace(base, memory="vram")
    missing = sorted({*prefill, *decode} - visible.keys())
    if missing:
        need = prefill_tp + decode_tp
        return setup, Room(
            cores=cores,
            lacking=f"it needs {need} GPUs (0 to {max(*prefill, *decode)}), {len(visible)} are visible here",
            remedy="Measure it on a host with that many GPUs, measure one pair (without --all-ranks), or the host-memory path with --memory dram.",
        )
    chosen = [visible[n] for n in (*prefill, *decode)]
    return setup, Room(
        prefill_gpus=tuple(visible[n].index for n in prefill),
        decode_gpus=tuple(visible[n].index for n in decode),
        capability=visible[decode[0]].compute_capability,
        free_bytes=int(min(g.memory_free_bytes or 0 for g in chosen) * 0.9),
        cores=cores,
    )


def _paired(
    config: ModelConfig,
    request: TransferRequest,
    capability: str | None,
    tokens: int,
    decode_tp: int,
    prefill_tp: int,
) -> tuple[tuple[tuple[RankRead, ...], ...], tuple[tuple[int, int], ...]]:
    """The reads of each decode rank, and blocks moved and registered of each group. Raises ProbeError."""

    def planned(tp: int) -> DescriptorPlan:
        layout = layout_of(
            config, kv_cache_dtype=request.kv_cache_dtype, tp=tp, block_size=request.block_size, capability=capability
        )  # fmt: skip
        return plan(layout, tokens)

    try:
        decode = planned(decode_tp)
        reads = pair(decode, planned(prefill_tp), decode_tp=decode_tp, prefill_tp=prefill_tp)
    except Refused as error:
        raise ProbeError(f"TP {prefill_tp} -> TP {decode_tp} of {config.name} cannot be paired: {error.reason}", error.remedy) from error  # fmt: skip
    return reads, tuple((g.blocks, g.blocks + max(_SLACK_BLOCKS, g.blocks // 4)) for g in decode.groups)


def _memory_short(job: probe.RanksJob, room: Room, setup: Setup) -> tuple[str | None, str]:
    mine, theirs = job.bytes_per_rank()
    need = max(mine, theirs) if setup.memory == "vram" else mine * job.decode_tp + theirs * job.prefill_tp
    if need <= room.free_bytes:
        return None, ""
    where = "on each GPU" if setup.memory == "vram" else "of host memory for all ranks"
    return (
        f"it needs {format_bytes(need)} {where}, {format_bytes(room.free_bytes)} may be used",
        "Measure a shorter prompt with --prompt-tokens, or free the memory.",
    )


def ranks_result(
    job: probe.RanksJob, setup: Setup, run: RanksRun | None, lacking: str | None
) -> dict[str, Any]:
    """The report's ``result``. Seconds and bytes; null where nothing was measured."""
    found: dict[str, Any] = {
        "decode_tp": job.decode_tp,
        "prefill_tp": job.prefill_tp,
        "prompt_tokens": job.prompt_tokens,
        "order": job.order,
        "setup": msgspec.to_builtins(setup),
        "not_measured": lacking,
        "reads": [
            {"rank": rank, "from": [{"prefill_rank": r.prefill_rank, "bytes": r.bytes, "descriptors": r.descriptors} for r in own]}
            for rank, own in enumerate(job.reads)
        ],
    }  # fmt: skip
    if run is None:
        return {**found, "ranks": []}
    seen, worst = run.transport, run.slowest
    return {
        **found,
        "ranks": [
            {
                **msgspec.to_builtins(r),
                "alone_median_seconds": median(r.alone_seconds) if r.alone_seconds else None,
                "together_median_seconds": median(r.together_seconds) if r.together_seconds else None,
                "slowdown": r.slowdown,
            }
            for r in run.ranks
        ],
        "whole_seconds": list(run.whole_seconds),
        "whole_median_seconds": median(run.whole_seconds) if run.whole_seconds else None,
        "together_bytes_per_second": run.together_bytes_per_second,
        "slowdown": run.slowdown,
        "imbalance": run.imbalance,
        "slowest_rank": worst.rank if worst else None,
        "transport": {**msgspec.to_builtins(seen), "label": seen.label} if seen else None,
    }
