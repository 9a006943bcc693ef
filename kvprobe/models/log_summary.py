"""Sums over the intervals of an engine, in constant memory: what can be added up, and bounds where it cannot."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvprobe.formats.log_lines import elapsed
from kvprobe.formats.vllm_log import MIB, Interval

_COUNTS = (
    "num_failed_transfers",
    "num_failed_recvs",
    "num_kv_expired_reqs",
    "num_notifs_after_expiry",
)
_GAP_LIMIT_SECONDS = 3600
_COLD_FACTOR = 2.0
"""A first interval is an outlier when it takes twice what the later ones predict, and 20 ms more."""
_COLD_SECONDS = 0.02


class Aggregate:
    """Intervals of one kind added up. Means are weighted by transfers; a P90 of P90s is only bounded."""

    def __init__(self) -> None:
        self.intervals = 0
        self.measured = 0
        self.transfers = 0
        self.timed = 0
        self.bytes = 0.0
        self.xfer_seconds = 0.0
        self.posted = 0
        self.posted_xfer_seconds = 0.0
        self.post_seconds = 0.0
        self.described = 0
        self.described_bytes = 0.0
        self.described_xfer_seconds = 0.0
        self.descriptors = 0.0
        self.p90_ms: tuple[float, float] | None = None
        self.counts: dict[str, int | None] = dict.fromkeys(_COUNTS)

    def add(self, i: Interval) -> None:
        n, ms, mib = i.num_successful_transfers, i.avg_xfer_time_ms, i.avg_mib_per_transfer
        self.intervals += 1
        self.transfers += n
        counts = self.counts
        for name, value in (
            ("num_failed_transfers", i.num_failed_transfers),
            ("num_failed_recvs", i.num_failed_recvs),
            ("num_kv_expired_reqs", i.num_kv_expired_reqs),
            ("num_notifs_after_expiry", i.num_notifs_after_expiry),
        ):
            if value is not None:
                counts[name] = (counts[name] or 0) + value
        if not n or not ms or mib is None:
            return
        seconds, size = n * ms / 1e3, n * mib * MIB
        self.measured += 1
        self.timed += n
        self.bytes += size
        self.xfer_seconds += seconds
        if i.avg_post_time_ms is not None:
            self.posted += n
            self.posted_xfer_seconds += seconds
            self.post_seconds += n * i.avg_post_time_ms / 1e3
        if i.avg_num_descriptors:
            self.described += n
            self.described_bytes += size
            self.described_xfer_seconds += seconds
            self.descriptors += n * i.avg_num_descriptors
        p90 = i.p90_xfer_time_ms
        if p90 is not None:
            low, high = self.p90_ms or (p90, p90)
            if not low <= p90 <= high or self.p90_ms is None:
                self.p90_ms = min(low, p90), max(high, p90)

    def merge(self, other: Aggregate) -> None:
        for name, value in vars(other).items():
            if isinstance(value, int | float):
                setattr(self, name, getattr(self, name) + value)
        for name, count in other.counts.items():
            if count is not None:
                self.counts[name] = (self.counts[name] or 0) + count
        if other.p90_ms:
            low, high = self.p90_ms or other.p90_ms
            self.p90_ms = min(low, other.p90_ms[0]), max(high, other.p90_ms[1])

    @property
    def xfer_mean_seconds(self) -> float | None:
        return _ratio(self.xfer_seconds, self.timed)

    @property
    def post_share(self) -> float | None:
        return _ratio(self.post_seconds, self.posted_xfer_seconds)

    @property
    def descriptors_mean(self) -> float | None:
        return _ratio(self.descriptors, self.described)

    @property
    def bytes_mean(self) -> float | None:
        return _ratio(self.bytes, self.timed)

    @property
    def bytes_per_descriptor(self) -> float | None:
        return _ratio(self.described_bytes, self.descriptors)

    @property
    def seconds_per_descriptor(self) -> float | None:
        """Transfer time over descriptors: an upper bound of a descriptor's cost."""
        return _ratio(self.described_xfer_seconds, self.descriptors)

    @property
    def rate(self) -> float | None:
        """Bytes over the sum of transfer times, as in the log: a transfer's own mean rate, not the link's."""
        return _ratio(self.bytes, self.xfer_seconds)

    @property
    def failures(self) -> int:
        return (self.counts["num_failed_transfers"] or 0) + (self.counts["num_failed_recvs"] or 0)

    def result(self) -> dict[str, Any]:
        """Base units; None where it is not measured or not printed by that vLLM."""
        low, high = self.p90_ms or (None, None)
        mean = self.xfer_mean_seconds
        return {
            "intervals": self.intervals,
            "num_successful_transfers": self.transfers,
            **self.counts,
            "bytes": self.bytes if self.timed else None,
            "xfer_seconds_mean": mean,
            "xfer_seconds_p90_bounds": [low / 1e3, high / 1e3] if low is not None and high is not None else None,
            "xfer_seconds_sum": self.xfer_seconds if self.timed else None,
            "post_seconds_mean": _ratio(self.post_seconds, self.posted),
            "post_share": self.post_share,
            "bytes_per_transfer_mean": self.bytes_mean,
            "descriptors_per_transfer_mean": self.descriptors_mean,
            "bytes_per_descriptor": self.bytes_per_descriptor,
            "seconds_per_descriptor": self.seconds_per_descriptor,
            "post_seconds_per_descriptor": _ratio(self.post_seconds, self.descriptors),
            "bytes_per_second_of_a_transfer": self.rate,
            "weighted_avg_xfer_time_ms": None if mean is None else mean * 1e3,
            "max_p90_xfer_time_ms": high,
        }  # fmt: skip


