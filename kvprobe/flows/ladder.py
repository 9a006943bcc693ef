"""Climbs rungs 0 to 4 for one ordered pair of GPUs, or for host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door
from kvprobe.formats.nvml import Gpu, GpuFacts
from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.ladder import Rung
from kvprobe.models.link import link_ceiling
from kvprobe.models.prompt_steps import JUDGED_TOKENS, POOL_SLACK, Selection, plans_of, select
from kvprobe.models.raw_copy import raw_copy_rung
from kvprobe.models.raw_ucx import raw_ucx_rung
from kvprobe.models.statistics import median
from kvprobe.models.transfer import Setup, TransferFacts
from kvprobe.policy import Policy
from kvprobe.probes import capacity, raw_copy, transfer, ucx
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.units import format_bytes

_VRAM_BYTES = 8 * 1024**3
_DRAM_BYTES = 4 * 1024**3
_UCX_SAMPLES = 5
INTERRUPTED = "the run was interrupted"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, the same for every pair."""

    layout: KvLayout
    prompt_tokens: tuple[int, ...]
    operation: str
    budget_seconds: float
    memory_bytes: int | None
    """Registered per side at most; None: 8 GiB of VRAM, 4 GiB of DRAM, less where less is free."""
    setup: Setup = Setup()
    ucx: bool = True
    """Rung 2 as well."""

    @property
    def plans(self) -> dict[int, DescriptorPlan]:
        """Every wanted prompt length, whether or not it fits into memory."""
        return plans_of(self.layout, self.prompt_tokens)

    def select(self, memory_bytes: int) -> Selection:
        """The steps that fit into ``memory_bytes`` per side."""
        return select(
            self.layout,
            self.prompt_tokens,
            memory_bytes=memory_bytes,
            operation=self.operation,
            seconds_per_step=max(0.3, self.budget_seconds / 7),
        )


def measure_gpu_pair(
    door: Door, plan: Plan, seen: GpuFacts, prefill: Gpu, decode: Gpu
) -> tuple[LadderFacts, list[AnyEvidence]]:
    """Rungs 0 to 4 between two GPUs; what could not be measured is named in the facts."""
    subject = f"{prefill.label} -> {decode.label}"
    free = min(g.memory_free_bytes or 0 for g in (prefill, decode))
    allowed = min(plan.memory_bytes or _VRAM_BYTES, int(free * 0.9))
    selection = plan.select(allowed)
    accessor, owner = (decode, prefill) if plan.operation == "READ" else (prefill, decode)
    pair = seen.pair(accessor.index, owner.index)
    ceiling = link_ceiling(accessor, pair, owner, access=plan.operation.lower())
    size = selection.plans[JUDGED_TOKENS].bytes
    link = Rung(
        number=0,
        status="computed" if ceiling.bytes_per_second else "unknown",
        bytes=size,
        seconds=size / ceiling.bytes_per_second if ceiling.bytes_per_second else None,
        statistic="nominal rate",
        transport=ceiling.path,
        note=ceiling.basis,
    )
    setup = msgspec.structs.replace(
        plan.setup, memory="vram", prefill_gpu=prefill.index, decode_gpu=decode.index
    )
    climbed = _climb(door, plan, selection, setup, allowed, f"{prefill.index}-{decode.index}")
    reduced, remedy = _reduced(door, selection, climbed.transfer, allowed, free)
    facts = LadderFacts(
        subject=subject,
        memory="vram",
        judged_tokens=JUDGED_TOKENS,
        operation=plan.operation,
        rungs=(link, *climbed.rungs),
        transfer=climbed.transfer,
        promised_p2p=seen.promises(prefill.index, decode.index, plan.operation),
        busy=_busy(door.policy, prefill, decode),
        reduced=reduced,
        reduced_remedy=remedy,
        evidence=("gpus", *(e.id for e in climbed.evidence)),
    )
    return facts, list(climbed.evidence)


