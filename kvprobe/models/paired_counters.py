"""vLLM's counters over a stretch of a run: all engines of a server together, subtracted between two scrapes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.formats.vllm_metrics import Histogram, Scrape
from kvprobe.models.paired import Transfer


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals at one moment, or between two; None: the server does not expose it."""

    transfers: float | None = None
    xfer_seconds: float | None = None
    post_seconds: float | None = None
    bytes: float | None = None
    descriptors: float | None = None
    failed_transfers: float | None = None
    kv_expired: float | None = None
    notifications_after_expiry: float | None = None
    local_compute: float | None = None
    local_cache_hit: float | None = None
    external_kv_transfer: float | None = None


def totals(scrape: Scrape | None) -> Counters:
    """The sums over engines and connectors of one page."""
    if scrape is None:
        return Counters()
    moves = [t for e in scrape.engines for t in e.transfers]
    sources = [e.prompt_tokens_by_source for e in scrape.engines]
    return Counters(
        transfers=_sum(_part(t.xfer_seconds, "count") for t in moves),
        xfer_seconds=_sum(_part(t.xfer_seconds, "sum") for t in moves),
        post_seconds=_sum(_part(t.post_seconds, "sum") for t in moves),
        bytes=_sum(_part(t.bytes, "sum") for t in moves),
        descriptors=_sum(_part(t.descriptors, "sum") for t in moves),
        failed_transfers=_sum(t.failed_transfers for t in moves),
        kv_expired=_sum(t.kv_expired for t in moves),
        notifications_after_expiry=_sum(t.notifications_after_expiry for t in moves),
        local_compute=_sum(s.get("local_compute") for s in sources),
        local_cache_hit=_sum(s.get("local_cache_hit") for s in sources),
        external_kv_transfer=_sum(s.get("external_kv_transfer") for s in sources),
    )


def minus(last: Counters, first: Counters) -> Counters:
    """What was added. A counter that fell (the server restarted) counts from zero again."""
    found: dict[str, float | None] = {}
    for name in Counters.__struct_fields__:
        end, begin = getattr(last, name), getattr(first, name)
        found[name] = end if end is None or begin is None or end < begin else end - begin
    return Counters(**found)


def plus(one: float | None, other: float | None) -> float | None:
    """The sum of what is known."""
    return _sum((one, other))


def transfer_of(counted: Counters) -> Transfer | None:
    """Rung 5: means over the transfers counted; None without one."""
    count = counted.transfers
    if not count or counted.xfer_seconds is None:
        return None

    def mean(total: float | None) -> float | None:
        return None if total is None else total / count

    return Transfer(
        transfers=round(count),
        xfer_seconds=counted.xfer_seconds / count,
        post_seconds=mean(counted.post_seconds),
        bytes=mean(counted.bytes),
        descriptors=mean(counted.descriptors),
    )


def _part(histogram: Histogram | None, name: str) -> float | None:
    return None if histogram is None else float(getattr(histogram, name))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
