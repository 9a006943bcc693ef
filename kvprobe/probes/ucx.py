"""Rung 2: what raw UCX moves in one piece between two processes, without NIXL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.ucx_proto import parse_protocol_tables
from kvprobe.models.raw_ucx import UcxFacts, UcxSeries
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

__all__ = ["UcxFacts", "UcxSeries", "measure"]

_MODULE = "kvprobe.workers.ucx"
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
    operations: Sequence[str] = ("READ",),
    visibility: str = "one",
    env: Mapping[str, str | None] | None = None,
    transfer_timeout_seconds: float = 15.0,
    on_event: Callable[[Event], None] = lambda event: None,
    evidence_id: str = "raw-ucx",
) -> Evidence[UcxFacts]:
    """Move each size by each operation (``READ``, ``WRITE``), ``samples`` times after two warm-ups.

    ``prefill_gpu`` and ``decode_gpu`` are nvidia-smi's numbers; with ``visibility="one"`` each process sees its own GPU only.
    ``env`` comes on top of the user's environment (None removes a variable). ``deadline_seconds`` bounds the moving; set-up may take 45 s more.
    Failure and absence are facts here, not exceptions.
    """
    sizes = sorted({size - size % 4 for size in sizes_bytes if size >= 4})
    args = {
        "memory": memory,
        "sizes": sizes,
        "samples": samples,
        "operations": list(operations),
        "budget_seconds": deadline_seconds,
        "transfer_timeout_seconds": transfer_timeout_seconds,
    }
    both = [prefill_gpu, decode_gpu]
    jobs = []
    for role, gpu in (("prefill", prefill_gpu), ("decode", decode_gpu)):
        seen = [gpu] if visibility == "one" else both
        changes: dict[str, str | None] = {"UCX_PROTO_INFO": "used", "UCX_LOG_FILE": None, **(env or {})}
        if memory == "vram":
            changes |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, seen))}
        told = {**args, "role": role, "device": seen.index(gpu)}
        jobs.append(WorkerJob(name=role, module=_MODULE, args=told, env=changes, links=("peer",)))
    outcomes = system.run_workers(
        jobs,
        deadline_seconds=deadline_seconds + transfer_timeout_seconds + _SETUP_SECONDS,
        silence_seconds=_SILENCE_SECONDS,
        on_event=lambda _, event: on_event(event),
        key={
            "probe": "raw_ucx", "memory": memory, "gpus": both, "visibility": visibility, "env": dict(env or {}),
            "sizes": sizes, "operations": list(operations),
        },
    )  # fmt: skip
    facts = read_outcomes(memory, (prefill_gpu, decode_gpu), outcomes)
    return Evidence(
        id=evidence_id,
        kind="raw_ucx",
        origin=Origin.MEASURED,
        source=f"libucp of {facts.origin}" if facts.origin else "libucp",
        at=system.now().isoformat(timespec="seconds"),
        versions={"ucx": facts.version} if facts.version else {},
        facts=facts,
    )


def read_outcomes(memory: str, gpus: tuple[int, int], outcomes: Sequence[WorkerOutcome]) -> UcxFacts:
    """The workers' events as facts; what a dead worker reported before counts."""
    events = [event for outcome in outcomes for event in outcome.events]
    setup: Event = next((e for e in events if e["event"] == "setup"), {})
    absent: Event = next((e for e in events if e["event"] == "absent"), {})
    failures = [o for o in outcomes if o.error and o.error_kind != "peer"]
    # A side that died or hung explains why the other one lost its peer.
    failed = min(failures, key=lambda o: o.error_kind == "raised", default=None)
    return UcxFacts(
        memory=memory,
        prefill_gpu=gpus[0] if memory == "vram" else None,
        decode_gpu=gpus[1] if memory == "vram" else None,
        series=_series(events),
        protocols=parse_protocol_tables("\n".join(o.log for o in outcomes)),
        version=setup.get("ucx_version"),
        origin=setup.get("origin"),
        settings=setup.get("settings", {}),
        absent=absent.get("package"),
        install=absent.get("install"),
        failure=failed.error if failed and not absent else None,
        failure_remedy=failed.remedy if failed and not absent else "",
    )


def _series(events: Sequence[Event]) -> tuple[UcxSeries, ...]:
    samples: dict[tuple[str, int], list[Event]] = {}
    verified = {
        (e["operation"], e["bytes"]): e["wrong_words"] == 0 for e in events if e["event"] == "verified"
    }
    for event in (e for e in events if e["event"] == "sample"):
        samples.setdefault((event["operation"], event["bytes"]), []).append(event)
    return tuple(
        UcxSeries(
            operation=operation,
            bytes=size,
            seconds=tuple(e["seconds"] for e in found if not e["warm_up"]),
            warm_up_seconds=tuple(e["seconds"] for e in found if e["warm_up"]),
            verified=verified.get((operation, size)),
        )
        for (operation, size), found in samples.items()
    )
