"""Moves a model's descriptor list through NIXL between two child processes and brings back every sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.ucx_proto import parse_protocol_tables
from kvprobe.models.transfer import Series, Setup, Step, TransferFacts
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

_POOL_SLACK = 1.25
_SILENCE_SECONDS = 6.0
_SETUP_SECONDS = 60.0
_LOG_TAIL = 2000

SETUP_SEED = 20261129
"""Of the shuffled block ids: the same plan every run."""


def measure(
    system: System,
    setup: Setup,
    steps: Sequence[Step],
    *,
    budget_seconds: float,
    transfer_timeout_seconds: float = 15.0,
    verify: bool = True,
    stop_above_seconds: float | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    evidence_id: str = "transfer",
) -> Evidence[TransferFacts]:
    """Run the steps and return what was measured, also when a side died half-way (``failure``).

    ``stop_above_seconds``: leave the other steps out when the first one is slower than that.
    ``budget_seconds`` bounds the steps; set-up may take a minute
    more. A failure is a fact here, not an exception: rules turn it into UNKNOWN.
    """
    jobs = worker_jobs(setup, steps, budget_seconds, transfer_timeout_seconds, verify, stop_above_seconds)
    outcomes = system.run_workers(
        jobs,
        deadline_seconds=budget_seconds + transfer_timeout_seconds + _SETUP_SECONDS,
        silence_seconds=_SILENCE_SECONDS,
        on_event=lambda _, event: on_event(event),
        key={"probe": "nixl", "setup": setup.name, "steps": [s.id for s in steps]},
    )
    facts = read_outcomes(setup, steps, outcomes)
    return Evidence(
        id=evidence_id,
        kind="transfer",
        origin=Origin.MEASURED,
        source=f"NIXL workers, {setup.name}",
        at=system.now().isoformat(timespec="seconds"),
        versions=facts.versions,
        facts=facts,
    )


def worker_jobs(
    setup: Setup,
    steps: Sequence[Step],
    budget_seconds: float,
    transfer_timeout_seconds: float,
    verify: bool,
    stop_above_seconds: float | None = None,
) -> list[WorkerJob]:
    """The children of one measurement: prefill and decode, or both roles in one process."""
    shapes, sets = region_sets(steps)
    keys = list(shapes)
    common: dict[str, Any] = {
        "memory": "staged" if setup.kv_buffer_device == "cpu" and setup.memory == "vram" else setup.memory,
        "sets": sets,
        "shapes": list(shapes.values()),
        "backend": setup.backend,
        "progress_thread": setup.progress_thread,
        "verify": verify,
        "stop_above_seconds": stop_above_seconds,
        "transfer_timeout_seconds": transfer_timeout_seconds,
        "budget_seconds": budget_seconds,
        "seed": SETUP_SEED,
    }
    told = [
        {
            "id": s.id, "op": s.op, "order": s.order, "shape": keys.index(s.shape), "blocks": [g.blocks for g in s.groups],
            "samples": s.samples, "min_samples": s.min_samples, "max_seconds": s.max_seconds, "in_flight": s.in_flight,
        }
        for s in steps
    ]  # fmt: skip
    if setup.processes == 1:
        args = {**common, "role": "both", "steps": told, "prefill_device": 0, "decode_device": 1}
        env = _env(setup, [setup.prefill_gpu, setup.decode_gpu])
        return [WorkerJob(name="both", module="kvprobe.workers.nixl", args=args, env=env)]
    both = [setup.prefill_gpu, setup.decode_gpu]
    jobs = []
    for role, gpu in (("prefill", setup.prefill_gpu), ("decode", setup.decode_gpu)):
        seen = [gpu] if setup.visibility == "one" else both
        args = {
            **common,
            "role": role,
            "device": seen.index(gpu),
            **({"steps": told} if role == "decode" else {}),
        }
        jobs.append(
            WorkerJob(
                name=role, module="kvprobe.workers.nixl", args=args, env=_env(setup, seen), links=("peer",)
            )
        )
    return jobs


def region_sets(
    steps: Sequence[Step],
) -> tuple[dict[tuple[tuple[int, int], ...], list[dict[str, int]]], list[dict[str, int]]]:
    """The shapes of the steps, and the sets of regions that hold them all.

    Shapes with as many regions share them: another block size only cuts the same memory differently.
    """
    sizes: dict[tuple[int, int], int] = {}
    for step in steps:
        for i, group in enumerate(step.groups):
            blocks = group.blocks * step.in_flight
            pool = blocks + max(16, int(blocks * (_POOL_SLACK - 1)))
            sizes[i, group.regions] = max(sizes.get((i, group.regions), 0), pool * group.descriptor_bytes)
    order = list(sizes)
    shapes: dict[tuple[tuple[int, int], ...], list[dict[str, int]]] = {}
    for step in steps:
        shapes[step.shape] = [
            {
                "set": order.index((i, group.regions)),
                "regions": group.regions,
                "descriptor_bytes": group.descriptor_bytes,
                "pool_blocks": sizes[i, group.regions] // group.descriptor_bytes,
            }
            for i, group in enumerate(step.groups)
        ]
    sets = [{"regions": regions, "bytes": size // 4 * 4} for (_, regions), size in sizes.items()]
    return shapes, sets


def _env(setup: Setup, gpus: list[int]) -> dict[str, str | None]:
    env: dict[str, str | None] = {"UCX_PROTO_INFO": "used", "UCX_LOG_FILE": None, **setup.env}
    if setup.memory == "vram":
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(g) for g in gpus)
    return env


def read_outcomes(setup: Setup, steps: Sequence[Step], outcomes: Sequence[WorkerOutcome]) -> TransferFacts:
    """Turn the workers' events into facts; whatever a dead worker reported before counts."""
    events = [event for outcome in outcomes for event in outcome.events]
    versions: dict[str, str] = {}
    workers: dict[str, dict[str, str | float | int | None]] = {}
    for event in (e for e in events if e["event"] == "setup"):
        versions |= {"nixl": event["nixl_version"], "nixl_package": event["nixl_package"]}
        if event.get("ucx_version"):
            versions["ucx"] = event["ucx_version"]
        if event.get("torch"):
            versions |= {"torch": event["torch"], "cuda": str(event["cuda"])}
        workers[event["role"]] = {k: v for k, v in event.items() if k not in ("event", "role")}
    handshake = next((e["add_remote_agent_seconds"] for e in events if e["event"] == "handshake"), None)
    failed = min((o for o in outcomes if o.error), key=cause_first, default=None)
    return TransferFacts(
        setup=setup,
        series=tuple(series for step in steps if (series := _series(step, events)) is not None),
        protocols=parse_protocol_tables("\n".join(o.log for o in outcomes)),
        handshake_seconds=handshake,
        versions=versions,
        workers=workers,
        skipped=tuple(e["step"] for e in events if e["event"] == "skipped"),
        failure=failed.error if failed else None,
        failure_remedy=failed.remedy if failed else "",
        failure_log=failed.log[-_LOG_TAIL:] if failed else "",
    )


