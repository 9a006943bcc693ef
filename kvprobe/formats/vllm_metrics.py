"""vLLM's ``/metrics``: the KV transfer and engine series, typed, and what happened between two scrapes.

Series by connector and since which version: vLLM ``kv_connector/v1/{nixl,mooncake}/stats.py`` and
``v1/metrics/loggers.py``. A series that a server does not expose is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from kvprobe.errors import FormatError

Buckets = tuple[tuple[float, float], ...]
_LIMIT_SERIES = 200_000

_SUMS = {
    "nixl": {
        "xfer_seconds": "vllm:nixl_xfer_time_seconds",
        "post_seconds": "vllm:nixl_post_time_seconds",
        "bytes": "vllm:nixl_bytes_transferred",
        "descriptors": "vllm:nixl_num_descriptors",
    },
    "mooncake": {
        "xfer_seconds": "vllm:mooncake_xfer_time_seconds",
        "bytes": "vllm:mooncake_bytes_transferred",
        "descriptors": "vllm:mooncake_num_descriptors",
    },
}
_COUNTERS = {
    "failed_transfers": "num_failed_transfers_total",
    "failed_recvs": "num_failed_recvs_total",
    "failed_notifications": "num_failed_notifications_total",
    "kv_expired": "num_kv_expired_reqs_total",
    "notifications_after_expiry": "num_notifications_after_expiry_total",
}
_OTHERS = (
    "vllm:kv_offload_",
    "vllm:simple_kv_offload_",
    "vllm:hisparse_",
    "vllm:hf3fs_",
    "vllm:mooncake_store_",
    "vllm:umbp_",
)
_SOURCE = "vllm:prompt_tokens_by_source_total"
_CACHE = "vllm:cache_config_info"
CACHE_FACTORS = (
    "block_size",
    "cache_dtype",
    "kv_cache_layout",
    "effective_attention_block_size",
    "enable_prefix_caching",
)
"""Labels of ``cache_config_info`` that prefill and decode are compared by."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A Prometheus histogram; ``buckets`` are (upper bound, cumulative count) in rising order."""

    count: float
    sum: float
    buckets: Buckets = ()

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile_bounds(self, q: float) -> tuple[float, float] | None:
        """Lower and upper edge of the bucket that holds quantile ``q``; None without samples. The last edge may be inf."""
        if not self.count or not self.buckets:
            return None
        low = 0.0
        for bound, cumulative in self.buckets:
            if cumulative >= q * self.count:
                return low, bound
            low = bound
        return low, math.inf


class KvTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's transfers by one connector. NIXL: the side that starts the transfer; Mooncake: prefill."""

    connector: str
    """``nixl`` or ``mooncake``."""
    xfer_seconds: Histogram | None = None
    post_seconds: Histogram | None = None
    bytes: Histogram | None = None
    descriptors: Histogram | None = None
    failed_transfers: float | None = None
    failed_recvs: float | None = None
    failed_notifications: float | None = None
    kv_expired: float | None = None
    notifications_after_expiry: float | None = None

    @property
    def count(self) -> float | None:
        return self.xfer_seconds.count if self.xfer_seconds else None


