"""Transfers over time in a bounded number of bins, however long the log: neighbours merge when there are too many."""

from __future__ import annotations

from typing import Any

from kvprobe.formats.log_lines import elapsed
from kvprobe.formats.vllm_log import MIB, Interval

LIMIT = 240


class Bin:
    """What fell into one stretch of time; P90 is the largest of the intervals' P90s."""

    __slots__ = (
        "bytes",
        "expired",
        "failed",
        "late",
        "p90_ms",
        "start",
        "timed",
        "transfers",
        "xfer_seconds",
    )

    def __init__(self) -> None:
        self.transfers = self.timed = self.failed = self.expired = self.late = 0
        self.bytes = self.xfer_seconds = 0.0
        self.p90_ms: float | None = None
        self.start: str | None = None

    def add(self, i: Interval) -> None:
        if self.start is None:
            self.start = i.timestamp
        n, ms, p90 = i.num_successful_transfers, i.avg_xfer_time_ms, i.p90_xfer_time_ms
        self.transfers += n
        self.failed += (i.num_failed_transfers or 0) + (i.num_failed_recvs or 0)
        self.expired += i.num_kv_expired_reqs or 0
        self.late += i.num_notifs_after_expiry or 0
        if n and ms:
            self.timed += n
            self.xfer_seconds += n * ms / 1e3
            self.bytes += n * (i.avg_mib_per_transfer or 0.0) * MIB
            if p90 is not None and (self.p90_ms is None or p90 > self.p90_ms):
                self.p90_ms = p90

    def merge(self, other: Bin) -> None:
        self.start = self.start or other.start
        for name in ("transfers", "timed", "failed", "expired", "late", "bytes", "xfer_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.p90_ms is not None:
            self.p90_ms = max(self.p90_ms or 0.0, other.p90_ms)


class Timeline:
    """Bins of equal width from the first line on. Lines without a time follow each other at one width."""

    def __init__(self, width_seconds: float = 1.0) -> None:
        self.width = width_seconds
        self.start: str | None = None
        self._at = 0.0
        self._bins: dict[int, Bin] = {}

    def add(self, i: Interval) -> None:
        if self.start is None:
            self.start = i.timestamp
        gone = elapsed(self.start, i.timestamp)
        if gone is None:
            gone = self._at + self.width if self._bins else 0.0
        # Files and containers interleave; a line from before the start belongs to the start.
        self._at = max(0.0, gone)
        while self._at / self.width >= LIMIT:
            self._double()
        index = int(self._at / self.width)
        if index not in self._bins:
            self._bins[index] = Bin()
        self._bins[index].add(i)

    def _double(self) -> None:
        old, self._bins = self._bins, {}
        self.width *= 2
        for index, one in sorted(old.items()):
            into = self._bins.get(index // 2)
            if into is None:
                self._bins[index // 2] = one
            else:
                into.merge(one)

    def result(self) -> dict[str, Any] | None:
        """``bins`` in order; empty stretches are absent, they are not zeros."""
        if not self._bins:
            return None
        return {
            "start": self.start,
            "bin_seconds": self.width,
            "bins": [
                {
                    "offset_seconds": index * self.width,
                    "start": one.start,
                    "num_successful_transfers": one.transfers,
                    "xfer_seconds_mean": one.xfer_seconds / one.timed if one.timed else None,
                    "xfer_seconds_p90_bound": None if one.p90_ms is None else one.p90_ms / 1e3,
                    "bytes": one.bytes if one.timed else None,
                    "failed": one.failed,
                    "expired": one.expired,
                    "notifs_after_expiry": one.late,
                }
                for index, one in sorted(self._bins.items())
            ],
        }
