"""`kvprobe transfer`: how fast this descriptor list moves, over which transport, in every way that matters."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence
from kvprobe.finding import Finding
from kvprobe.flows import Door, Draft
from kvprobe.flows.diagnose import describe, diagnose
from kvprobe.flows.ladder import progress_of
from kvprobe.flows.model_layout import layout_of
from kvprobe.flows.pair_setup import placed
from kvprobe.flows.transfer_result import transfer_result
from kvprobe.models.concurrency import levels
from kvprobe.models.descriptors import DescriptorPlan, TransferGroup, plan
from kvprobe.models.prompt_steps import step_groups
from kvprobe.models.transfer import Setup, Step
from kvprobe.probes import gpus, host, transfer
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.concurrency import RULES as CONCURRENCY_RULES
from kvprobe.rules.concurrency import ConcurrencyFacts
from kvprobe.rules.diagnosis import RULES as DIAGNOSIS_RULES
from kvprobe.rules.diagnosis import DiagnosisFacts
from kvprobe.rules.host import HostView, locked_memory, shared_memory
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.transfer import complete, transport
from kvprobe.rules.transfer_quality import direction, overhead


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvprobe transfer` was asked; sizes in bytes, times in seconds."""

    model: str | None = None
    regions: int | None = None
    descriptor_size: int | None = None
    blocks: int | None = None
    memory: str = "auto"
    prefill_gpu: int = 0
    decode_gpu: int = 1
    kv_cache_dtype: str = "auto"
    tp: int = 1
    block_size: int | None = None
    prompt_tokens: tuple[int, ...] = ()
    op: str = "both"
    order: str = "both"
    in_flight: tuple[int, ...] = ()
    processes: int = 2
    visible: str = "one"
    threads: int = 4
    env: tuple[str, ...] = ()
    kv_buffer_device: str = "cuda"
    samples: int = 10
    budget: float = 30.0
    diagnose: bool = False
    diagnose_budget: float = 120.0


def measure_transfer(door: Door, params: dict[str, Any]) -> Draft:
    """Measure the asked series on one pair. Raises UsageError and ProbeError."""
    request = msgspec.convert(params, TransferRequest, strict=False)
    setup, capability, evidence = placed(
        door, setup_of(request), memory=request.memory, prefill_gpu=request.prefill_gpu, decode_gpu=request.decode_gpu
    )  # fmt: skip
    plans, config = plans_of(door, request, capability)
    if config is not None:
        evidence.append(config)
    steps = build_steps(request, plans)
    seen = transfer.measure(
        door.system, setup, steps, budget_seconds=request.budget, on_event=progress_of(door, setup.name)
    )
    evidence.append(seen)
    run = seen.facts
    longest = max(plans)
    operation = "WRITE" if request.op == "write" else "READ"
    facts = LadderFacts(
        subject=setup.name, memory=setup.memory, judged_tokens=longest, operation=operation, transfer=run,
        promised_p2p=promised(evidence, setup, operation), diagnosed=request.diagnose, evidence=(seen.id,),
    )  # fmt: skip
    findings = [f for rule in (transport, complete, direction, overhead) for f in rule(facts, door.policy)]
    limits = host.look(door.system)
    evidence.append(limits)
    findings += limits_of(door, limits.facts)
    crowd = levels(
        [s for s in run.series if s.prompt_tokens == longest and s.order == "shuffled" and s.op == operation]
    )
    if len(crowd) > 1:
        findings += run_rules(
            CONCURRENCY_RULES, ConcurrencyFacts(levels=crowd, evidence=(seen.id,)), door.policy
        )
    result = transfer_result(facts, crowd)
    if request.diagnose and not door.system.interrupted:
        diagnosis, more = _diagnose(door, setup, plans, facts, request)
        result["diagnosis"] = diagnosis
        evidence += more
        findings += run_rules(
            DIAGNOSIS_RULES, msgspec.convert(diagnosis, DiagnosisFacts, strict=False), door.policy
        )
    subject = {
        "model": request.model,
        "headline": setup.name,
        "kv_cache_dtype": request.kv_cache_dtype,
        "tp": request.tp,
    }
    return Draft(subject=subject, findings=tuple(findings), evidence=tuple(evidence), result=result)


def limits_of(door: Door, facts: host.HostFacts) -> list[Finding]:
    """What of a host's limits breaks transfers: shared memory, locked memory."""
    view = HostView(host=facts)
    return [f for rule in (shared_memory, locked_memory) for f in rule(view, door.policy)]