class EngineSeries(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine (``engine`` label, the data-parallel index) exposes."""

    engine: str
    model: str | None = None
    transfers: tuple[KvTransfer, ...] = ()
    prompt_tokens_by_source: dict[str, float] = {}
    """``local_compute``, ``local_cache_hit``, ``external_kv_transfer`` (vLLM 0.17+); empty if not exposed."""
    kv_fetch_by_stage: dict[str, float] = {}
    ttft_seconds: Histogram | None = None
    queue_seconds: Histogram | None = None
    prefill_seconds: Histogram | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    generation_tokens: float | None = None
    cache_config: dict[str, str] = {}
    others: dict[str, float] = {}
    """Sums and counters of offloading and store connectors, by series and labels."""


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """One ``/metrics`` page."""

    engines: tuple[EngineSeries, ...]
    is_vllm: bool
    """False: a Prometheus page without a single ``vllm:`` series."""


Sample = tuple[str, dict[str, str], float]


def parse_metrics_page(text: str, source: str = "/metrics") -> Scrape:
    """Read a Prometheus text page. Raises FormatError if it is none."""
    samples = _samples(text, source)
    if not samples:
        raise FormatError(
            f"{source} holds no Prometheus series.", "Is this the /metrics page of a vLLM server?"
        )
    ours = [s for s in samples if s[0].startswith("vllm:")]
    engines = sorted({labels.get("engine", "0") for _, labels, _ in ours}, key=lambda e: (len(e), e))
    return Scrape(
        engines=tuple(_engine(e, [s for s in ours if s[1].get("engine", "0") == e]) for e in engines),
        is_vllm=bool(ours),
    )


def _samples(text: str, source: str) -> list[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    found: list[Sample] = []
    # Selected lines only: help texts are not needed, and a damaged foreign series must not cost the rest.
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    for line in lines:
        if len(found) > _LIMIT_SERIES:
            raise FormatError(f"{source} has more than {_LIMIT_SERIES:,} series.")
        try:
            for family in text_string_to_metric_families(line + "\n"):
                found += [(s.name, dict(s.labels), float(s.value)) for s in family.samples]
        except (ValueError, TypeError, IndexError, KeyError, OverflowError):
            continue
    return [s for s in found if not math.isnan(s[2])]


def _engine(engine: str, samples: list[Sample]) -> EngineSeries:
    def one(name: str) -> float | None:
        values = [v for n, _, v in samples if n == name]
        return sum(values) if values else None

    def by(name: str, label: str) -> dict[str, float]:
        out: dict[str, float] = {}
        for n, labels, value in samples:
            if n == name and label in labels:
                out[labels[label]] = out.get(labels[label], 0.0) + value
        return out

    transfers = []
    for connector, series in _SUMS.items():
        histograms: dict[str, Any] = {field: _histogram(samples, name) for field, name in series.items()}
        counters: dict[str, Any] = {
            field: one(f"vllm:{connector}_{name}") for field, name in _COUNTERS.items()
        }
        if any(v is not None for v in (*histograms.values(), *counters.values())):
            transfers.append(KvTransfer(connector=connector, **histograms, **counters))
    info = next((labels for n, labels, _ in samples if n == _CACHE), {})
    return EngineSeries(
        engine=engine,
        model=next((labels["model_name"] for _, labels, _ in samples if "model_name" in labels), None),
        transfers=tuple(transfers),
        prompt_tokens_by_source=by(_SOURCE, "source"),
        kv_fetch_by_stage=by("vllm:num_requests_kv_fetch_by_stage", "stage"),
        ttft_seconds=_histogram(samples, "vllm:time_to_first_token_seconds"),
        queue_seconds=_histogram(samples, "vllm:request_queue_time_seconds"),
        prefill_seconds=_histogram(samples, "vllm:request_prefill_time_seconds"),
        requests_running=one("vllm:num_requests_running"),
        requests_waiting=one("vllm:num_requests_waiting"),
        generation_tokens=one("vllm:generation_tokens_total"),
        cache_config={k: v for k, v in info.items() if k != "engine"},
        others=_others(samples),
    )


def _histogram(samples: Iterable[Sample], name: str) -> Histogram | None:
    count = total = 0.0
    seen = False
    buckets: dict[float, float] = {}
    for n, labels, value in samples:
        if n == f"{name}_count":
            count, seen = count + value, True
        elif n == f"{name}_sum":
            total += value
        elif n == f"{name}_bucket" and "le" in labels:
            try:
                bound = float(labels["le"])
            except ValueError:
                continue
            buckets[bound] = buckets.get(bound, 0.0) + value
    return Histogram(count=count, sum=total, buckets=tuple(sorted(buckets.items()))) if seen else None


def _others(samples: Iterable[Sample]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, labels, value in samples:
        if name.startswith(_OTHERS) and not name.endswith(("_bucket", "_created", "_info")):
            extra = ",".join(
                f"{k}={v}" for k, v in sorted(labels.items()) if k not in ("engine", "model_name")
            )
            out[f"{name}{{{extra}}}" if extra else name] = value
    return out


def histogram_delta(first: Histogram | None, last: Histogram | None) -> Histogram | None:
    """What was added between two scrapes. A count that fell (the server restarted) starts from zero again."""
    if last is None:
        return None
    if first is None or last.count < first.count:
        return last
    before = dict(first.buckets)
    return Histogram(
        count=last.count - first.count,
        sum=max(0.0, last.sum - first.sum),
        buckets=tuple((bound, value - before.get(bound, 0.0)) for bound, value in last.buckets),
    )


def counter_delta(first: float | None, last: float | None) -> float | None:
    """The same for a counter."""
    if last is None:
        return None
    return last if first is None or last < first else last - first


def transfer_delta(first: KvTransfer | None, last: KvTransfer) -> KvTransfer:
    """The transfers between two scrapes of one engine and connector."""
    if first is None:
        return last
    return KvTransfer(
        connector=last.connector,
        xfer_seconds=histogram_delta(first.xfer_seconds, last.xfer_seconds),
        post_seconds=histogram_delta(first.post_seconds, last.post_seconds),
        bytes=histogram_delta(first.bytes, last.bytes),
        descriptors=histogram_delta(first.descriptors, last.descriptors),
        failed_transfers=counter_delta(first.failed_transfers, last.failed_transfers),
        failed_recvs=counter_delta(first.failed_recvs, last.failed_recvs),
        failed_notifications=counter_delta(first.failed_notifications, last.failed_notifications),
        kv_expired=counter_delta(first.kv_expired, last.kv_expired),
        notifications_after_expiry=counter_delta(
            first.notifications_after_expiry, last.notifications_after_expiry
        ),
    )


def engine_delta(first: EngineSeries | None, last: EngineSeries) -> EngineSeries:
    """One engine between two scrapes: counters and histograms subtracted, gauges and labels of the last."""
    if first is None:
        return last
    before = {t.connector: t for t in first.transfers}
    sources = first.prompt_tokens_by_source
    return msgspec.structs.replace(
        last,
        transfers=tuple(transfer_delta(before.get(t.connector), t) for t in last.transfers),
        prompt_tokens_by_source={
            k: counter_delta(sources.get(k), v) or 0.0 for k, v in last.prompt_tokens_by_source.items()
        },
        ttft_seconds=histogram_delta(first.ttft_seconds, last.ttft_seconds),
        queue_seconds=histogram_delta(first.queue_seconds, last.queue_seconds),
        prefill_seconds=histogram_delta(first.prefill_seconds, last.prefill_seconds),
        generation_tokens=counter_delta(first.generation_tokens, last.generation_tokens),
    )


def scrape_delta(first: Scrape, last: Scrape) -> Scrape:
    """Every engine of the second scrape minus the same one of the first."""
    before = {e.engine: e for e in first.engines}
    return Scrape(
        engines=tuple(engine_delta(before.get(e.engine), e) for e in last.engines), is_vllm=last.is_vllm
    )
