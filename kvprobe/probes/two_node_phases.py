"""The phases of a measurement between two nodes: what the listener is asked for, and this side's worker of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.models.transfer import Setup, Step
from kvprobe.models.two_nodes import Phase, RegionSet, SeriesTold, ShapeGroup, Summary
from kvprobe.probes import transfer, two_nodes
from kvprobe.processes import WorkerJob, WorkerOutcome

_TIMEOUT_SECONDS = 15.0
_RUNG_SAMPLES = 5


def asks(
    setup: Setup, steps: Sequence[Step], size: int, operation: str, budget: float
) -> list[two_nodes.Ask]:
    """Rungs 1 and 2 for ``size`` bytes, then NIXL's series, as phases with both sides' jobs."""
    prefill, decode = transfer.worker_jobs(setup, steps, budget, _TIMEOUT_SECONDS, True)
    env = {k: v for k, v in decode.env.items() if k not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    mine: dict[str, str | None] = {**decode.env, "KVPROBE_TOKEN": None}
    asked = {k: v for k, v in setup.env.items() if k in env}
    rung = max(1.0, budget / 8)
    sized: dict[str, Any] = {
        "sizes": (size,), "samples": _RUNG_SAMPLES, "budget_seconds": rung, "transfer_timeout_seconds": _TIMEOUT_SECONDS
    }  # fmt: skip
    stream = Phase(kind="stream", **sized)
    memory = prefill.args["memory"]
    raw = Phase(kind="ucx", memory="vram" if memory == "staged" else memory, env=asked, operations=(operation,), **sized)  # type: ignore[arg-type]  # fmt: skip
    shapes = msgspec.convert(prefill.args["shapes"], tuple[tuple[ShapeGroup, ...], ...])
    main = Phase(
        kind="nixl", memory=memory, env=asked, budget_seconds=budget, transfer_timeout_seconds=_TIMEOUT_SECONDS,
        sets=msgspec.convert(prefill.args["sets"], tuple[RegionSet, ...]), shapes=shapes, backend=setup.backend,
    )  # fmt: skip

    def job(module: str, phase: Phase) -> WorkerJob:
        args = {**msgspec.to_builtins(phase), "role": "decode", "device": 0}
        return WorkerJob(name="decode", module=module, args=args, env=mine, links=("peer",))

    return [
        two_nodes.Ask(phase=stream, job=job("kvprobe.workers.stream", stream)),
        two_nodes.Ask(phase=raw, job=job("kvprobe.workers.ucx", raw)),
        two_nodes.Ask(phase=main, job=msgspec.structs.replace(decode, env=mine)),
    ]


def summarise(setup: Setup, steps: Sequence[Step], outcomes: Sequence[WorkerOutcome]) -> Summary:
    """What the listener's own report needs of ours."""
    run = transfer.read_outcomes(setup, steps, outcomes)
    seen = {op: found for op in ("READ", "WRITE") if (found := run.transport(op)) is not None}
    told: dict[str, Any] = {
        "transports": {op: found.label[:200] for op, found in seen.items()},
        "vias": {op: found.via[:400] for op, found in seen.items()},
    }
    series = tuple(
        SeriesTold(id=s.id[:80], bytes=s.bytes, median_seconds=s.median_seconds, samples=len(s.seconds)) for s in run.series
    )  # fmt: skip
    return Summary(series=series, **told)
