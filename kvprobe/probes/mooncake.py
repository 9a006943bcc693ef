"""Moves a descriptor plan through Mooncake's TCP transport between two processes on loopback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvprobe.evidence import Evidence, Origin
from kvprobe.models.mooncake import LIMIT_VARIABLE, MooncakeFacts
from kvprobe.models.transfer import Series, Step
from kvprobe.probes.transfer import SETUP_SEED, region_sets
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

_SILENCE_SECONDS = 6.0
_SETUP_SECONDS = 60.0
_LOG_TAIL = 2000
_ENV = {"GLOG_minloglevel": "1"}


def measure(
    system: System,
    steps: Sequence[Step],
    *,
    budget_seconds: float,
    queue_limit: int | None = None,
    allow_open: bool = False,
    transfer_timeout_seconds: float = 30.0,
    on_event: Callable[[Event], None] = lambda event: None,
    evidence_id: str = "mooncake",
) -> Evidence[MooncakeFacts]:
    """Measure the steps; a failure is a fact (``failure``), not an exception.

    ``allow_open``: measure even where Mooncake cannot be shut into a network namespace of its own.
    ``queue_limit``: sets Mooncake's limit of queued transfers per peer; None leaves what the environment says.
    """
    shapes, sets = region_sets(steps)
    keys = list(shapes)
    common: dict[str, Any] = {
        "sets": sets,
        "shapes": list(shapes.values()),
        "transfer_timeout_seconds": transfer_timeout_seconds,
        "budget_seconds": budget_seconds,
        "seed": SETUP_SEED,
    }
    told = [
        {
            "id": s.id, "order": s.order, "shape": keys.index(s.shape), "blocks": [g.blocks for g in s.groups],
            "samples": s.samples, "min_samples": s.min_samples, "max_seconds": s.max_seconds,
        }
        for s in steps
    ]  # fmt: skip
    env: dict[str, str | None] = dict(_ENV)
    if queue_limit is not None:
        env[LIMIT_VARIABLE] = str(queue_limit)
    job = WorkerJob(
        name="mooncake",
        module="kvprobe.workers.mooncake",
        args={**common, "steps": told, "allow_open": allow_open},
        env=env,
    )
    outcomes = system.run_workers(
        [job],
        deadline_seconds=budget_seconds + transfer_timeout_seconds + _SETUP_SECONDS,
        silence_seconds=_SILENCE_SECONDS,
        on_event=lambda _, event: on_event(event),
        key={"probe": "mooncake", "queue_limit": queue_limit, "steps": [s.id for s in steps]},
    )
    facts = read_outcomes(steps, outcomes, queue_limit)
    return Evidence(
        id=evidence_id,
        kind="mooncake_transfer",
        origin=Origin.MEASURED,
        source="Mooncake worker, DRAM to DRAM over TCP on 127.0.0.1",
        at=system.now().isoformat(timespec="seconds"),
        versions={"mooncake": facts.version} if facts.version else {},
        facts=facts,
    )


def read_outcomes(
    steps: Sequence[Step], outcomes: Sequence[WorkerOutcome], queue_limit: int | None
) -> MooncakeFacts:
    """Turn the workers' events into facts; what was measured before a failure counts."""
    events: list[Mapping[str, Any]] = [event for outcome in outcomes for event in outcome.events]
    setups = [e for e in events if e["event"] == "setup"]
    refused = next((e for e in events if e["event"] == "refused"), None)
    failed = min((o for o in outcomes if o.error), key=lambda o: o.error_kind == "peer", default=None)
    return MooncakeFacts(
        series=tuple(series for step in steps if (series := _series(step, events)) is not None),
        version=str(setups[0]["mooncake_version"]) if setups else None,
        engine_seconds=max((float(e["engine_seconds"]) for e in setups), default=None),
        register_seconds=max((float(e["register_seconds"]) for e in setups), default=None),
        queue_limit=queue_limit,
        isolated=bool(setups[0]["isolated"]) if setups else None,
        refused_batch=int(refused["batch"]) if refused else None,
        skipped=tuple(str(e["step"]) for e in events if e["event"] == "skipped"),
        failure=failed.error if failed else None,
        failure_remedy=failed.remedy if failed else "",
        failure_log=failed.log[-_LOG_TAIL:] if failed else "",
    )


def _series(step: Step, events: Sequence[Mapping[str, Any]]) -> Series | None:
    samples = [e for e in events if e["event"] == "sample" and e["step"] == step.id]
    if not samples:
        return None
    return Series(
        id=step.id,
        op="WRITE",
        order=step.order,
        prompt_tokens=step.prompt_tokens,
        in_flight=1,
        bytes=step.bytes,
        descriptors=step.descriptors,
        nixl_descriptors=samples[0]["pieces"],
        cold_seconds=tuple(s["total_seconds"] for s in samples if s["cold"]),
        seconds=tuple(s["total_seconds"] for s in samples if not s["cold"]),
        post_seconds=(),
        verified=any(
            e["event"] == "verified" and e["step"] == step.id and not e["bad_words"] for e in events
        ),
    )
