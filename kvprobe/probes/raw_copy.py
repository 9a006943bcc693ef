"""Rung 1: how fast plain copies are between the two GPUs, or between two processes' host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvprobe.evidence import Evidence, Origin
from kvprobe.models.raw_copy import CopySeries, RawCopyFacts
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

__all__ = ["CopySeries", "RawCopyFacts", "measure"]

_MODULE = "kvprobe.workers.cuda_copy"
_SETUP_SECONDS = 45.0
_SILENCE_SECONDS = 10.0


def measure(
    system: System,
    *,
    prefill_gpu: int = 0,
    decode_gpu: int = 1,
    sizes_bytes: Sequence[int],
    samples: int = 10,
    deadline_seconds: float = 10.0,
    memory: str = "vram",
    on_event: Callable[[Event], None] = lambda event: None,
    evidence_id: str = "raw-copy",
) -> Evidence[RawCopyFacts]:
    """Copy each size by each method, ``samples`` times after two warm-ups.

    ``prefill_gpu`` and ``decode_gpu`` are nvidia-smi's numbers. ``deadline_seconds`` bounds the copying; loading torch may
    take up to 45 s more. Failure and absence are facts here, not exceptions.
    """
    sizes = sorted({size - size % 4 for size in sizes_bytes if size >= 4})
    args = {"sizes": sizes, "samples": samples, "budget_seconds": deadline_seconds}
    if memory == "vram":
        env: dict[str, str | None] = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": f"{prefill_gpu},{decode_gpu}",
            # Each method must meet plain cudaMalloc memory, whatever the user's allocator settings are.
            "PYTORCH_ALLOC_CONF": None,
            "PYTORCH_CUDA_ALLOC_CONF": None,
        }
        jobs = [WorkerJob(name="copy", module=_MODULE, args={**args, "role": "vram"}, env=env)]
    else:
        jobs = [
            WorkerJob(name=role, module=_MODULE, args={**args, "role": role}, links=("peer",))
            for role in ("holder", "reader")
        ]
    outcomes = system.run_workers(
        jobs,
        deadline_seconds=deadline_seconds + _SETUP_SECONDS,
        silence_seconds=_SILENCE_SECONDS,
        on_event=lambda _, event: on_event(event),
        key={"probe": "raw_copy", "memory": memory, "gpus": [prefill_gpu, decode_gpu], "sizes": sizes},
    )
    gpus = (prefill_gpu, decode_gpu) if memory == "vram" else (None, None)
    facts = read_outcomes(memory, gpus, outcomes)
    return Evidence(
        id=evidence_id,
        kind="raw_copy",
        origin=Origin.MEASURED,
        source="torch copies" if memory == "vram" else "process_vm_readv, memcpy",
        at=system.now().isoformat(timespec="seconds"),
        versions=facts.versions,
        facts=facts,
    )


def read_outcomes(
    memory: str, gpus: tuple[int | None, int | None], outcomes: Sequence[WorkerOutcome]
) -> RawCopyFacts:
    """The workers' events as facts; what a dead worker reported before counts."""
    events = [event for outcome in outcomes for event in outcome.events]
    setup: Event = next((e for e in events if e["event"] == "setup"), {})
    absent: Event = next((e for e in events if e["event"] == "absent"), {})
    failed = next((o for o in outcomes if o.error and o.error_kind != "peer"), None)
    return RawCopyFacts(
        memory=memory,
        prefill_gpu=gpus[0],
        decode_gpu=gpus[1],
        series=_series(events),
        peer_access=setup.get("peer_access"),
        gpus=tuple(setup.get("gpus", ())),
        versions={k: str(setup[k]) for k in ("torch", "cuda") if setup.get(k)},
        skipped=tuple(_skip(e) for e in events if e["event"] == "skipped"),
        absent=absent.get("package"),
        install=absent.get("install"),
        failure=failed.error if failed else None,
        failure_remedy=failed.remedy if failed else "",
    )


def _series(events: Sequence[Event]) -> tuple[CopySeries, ...]:
    samples: dict[tuple[str, int], list[float]] = {}
    verified = {(e["method"], e["bytes"]): bool(e["ok"]) for e in events if e["event"] == "verified"}
    for event in (e for e in events if e["event"] == "sample"):
        samples.setdefault((event["method"], event["bytes"]), []).append(event["seconds"])
    return tuple(
        CopySeries(method=method, bytes=size, seconds=tuple(seconds), verified=verified.get((method, size)))
        for (method, size), seconds in samples.items()
    )


def _skip(event: Event) -> str:
    what = " ".join(str(event[k]) for k in ("method", "bytes") if k in event)
    return f"{what}: {event['reason']}"