def measure_dram(door: Door, plan: Plan) -> tuple[LadderFacts, list[AnyEvidence]]:
    """The host-memory path: the same plan between two processes' DRAM."""
    seen = capacity.look(door.system)
    available = seen.facts.memory_available_bytes
    allowed = min(plan.memory_bytes or _DRAM_BYTES, available // 4)
    selection = plan.select(allowed)
    setup = msgspec.structs.replace(plan.setup, memory="dram", progress_thread=seen.facts.progress_thread)
    climbed = _climb(door, plan, selection, setup, allowed, "dram")
    reduced, remedy = _reduced(door, selection, climbed.transfer, allowed, available)
    facts = LadderFacts(
        subject="in host memory",
        memory="dram",
        judged_tokens=JUDGED_TOKENS,
        operation=plan.operation,
        rungs=climbed.rungs,
        transfer=climbed.transfer,
        reduced=reduced,
        reduced_remedy=remedy,
        evidence=tuple(e.id for e in climbed.evidence),
    )
    return facts, [seen, *climbed.evidence]


class _Climbed(msgspec.Struct, frozen=True, kw_only=True):
    rungs: tuple[Rung, ...]
    transfer: TransferFacts | None
    evidence: tuple[AnyEvidence, ...]


def _climb(door: Door, plan: Plan, selection: Selection, setup: Setup, allowed: int, name: str) -> _Climbed:
    """Rungs 1 to 4 in one go; ``name`` tells the evidence of one pair from another's."""
    size = selection.plans[JUDGED_TOKENS].bytes
    evidence: list[AnyEvidence] = []
    where: dict[str, Any] = {
        "memory": setup.memory, "prefill_gpu": setup.prefill_gpu, "decode_gpu": setup.decode_gpu
    }  # fmt: skip
    copied = through_ucx = moved = None
    if size <= allowed:
        door.progress.step(f"raw copies ({setup.name})")
        copied = raw_copy.measure(
            door.system, sizes_bytes=[size], deadline_seconds=max(2.0, plan.budget_seconds / 5),
            evidence_id=f"raw-copy-{name}", **where,
        )  # fmt: skip
        evidence.append(copied)
    if size <= allowed and plan.ucx and not door.system.interrupted:
        door.progress.step(f"raw UCX ({setup.name})")
        through_ucx = ucx.measure(
            door.system, sizes_bytes=[size], samples=_UCX_SAMPLES, operations=[plan.operation],
            deadline_seconds=max(2.0, plan.budget_seconds / 6), visibility=setup.visibility, env=setup.env,
            evidence_id=f"raw-ucx-{name}", **where,
        )  # fmt: skip
        evidence.append(through_ucx)
    if selection.steps and not door.system.interrupted:
        moved = transfer.measure(
            door.system, setup, selection.steps, budget_seconds=plan.budget_seconds,
            on_event=progress_of(door, setup.name), evidence_id=f"transfer-{name}",
        )  # fmt: skip
        evidence.append(moved)
    facts = moved.facts if moved else None
    version = facts.versions.get("ucx") if facts else None
    absent = INTERRUPTED if door.system.interrupted else None
    if size > allowed:
        absent = f"{format_bytes(size)} are more than the {format_bytes(allowed)} allowed"
    first, second = (Rung(number=n, status="skipped", note=absent) for n in (1, 2))
    if copied:
        first = raw_copy_rung(copied.facts, size)
    if through_ucx or not plan.ucx:
        second = raw_ucx_rung(through_ucx.facts if through_ucx else None, size, plan.operation, version)
    rungs = (first, second, *nixl_rungs(facts, plan.operation))
    return _Climbed(rungs=rungs, transfer=facts, evidence=tuple(evidence))


def progress_of(door: Door, name: str) -> Callable[[dict[str, Any]], None]:
    """Tells the steps of a transfer worker as progress."""
    counts: dict[str, int] = {}

    def told(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            door.progress.step(f"NIXL {event['step']} ({name})", index=event["index"], total=event["total"])
        elif event["event"] == "sample":
            counts[event["step"]] = counts.get(event["step"], 0) + 1
            door.progress.detail(f"{counts[event['step']]} samples")
        elif event["event"] == "setup":
            door.progress.step(f"{event['role']} side is up ({name})")

    return told


def nixl_rungs(facts: TransferFacts | None, operation: str, tokens: int = JUDGED_TOKENS) -> tuple[Rung, ...]:
    """Rungs 3 and 4 at the judged length; unknown where the series is missing."""
    rungs = []
    for number, order in ((3, "contiguous"), (4, "shuffled")):
        series = facts.find(operation, order, tokens) if facts else None
        seen = facts.transport(operation) if facts else None
        if series is None:
            rungs.append(Rung(number=number, status="unknown", note="not measured"))
            continue
        rungs.append(
            Rung(
                number=number,
                status="measured",
                bytes=series.bytes,
                seconds=median(series.seconds),
                statistic="median",
                samples=series.seconds,
                transport=seen.label if seen else None,
                note=f"{series.sent_descriptors:,} descriptors",
            )
        )
    return tuple(rungs)


def _busy(policy: Policy, *gpus: Gpu) -> tuple[str, ...]:
    found = []
    use = policy.threshold("gpu_busy_utilisation").fail_above
    memory = policy.threshold("gpu_busy_memory_bytes").fail_above
    for gpu in gpus:
        if gpu.utilisation is not None and use is not None and gpu.utilisation > use:
            found.append(f"{gpu.label} is {gpu.utilisation:.0%} utilised")
        if gpu.memory_used_bytes is not None and memory is not None and gpu.memory_used_bytes > memory:
            found.append(f"{gpu.label} has {format_bytes(gpu.memory_used_bytes)} in use")
    return tuple(found)


def _reduced(
    door: Door, selection: Selection, moved: TransferFacts | None, allowed: int, free: int
) -> tuple[str | None, str]:
    """Why the judged length was not measured, and the next step; None if it could be."""
    if JUDGED_TOKENS in selection.left_out:
        need = int(selection.plans[JUDGED_TOKENS].bytes * POOL_SLACK)
        why = (
            f"{JUDGED_TOKENS:,} tokens need {format_bytes(need)} per side, {format_bytes(allowed)} are allowed "
            f"({format_bytes(free)} free)"
        )
        return why, "Free memory there, or allow more with --max-memory."
    if door.system.interrupted and moved is None:
        return INTERRUPTED, "Run it again."
    return None, ""
