"""What rung 1 measured: plain copies of the same bytes, without NIXL and UCX."""

from __future__ import annotations

import msgspec

from kvprobe.models.ladder import Rung
from kvprobe.models.statistics import median
from kvprobe.units import format_rate

LABELS = {
    "peer": "CUDA peer copy",
    "staged_pipelined": "D2H + H2D pinned, pipelined in 8 MiB pieces",
    "staged_pinned": "D2H, then H2D, pinned",
    "staged_pageable": "D2H, then H2D, pageable",
    "process_vm_readv": "process_vm_readv between two processes",
    "memcpy": "memcpy in one process",
}
"""Method -> what it is called in a report."""


class CopySeries(msgspec.Struct, frozen=True, kw_only=True):
    """All warm samples of one method at one size."""

    method: str
    """A key of :data:`LABELS`."""
    bytes: int
    seconds: tuple[float, ...]
    verified: bool | None = None
    """The bytes were compared after the last sample; None: the worker ended before."""

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.median_seconds


class RawCopyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run, bytes flowing from prefill to decode."""

    memory: str
    prefill_gpu: int | None = None
    decode_gpu: int | None = None
    series: tuple[CopySeries, ...] = ()
    peer_access: bool | None = None
    """Whether CUDA lets decode's GPU reach prefill's; without it a "peer copy" is staged by the driver."""
    gpus: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    skipped: tuple[str, ...] = ()
    """Methods or sizes that were left out, with the reason."""
    absent: str | None = None
    """Package that is not installed; nothing was measured."""
    install: str | None = None
    failure: str | None = None
    failure_remedy: str = ""

    def find(self, method: str, size_bytes: int) -> CopySeries | None:
        """The series of a method at a size; None if it was not measured or its bytes were wrong."""
        return next(
            (
                s
                for s in self.series
                if (s.method, s.bytes) == (method, size_bytes) and s.seconds and s.verified
            ),
            None,
        )

    def best(self, size_bytes: int) -> CopySeries | None:
        """Rung 1: the peer copy where there is peer access, else pinned and pipelined; in DRAM across processes."""
        if self.memory == "dram":
            order: tuple[str, ...] = ("process_vm_readv", "memcpy")
        elif self.peer_access:
            order = ("peer", "staged_pipelined")
        else:
            order = ("staged_pipelined", "staged_pinned")
        return next((found for m in order if (found := self.find(m, size_bytes))), None)


def raw_copy_rung(facts: RawCopyFacts | None, size_bytes: int) -> Rung:
    """Rung 1 of the ladder for one size; skipped or unknown with the reason."""
    if facts is None:
        return Rung(number=1, status="skipped", note="not asked for")
    if facts.absent:
        return Rung(number=1, status="skipped", note=f"{facts.absent} is not installed: {facts.install}")
    series = facts.best(size_bytes)
    if series is None:
        why = facts.failure or next(iter(facts.skipped), "not measured")
        return Rung(number=1, status="unknown", note=why)
    note = LABELS[series.method]
    if facts.memory == "vram" and facts.peer_access is False:
        note += "; no peer access"
    pageable = facts.find("staged_pageable", size_bytes)
    if pageable is not None and series.method == "staged_pipelined":
        note += f" (pageable {format_rate(pageable.bytes_per_second)})"
    return Rung(
        number=1,
        status="measured",
        bytes=series.bytes,
        seconds=series.median_seconds,
        statistic="median",
        samples=series.seconds,
        transport={"peer": "peer copy", "process_vm_readv": "process_vm_readv", "memcpy": "memcpy"}.get(series.method, "host memory"),
        note=note,
    )  # fmt: skip
