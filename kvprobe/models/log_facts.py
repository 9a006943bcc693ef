"""What the rules of ``kvprobe logs`` look at."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.formats.vllm_metrics import CACHE_FACTORS, EngineSeries
from kvprobe.models.log_meaning import FitComparison, Meaning
from kvprobe.models.log_summary import Aggregate


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of one decode engine by where their KV came from."""

    url: str
    engine: str
    computed: float
    external: float
    cached: float
    requests: float | None

    @property
    def share(self) -> float | None:
        """Computed by decode itself over all; each request's last token always is. None without a prompt."""
        every = self.computed + self.external + self.cached
        return max(0.0, self.computed - (self.requests or 0.0)) / every if every else None


class CacheDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A field of ``cache_config_info`` in which prefill and decode differ."""

    name: str
    prefill: str
    decode: str


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The whole input, judged as one."""

    origin: str
    """``log`` or ``/metrics``."""
    sources: tuple[str, ...]
    total: Aggregate
    warm: Aggregate
    meaning: Meaning
    concurrency: float | None = None
    failures: tuple[dict[str, Any], ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    outliers: tuple[dict[str, Any], ...] = ()
    """First intervals that took far longer than the later ones."""
    others: tuple[str, ...] = ()
    """Connectors that print without moving KV between instances."""
    damaged: int = 0
    silent_zeros: int = 0
    """Intervals of zeros whose counters this vLLM does not print."""
    read_notes: tuple[str, ...] = ()
    doctor: bool = True
    roles: tuple[str, ...] = ()
    comparison: FitComparison | None = None
    report: str | None = None
    recompute: tuple[Recompute, ...] = ()
    cache_differences: tuple[CacheDifference, ...] | None = None
    """None: the two sides were not both asked."""
    evidence: str = "log"


def recompute_of(url: str, engine: EngineSeries) -> Recompute | None:
    """None where the server does not expose the sources (vLLM before 0.17) or not the computed ones."""
    sources = engine.prompt_tokens_by_source
    if "local_compute" not in sources:
        return None
    return Recompute(
        url=url,
        engine=engine.engine,
        computed=sources["local_compute"],
        external=sources.get("external_kv_transfer", 0.0),
        cached=sources.get("local_cache_hit", 0.0),
        requests=engine.ttft_seconds.count if engine.ttft_seconds else None,
    )


def cache_differences(prefill: EngineSeries, decode: EngineSeries) -> tuple[CacheDifference, ...] | None:
    """Fields that both expose and that differ; None if one of them exposes no cache configuration."""
    mine, peer = prefill.cache_config, decode.cache_config
    if not mine or not peer:
        return None
    return tuple(
        CacheDifference(name=name, prefill=mine[name], decode=peer[name])
        for name in CACHE_FACTORS
        if name in mine and name in peer and mine[name] != peer[name]
    )