def cause_first(outcome: WorkerOutcome) -> int:
    """A death explains a timeout, both explain an exception, and a lost peer is only a symptom."""
    kinds = ("interrupted", "died", "timeout", "raised", "peer")
    return kinds.index(outcome.error_kind) if outcome.error_kind in kinds else len(kinds)


def _series(step: Step, events: Sequence[Event]) -> Series | None:
    samples = [e for e in events if e["event"] == "sample" and e["step"] == step.id]
    if not samples:
        return None
    warm = [s for s in samples if not s["cold"]]
    return Series(
        id=step.id,
        op=step.op,
        order=step.order,
        prompt_tokens=step.prompt_tokens,
        in_flight=step.in_flight,
        bytes=step.bytes,
        descriptors=step.descriptors,
        nixl_descriptors=samples[0]["nixl_descriptors"],
        cold_seconds=tuple(s["total_seconds"] for s in samples if s["cold"]),
        seconds=tuple(s["total_seconds"] for s in warm),
        post_seconds=tuple(s["post_seconds"] for s in warm),
        request_seconds=tuple(tuple(s["request_seconds"]) for s in warm) if step.in_flight > 1 else (),
        overhead_seconds=tuple(s["make_seconds"] + s["release_seconds"] for s in warm),
        stage_out_seconds=tuple(s["stage_out_seconds"] for s in warm if "stage_out_seconds" in s),
        stage_in_seconds=tuple(s["stage_in_seconds"] for s in warm if "stage_in_seconds" in s),
        verified=any(
            e["event"] == "verified" and e["step"] == step.id and not e["bad_words"] for e in events
        ),
    )
