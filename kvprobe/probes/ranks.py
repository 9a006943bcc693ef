"""All tensor-parallel ranks pulling at once: one child process a rank, on both sides, and every sample back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.ucx_proto import parse_protocol_tables
from kvprobe.models.ranks import RankRead, RankSeries, RanksRun
from kvprobe.models.transfer import Setup
from kvprobe.probes.transfer import SETUP_SEED, cause_first
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

_MODULE = "kvprobe.workers.nixl_ranks"
_SETUP_SECONDS = 60.0
_SILENCE_SECONDS = 10.0
_LOG_TAIL = 2000
_PATTERN_STEP = 0x9E3779B1


class RanksJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    reads: tuple[tuple[RankRead, ...], ...]
    """Of each decode rank."""
    prefill_tp: int
    pools: tuple[tuple[int, int], ...]
    """Blocks moved and blocks registered, of each group."""
    prompt_tokens: int
    order: str = "shuffled"
    samples: int = 10
    budget_seconds: float = 30.0
    prefill_gpus: tuple[int, ...] = ()
    """nvidia-smi's numbers, by rank; empty: host memory."""
    decode_gpus: tuple[int, ...] = ()

    @property
    def decode_tp(self) -> int:
        return len(self.reads)

    def bytes_per_rank(self) -> tuple[int, int]:
        """Registered by each decode and each prefill rank."""
        mine, theirs = self._strides()
        return tuple(  # type: ignore[return-value]
            sum(
                regions * stride * pool for (regions, stride), (_, pool) in zip(side, self.pools, strict=True)
            )
            for side in (mine, theirs)
        )

    def sets(self, side: str) -> list[dict[str, int]]:
        """Regions of a ``decode`` or ``prefill`` rank."""
        strides = self._strides()[0 if side == "decode" else 1]
        return [
            {"regions": r, "bytes": stride * pool}
            for (r, stride), (_, pool) in zip(strides, self.pools, strict=True)
        ]

    def _strides(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        mine, theirs = [], []
        for number in range(len(self.pools)):
            group = next(g for read in self.reads[0] if (g := read.groups[number]) is not None)
            mine.append((group.regions, group.my_stride))
            theirs.append((group.regions, group.their_stride))
        return mine, theirs


def measure(
    system: System,
    setup: Setup,
    job: RanksJob,
    *,
    transfer_timeout_seconds: float = 15.0,
    on_event: Callable[[Event], None] = lambda event: None,
    evidence_id: str = "ranks",
) -> Evidence[RanksRun]:
    """Each rank alone, then all together. A failure is a fact here, not an exception."""
    outcomes = system.run_workers(
        jobs(setup, job, transfer_timeout_seconds),
        deadline_seconds=job.budget_seconds + transfer_timeout_seconds + _SETUP_SECONDS,
        silence_seconds=_SILENCE_SECONDS,
        on_event=lambda _, event: on_event(event),
        key={
            "probe": "nixl_ranks", "setup": setup.name, "tp": [job.prefill_tp, job.decode_tp],
            "prompt_tokens": job.prompt_tokens, "order": job.order,
        },
    )  # fmt: skip
    facts = read_outcomes(setup, job, outcomes)
    return Evidence(
        id=evidence_id, kind="ranks", origin=Origin.MEASURED, source=f"NIXL workers, a process each rank, {setup.name}",
        at=system.now().isoformat(timespec="seconds"), versions=facts.versions, facts=facts,
    )  # fmt: skip


def jobs(setup: Setup, job: RanksJob, transfer_timeout_seconds: float) -> list[WorkerJob]:
    """The children: prefill ranks first."""
    common: dict[str, Any] = {
        "memory": setup.memory, "backend": setup.backend, "progress_thread": setup.progress_thread,
        "transfer_timeout_seconds": transfer_timeout_seconds, "budget_seconds": job.budget_seconds,
        "seed": SETUP_SEED, "pools": job.pools,
    }  # fmt: skip
    links = {
        (d, r.prefill_rank): f"d{d}-p{r.prefill_rank}" for d, reads in enumerate(job.reads) for r in reads
    }
    found = []
    for rank in range(job.prefill_tp):
        args = {
            **common,
            "role": "prefill",
            "rank": rank,
            "sets": job.sets("prefill"),
            "pattern": _pattern(rank),
        }
        mine = tuple(name for (_, p), name in links.items() if p == rank)
        if mine:
            found.append(WorkerJob(name=f"prefill-{rank}", module=_MODULE, args=args, env=_env(setup, job.prefill_gpus, rank), links=mine))  # fmt: skip
    for rank, reads in enumerate(job.reads):
        starters = [f"d0-d{n}" for n in range(1, job.decode_tp)] if rank == 0 else [f"d0-d{rank}"]
        sources = [
            {
                "link": links[rank, read.prefill_rank],
                "pattern": _pattern(read.prefill_rank),
                "groups": [
                    None
                    if g is None
                    else {**msgspec.to_builtins(g), "set": n, "pool_blocks": job.pools[n][1]}
                    for n, g in enumerate(read.groups)
                ],
            }
            for read in reads
        ]
        args = {
            **common, "role": "decode", "rank": rank, "sets": job.sets("decode"), "sources": sources,
            "starters": starters, "steps": steps(job),
        }  # fmt: skip
        names = (*(links[rank, read.prefill_rank] for read in reads), *starters)
        found.append(WorkerJob(name=f"decode-{rank}", module=_MODULE, args=args, env=_env(setup, job.decode_gpus, rank), links=names))  # fmt: skip
    return found


def steps(job: RanksJob) -> list[dict[str, Any]]:
    """All ranks together twice as long as each rank alone."""
    everyone = list(range(job.decode_tp))
    alone = [(f"rank-{rank}-alone", [rank]) for rank in everyone] if job.decode_tp > 1 else []
    share = job.budget_seconds / (len(alone) + 2)
    return [
        {
            "id": name, "active": active, "order": job.order, "samples": job.samples,
            "min_samples": min(3, job.samples), "max_seconds": share * (2 if len(active) > 1 else 1),
        }
        for name, active in [*alone, ("together", everyone)]
    ]  # fmt: skip


def _pattern(rank: int) -> int:
    return (rank + 1) * _PATTERN_STEP % 2**31


def _env(setup: Setup, gpus: Sequence[int], rank: int) -> dict[str, str | None]:
    env: dict[str, str | None] = {"UCX_PROTO_INFO": "used", "UCX_LOG_FILE": None, **setup.env}
    if gpus:
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpus[rank])}
    return env


