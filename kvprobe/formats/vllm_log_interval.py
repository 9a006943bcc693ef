"""What a "KV Transfer metrics" line becomes, and when its numbers contradict each other."""

from __future__ import annotations

import math

import msgspec

MIB = 1024**2


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One printed interval of one connector. None: this vLLM does not print it, never 0."""

    connector: str = "NixlConnector"
    num_successful_transfers: int
    avg_xfer_time_ms: float | None = None
    p90_xfer_time_ms: float | None = None
    avg_post_time_ms: float | None = None
    p90_post_time_ms: float | None = None
    avg_mib_per_transfer: float | None = None
    throughput_mib_per_s: float | None = None
    avg_num_descriptors: float | None = None
    num_failed_transfers: int | None = None
    num_failed_recvs: int | None = None
    num_kv_expired_reqs: int | None = None
    num_notifs_after_expiry: int | None = None
    partial: bool = False
    """The line was cut; what follows the cut is None."""
    file: str | None = None
    line: int | None = None
    """1-based."""
    timestamp: str | None = None
    """As printed: vLLM's has no year and no zone."""
    process: str | None = None
    source: str | None = None
    """The container or pod that a collector put in front of the line."""
    engine: int | None = None
    """Data-parallel index, from the ``Engine NNN:`` line in front of it."""

    @property
    def measured(self) -> bool:
        """False for the zeros of an interval without a success."""
        return bool(self.num_successful_transfers and self.avg_xfer_time_ms)

    @property
    def bytes_total(self) -> float | None:
        if not self.measured or self.avg_mib_per_transfer is None:
            return None
        return self.num_successful_transfers * self.avg_mib_per_transfer * MIB

    @property
    def xfer_seconds_total(self) -> float | None:
        """Sum of the transfers' own times; they overlap."""
        if not self.measured or self.avg_xfer_time_ms is None:
            return None
        return self.num_successful_transfers * self.avg_xfer_time_ms / 1e3

    @property
    def post_share(self) -> float | None:
        """Time inside the post call over transfer time."""
        if not self.measured or self.avg_post_time_ms is None or not self.avg_xfer_time_ms:
            return None
        return self.avg_post_time_ms / self.avg_xfer_time_ms

    @property
    def bytes_per_descriptor(self) -> float | None:
        if not self.measured or not self.avg_num_descriptors or self.avg_mib_per_transfer is None:
            return None
        return self.avg_mib_per_transfer * MIB / self.avg_num_descriptors

    @property
    def failures(self) -> int:
        """Transfers, handshakes, notifications and receives that this interval counts as failed."""
        return (self.num_failed_transfers or 0) + (self.num_failed_recvs or 0)


class MetricsLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one line holds: P/D intervals, other connectors' numbers, or why it was not believed."""

    intervals: tuple[Interval, ...] = ()
    others: dict[str, dict[str, float | int]] = {}
    """By connector: offloading and stores move KV too, but not from prefill to decode."""
    problem: str | None = None


def contradiction(i: Interval) -> str | None:
    """Why the numbers cannot all be true, or None. Rounding: three decimals in vLLM."""
    n, xfer, mib, rate = (
        i.num_successful_transfers,
        i.avg_xfer_time_ms,
        i.avg_mib_per_transfer,
        i.throughput_mib_per_s,
    )
    p90, post, p90_post, count = (
        i.p90_xfer_time_ms,
        i.avg_post_time_ms,
        i.p90_post_time_ms,
        i.avg_num_descriptors,
    )
    given = [v for v in (xfer, p90, post, p90_post, mib, rate, count) if v is not None]
    # Not-a-number compares false with everything, so this also refuses it.
    if given and not 0 <= min(given) <= max(given) < math.inf or sum(given) != sum(given):
        return "a number is negative or not finite"
    if n == 0:
        return "figures without a successful transfer" if any(given) else None
    if xfer is not None and xfer <= 0:
        return "transfers that took no time"
    if xfer and mib and rate is not None:
        told, error = mib / (xfer / 1e3), 0.00051 / mib + 0.00051 / xfer
        if abs(told - rate) > told * error * 1.01 + 0.00051:
            return f"Throughput {rate} is not Avg MB {mib} over Avg xfer time {xfer} ms"
    if xfer is not None and post is not None and post > xfer + 0.0011:
        return "the post time exceeds the transfer time that contains it"
    # All samples are positive, so none can exceed the sum.
    if xfer is not None and p90 is not None and p90 > n * (xfer + 0.0006) + 0.0006:
        return "a P90 exceeds the sum of all samples"
    if post is not None and p90_post is not None and p90_post > n * (post + 0.0006) + 0.0006:
        return "a P90 exceeds the sum of all samples"
    return None