def environment(request: TransferRequest) -> dict[str, str | None]:
    """``--env``; None takes a variable away. Raises UsageError."""
    env: dict[str, str | None] = {}
    for text in request.env:
        name, separator, value = text.partition("=")
        if not name:
            raise UsageError(f"--env {text!r} is not NAME=VALUE.", "NAME alone takes a variable away.")
        env[name] = value if separator else None
    return env


def setup_of(request: TransferRequest) -> Setup:
    """The set-up that was asked for; which memory and which GPUs is another question."""
    backend = {"num_threads": str(request.threads)} if request.threads else {}
    return Setup(
        processes=request.processes, visibility=request.visible, env=environment(request), backend=backend,
        kv_buffer_device=request.kv_buffer_device,
    )  # fmt: skip


def promised(evidence: list[AnyEvidence], setup: Setup, operation: str) -> bool | None:
    """Whether the topology says OK for the deciding direction of this pair; None: not known."""
    found = next((e.facts for e in evidence if e.kind == "gpus"), None)
    if not isinstance(found, gpus.GpuFacts):
        return None
    return found.promises(setup.prefill_gpu, setup.decode_gpu, operation)


def plans_of(
    door: Door, request: TransferRequest, capability: str | None
) -> tuple[dict[int, DescriptorPlan], AnyEvidence | None]:
    """By prompt length; a plan given by hand counts as prompt length 0."""
    by_hand = (request.regions, request.descriptor_size, request.blocks)
    if any(by_hand):
        if request.model or None in by_hand:
            raise UsageError("Give either --model, or all of --regions, --descriptor-size and --blocks.")
        group = TransferGroup(
            name="given",
            regions=request.regions or 0,
            descriptor_bytes=request.descriptor_size or 0,
            blocks=request.blocks or 0,
        )
        by_itself = DescriptorPlan(
            prompt_tokens=0, block_size_tokens=0, groups=(group,), bytes_all_ranks=group.bytes
        )
        return {0: by_itself}, None
    if not request.model:
        raise UsageError("transfer needs --model, or --regions, --descriptor-size and --blocks.")
    config = load_model_config(door.system, request.model)
    layout = layout_of(
        config.facts, kv_cache_dtype=request.kv_cache_dtype, tp=request.tp, block_size=request.block_size, capability=capability
    )  # fmt: skip
    return {n: plan(layout, n) for n in request.prompt_tokens or (8192,)}, config


def build_steps(request: TransferRequest, plans: dict[int, DescriptorPlan]) -> list[Step]:
    """Shortest prompt first, so that it takes UCX's wire-up; several in flight only for the longest."""
    operations = ("READ", "WRITE") if request.op == "both" else (request.op.upper(),)
    if request.kv_buffer_device == "cpu":
        operations = ("READ",)
    orders = ("shuffled", "contiguous") if request.order == "both" else (request.order,)
    flights = tuple(sorted({1, *request.in_flight}))
    wanted = [
        (tokens, operation, order, k)
        for tokens in sorted(plans)
        for operation in operations
        for order in orders
        for k in (flights if order == "shuffled" and tokens == max(plans) else (1,))
    ]
    return [
        Step(
            id=f"{operation.lower()}-{order}-{tokens}" + (f"-x{k}" if k > 1 else ""),
            op=operation,
            order=order,
            prompt_tokens=tokens,
            groups=step_groups(plans[tokens]),
            samples=request.samples,
            min_samples=min(5, request.samples),
            max_seconds=max(0.5, request.budget / 5),
            in_flight=k,
        )
        for tokens, operation, order, k in wanted
    ]


def _diagnose(
    door: Door, setup: Setup, plans: dict[int, DescriptorPlan], facts: LadderFacts, request: TransferRequest
) -> tuple[dict[str, Any], list[AnyEvidence]]:
    series = facts.transfer.find(facts.operation, "shuffled") if facts.transfer else None
    if series is None:
        failure = (facts.transfer.failure if facts.transfer else None) or "no shuffled series was measured"
        raise ProbeError(
            f"There is nothing to diagnose: {failure}", "Mend that first; --order must include shuffled."
        )
    found, evidence = diagnose(
        door, setup, plans[series.prompt_tokens], series, budget_seconds=request.diagnose_budget
    )
    return describe(found), evidence