def read_outcomes(setup: Setup, job: RanksJob, outcomes: Sequence[WorkerOutcome]) -> RanksRun:
    """The workers' events as facts; what a dead worker reported before counts."""
    events = [event for outcome in outcomes for event in outcome.events]
    versions: dict[str, str] = {}
    for event in (e for e in events if e["event"] == "setup"):
        versions |= {"nixl": event["nixl_version"], "ucx": str(event["ucx_version"])}
    failed = min((o for o in outcomes if o.error), key=cause_first, default=None)
    samples = [e for e in events if e["event"] == "sample"]
    ranks = tuple(_series(job, rank, samples, events) for rank in range(job.decode_tp))
    counts = [len(r.together_seconds) for r in ranks]
    whole = tuple(max(r.together_seconds[i] for r in ranks) for i in range(min(counts)))
    return RanksRun(
        memory=setup.memory, decode_tp=job.decode_tp, prefill_tp=job.prefill_tp, prompt_tokens=job.prompt_tokens,
        order=job.order, ranks=ranks, whole_seconds=whole, versions=versions,
        protocols=parse_protocol_tables("\n".join(o.log for o in outcomes)),
        failure=failed.error if failed else None,
        failure_remedy=failed.remedy if failed else "",
        failure_log=failed.log[-_LOG_TAIL:] if failed else "",
    )  # fmt: skip


def _series(job: RanksJob, rank: int, samples: Sequence[Event], events: Sequence[Event]) -> RankSeries:
    reads = job.reads[rank]
    mine = [s for s in samples if s["rank"] == rank]
    together = [s for s in mine if s["step"] == "together" and not s["cold"]]
    names = {s["step"] for s in mine}
    bad = {e["step"]: e["bad_words"] for e in events if e["event"] == "verified" and e["rank"] == rank}
    sources = tuple(read.prefill_rank for read in reads)
    place = "host memory"
    if job.decode_gpus:
        place = f"GPU {', '.join(str(job.prefill_gpus[p]) for p in sources)} -> GPU {job.decode_gpus[rank]}"
    return RankSeries(
        rank=rank,
        reads_from=sources,
        place=place,
        bytes=sum(read.bytes for read in reads),
        descriptors=sum(read.descriptors for read in reads),
        alone_seconds=tuple(
            s["seconds"] for s in mine if s["step"] == f"rank-{rank}-alone" and not s["cold"]
        ),
        together_seconds=tuple(s["seconds"] for s in together),
        cold_seconds=next((s["seconds"] for s in mine if s["cold"]), None),
        late_seconds=tuple(s["late_seconds"] for s in together),
        verified=bool(names) and all(bad.get(name) == 0 for name in names),
    )
