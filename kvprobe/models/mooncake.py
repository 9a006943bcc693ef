"""What a Mooncake measurement found, and NIXL's beside it: the same plan, the same memory, TCP on loopback."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.models.statistics import summarize
from kvprobe.models.transfer import Series, Step, StepGroup, TransferFacts

LIMIT_VARIABLE = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"
LIMIT_MAX = 65535
"""Mooncake 0.3.13 falls back to its default of 1,024 above it."""
_DEFAULT_GROUP = (28, 16 * 2 * 4 * 128 * 2)
DEFAULT_PLAN = "Qwen2.5-7B: 28 layers, blocks of 16 tokens x 4 KV heads x 128 x 2 (K, V) in bf16"


class MooncakeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Series in seconds; ``nixl_descriptors`` of a series are Mooncake's pieces after neighbours were joined."""

    series: tuple[Series, ...] = ()
    version: str | None = None
    engine_seconds: float | None = None
    register_seconds: float | None = None
    queue_limit: int | None = None
    """The limit that kvprobe set; None: Mooncake's own."""
    isolated: bool | None = None
    """It ran in a network namespace of its own; False: its ports were open while it ran."""
    refused_batch: int | None = None
    """Pieces in a batch that Mooncake refused."""
    skipped: tuple[str, ...] = ()
    failure: str | None = None
    failure_remedy: str = ""
    failure_log: str = ""


def steps(
    prompt_tokens: int, groups: tuple[StepGroup, ...] | None, op: str, samples: int, max_seconds: float
) -> tuple[Step, ...]:
    """One contiguous and one shuffled series of the plan; the default plan is that of a 7B model."""
    if groups is None:
        regions, size = _DEFAULT_GROUP
        groups = (StepGroup(regions=regions, descriptor_bytes=size, blocks=-(-prompt_tokens // 16)),)
    return tuple(
        Step(
            id=f"{op.lower()}-{prompt_tokens}-{order}", op=op, order=order, prompt_tokens=prompt_tokens, groups=groups,
            samples=samples, min_samples=min(5, samples), max_seconds=max_seconds,
        )
        for order in ("contiguous", "shuffled")
    )  # fmt: skip


def row(name: str, series: Series) -> dict[str, Any]:
    """One line of the comparison."""
    figure = summarize(series.seconds) if series.seconds else None
    return {
        "library": name,
        "op": series.op,
        "order": series.order,
        "prompt_tokens": series.prompt_tokens,
        "bytes": series.bytes,
        "descriptors": series.descriptors,
        "descriptors_sent": series.nixl_descriptors,
        "samples": len(series.seconds),
        "seconds_median": figure.median if figure else None,
        "seconds_p90": figure.p90 if figure else None,
        "cold_seconds": series.cold_seconds[0] if series.cold_seconds else None,
        "bytes_per_second": series.bytes / figure.median if figure else None,
        "verified": series.verified,
    }


def comparison(mooncake: MooncakeFacts | None, nixl: TransferFacts | None) -> list[dict[str, Any]]:
    """Both libraries, order by order."""
    rows = [row("mooncake", s) for s in mooncake.series] if mooncake else []
    rows += [row("nixl", s) for s in nixl.series] if nixl else []
    return sorted(rows, key=lambda r: (r["order"], r["library"]))