class EngineLog:
    """One engine's metrics lines of one connector in one file; the first interval with transfers is kept apart."""

    def __init__(self, key: tuple[str, str | None, int | None, str], process: str | None) -> None:
        self.file, self.source, self.engine, self.connector = key
        self.process = process
        self.rest = Aggregate()
        self.first: Interval | None = None
        self._first_sum = Aggregate()
        self._gaps: Counter[int] = Counter()
        self._last: str | None = None

    def add(self, i: Interval) -> None:
        if self._last is not None and i.timestamp is not None:
            gap = elapsed(self._last, i.timestamp)
            if gap and 0 < gap < _GAP_LIMIT_SECONDS and (len(self._gaps) < 256 or int(gap) in self._gaps):
                self._gaps[int(gap)] += 1
        self._last = i.timestamp or self._last
        if self.first is None and i.measured:
            self.first = i
            self._first_sum.add(i)
        else:
            self.rest.add(i)

    @property
    def total(self) -> Aggregate:
        both = Aggregate()
        both.merge(self._first_sum)
        both.merge(self.rest)
        return both

    @property
    def interval_seconds(self) -> float | None:
        """Length of vLLM's log interval: the commonest of the short gaps between lines. None with fewer than two lines."""
        if not self._gaps:
            return None
        shortest = min(self._gaps)
        near = {gap: n for gap, n in self._gaps.items() if gap < 2 * shortest}
        return float(max(near, key=lambda gap: near[gap]))

    @property
    def first_is_outlier(self) -> bool | None:
        """None where nothing later can be compared with."""
        first, rest = self._first_sum, self.rest
        if first.xfer_mean_seconds is None or rest.rate is None or first.bytes_mean is None:
            return None
        told = first.bytes_mean / rest.rate
        if rest.seconds_per_descriptor and first.descriptors_mean:
            told = max(told, first.descriptors_mean * rest.seconds_per_descriptor)
        return first.xfer_mean_seconds > max(_COLD_FACTOR * told, told + _COLD_SECONDS)

    @property
    def warm(self) -> Aggregate:
        """Without the first interval where it is an outlier (connection set-up); everything otherwise."""
        return self.rest if self.first_is_outlier else self.total

    def result(self) -> dict[str, Any]:
        total, warm = self.total, self.warm
        length = self.interval_seconds
        active = length * total.measured if length else None
        return {
            "file": self.file,
            "source": self.source,
            "engine": self.engine,
            "process": self.process,
            "connector": self.connector,
            "measured_by": measuring_side(self.connector),
            **total.result(),
            "interval_seconds": length,
            "goodput_bytes_per_second": _ratio(total.bytes, active) if active and total.timed else None,
            "implied_concurrency": _ratio(total.xfer_seconds, active) if active and total.timed else None,
            "warm_xfer_seconds_mean": warm.xfer_mean_seconds,
            "first_interval": self._first_result(),
        }

    def _first_result(self) -> dict[str, Any] | None:
        if self.first is None:
            return None
        return {
            "line": self.first.line,
            "num_successful_transfers": self.first.num_successful_transfers,
            "xfer_seconds_mean": self._first_sum.xfer_mean_seconds,
            "outlier": self.first_is_outlier,
        }


def measuring_side(connector: str) -> str:
    """Which instance's log carries the times: the side that starts the transfer."""
    if "Push" in connector or connector.startswith("Mooncake"):
        return "prefill"
    return "decode"


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
