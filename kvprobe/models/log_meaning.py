"""What the engine's numbers mean: where the time goes, which transport they look like, and against rung 4."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.formats.vllm_metrics import KvTransfer
from kvprobe.models.cost_fit import CostFit
from kvprobe.models.log_summary import Aggregate

DESCRIPTOR_SHARE = 0.5
SMALL_DESCRIPTOR_BYTES = 256 * 1024
_EMULATION = 0.6e9
_STAGED = 3e9
_LINK = 60e9
_GIB = 1024**3


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """``bound``: ``descriptors``, ``bytes``, ``unknown``. ``looks_like`` is a guess from the numbers and says so."""

    bound: str
    bound_why: str
    looks_like: str | None
    looks_like_why: str


def meaning(a: Aggregate) -> Meaning:
    """Judge the sums. Rates are of single transfers; overlapping ones make them look slower than the link."""
    bound, why = _bound(a)
    looks, looks_why = _looks_like(a, bound)
    return Meaning(bound=bound, bound_why=why, looks_like=looks, looks_like_why=looks_why)


def _bound(a: Aggregate) -> tuple[str, str]:
    share, piece = a.post_share, a.bytes_per_descriptor
    if a.rate is None:
        return "unknown", "no transfer with a time"
    if share is None:
        return "unknown", "this connector prints no post time"
    if share > DESCRIPTOR_SHARE and piece is not None and piece < SMALL_DESCRIPTOR_BYTES:
        return (
            "descriptors",
            f"posting takes {share:.0%} of the transfer time for pieces of {piece:,.0f} bytes",
        )
    if share > DESCRIPTOR_SHARE:
        return "descriptors", f"posting takes {share:.0%} of the transfer time"
    return "bytes", f"posting takes {share:.0%} of the transfer time"


def _looks_like(a: Aggregate, bound: str) -> tuple[str | None, str]:
    rate, each = a.rate, a.seconds_per_descriptor
    if rate is None:
        return None, "no transfer with a time"
    if rate < _EMULATION:
        return (
            "TCP software emulation",
            "0.36 to 0.43 GB/s whatever the descriptors, measured on 2x H200 without cuda_ipc",
        )
    if rate < _STAGED and bound != "descriptors":
        return (
            "staged through host memory or a slow network",
            "between 0.6 and 3 GB/s with a small post share",
        )
    if bound == "descriptors" and each is not None:
        return "CUDA IPC or RDMA held back by descriptors", (
            f"{each * 1e6:.1f} us per descriptor; 3.3 to 9 us were measured over cuda_ipc on 2x H200"
        )
    if rate < _LINK:
        return (
            "RDMA, PCIe peer-to-peer, or NVLink under overlapping transfers",
            "between 3 and 60 GB/s a transfer",
        )
    return "NVLink", "above 60 GB/s a transfer"


class FitComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's mean transfer against rung 4's fit for the same bytes and descriptors."""

    operation: str
    transport: str | None
    predicted_seconds: float
    measured_seconds: float
    ratio: float
    loss_seconds: float
    """Per transfer; negative: the engine is faster than predicted."""
    extrapolated: bool
    bytes: int
    descriptors: int


def compare_with_fit(a: Aggregate, result: dict[str, Any], operation: str = "READ") -> FitComparison | None:
    """None if the report has no usable fit or the log no descriptors; never raises on a foreign ``result``."""
    fits = result.get("fit")
    entry = fits.get(operation) if isinstance(fits, dict) else None
    mean, size, count = a.xfer_mean_seconds, a.bytes_mean, a.descriptors_mean
    if not isinstance(entry, dict) or mean is None or size is None or count is None:
        return None
    try:
        fit = msgspec.convert(entry, CostFit, strict=False)
    except msgspec.ValidationError:
        return None
    if not fit.points:
        return None
    descriptors, nbytes = max(1, round(count)), round(size)
    told = fit.predict(descriptors, nbytes)
    if told <= 0:
        return None
    transport = entry.get("transport")
    return FitComparison(
        operation=operation,
        transport=transport if isinstance(transport, str) else None,
        predicted_seconds=told,
        measured_seconds=mean,
        ratio=mean / told,
        loss_seconds=mean - told,
        extrapolated=not fit.covers(descriptors, nbytes),
        bytes=nbytes,
        descriptors=descriptors,
    )


def judged_seconds(a: Aggregate) -> float | None:
    """Mean transfer time; of transfers beyond 1 GiB the time per GiB, so that long prompts are not faults."""
    if a.xfer_mean_seconds is None or a.bytes_mean is None:
        return None
    return a.xfer_mean_seconds / max(1.0, a.bytes_mean / _GIB)


def aggregate_of(t: KvTransfer) -> Aggregate:
    """The same sums from ``/metrics`` (a scrape, or the difference of two)."""
    a = Aggregate()
    a.counts = {
        "num_failed_transfers": _whole(t.failed_transfers),
        "num_failed_recvs": _whole(t.failed_recvs),
        "num_kv_expired_reqs": _whole(t.kv_expired),
        "num_notifs_after_expiry": _whole(t.notifications_after_expiry),
    }
    xfer = t.xfer_seconds
    if xfer is None:
        return a
    a.transfers = a.timed = int(xfer.count)
    a.xfer_seconds = xfer.sum
    if t.bytes is not None:
        a.bytes = t.bytes.sum
    if t.post_seconds is not None:
        a.posted, a.post_seconds, a.posted_xfer_seconds = (
            int(t.post_seconds.count),
            t.post_seconds.sum,
            xfer.sum,
        )
    if t.descriptors is not None:
        a.described, a.descriptors = int(t.descriptors.count), t.descriptors.sum
        a.described_bytes, a.described_xfer_seconds = a.bytes, xfer.sum
    bounds = xfer.quantile_bounds(0.9)
    if bounds and bounds[1] != float("inf"):
        a.p90_ms = bounds[0] * 1e3, bounds[1] * 1e3
    a.intervals = a.measured = 1 if a.timed else 0
    return a


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def assessment(
    total: Aggregate, warm: Aggregate, failures: list[dict[str, Any]], slow_seconds: float | None
) -> dict[str, Any]:
    """One word for the whole input, by what matters most."""
    seconds = judged_seconds(warm)
    failed = total.failures
    roots = [f for f in failures if f["consequence_of"] is None]
    if not total.transfers and failed:
        return _say(
            "transfers_failing", "fail", f"0 successful, {failed} failed: transfer times are undefined"
        )
    if any(f["severity"] == "fail" for f in roots):
        codes = ", ".join(f["code"] for f in roots if f["severity"] == "fail")
        recvs = total.counts["num_failed_recvs"]
        return _say("failures_present", "fail", codes + (f"; failed recvs: {recvs}" if recvs else ""))
    if seconds is not None and slow_seconds is not None and seconds > slow_seconds:
        return _say("slow", "fail", f"mean xfer time {(warm.xfer_mean_seconds or 0) * 1e3:.1f} ms a transfer")
    found = meaning(warm)
    if found.bound == "descriptors":
        return _say(
            "descriptor_bound", "warn", f"{found.bound_why}; a larger block size means fewer descriptors"
        )
    if roots:
        return _say("failures_present", "warn", ", ".join(f["code"] for f in roots))
    if not total.intervals:
        return _say("no_pd_transfer_data", "info", "no line about transfers from prefill to decode")
    return _say("healthy", "info", found.bound_why)


def _say(verdict: str, severity: str, why: str) -> dict[str, Any]:
    return {"verdict": verdict, "severity": severity, "why": why}
