"""Rungs 5 and 6 for preflight: the decode engine's own log line, and the TTFT that a user sees."""

from __future__ import annotations

from typing import Any

from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.flows.live import live
from kvprobe.formats.vllm_log import MARKER, Interval, parse_metrics_line
from kvprobe.models.ladder import Rung
from kvprobe.models.prompt_steps import JUDGED_TOKENS

_SAME_SIZE = 0.1
"""A log interval counts for rung 5 when its mean transfer is this close to the judged bytes."""
_LIVE = {"requests": 6, "load_seconds": 0.0, "output_tokens": 8, "max_seconds": 120.0, "settle": True}


def engine_rung(door: Door, path: str, size: int) -> tuple[Rung, AnyEvidence]:
    """Rung 5 from a decode log: the mean over all intervals whose transfers are about as large as the judged one."""
    text = door.system.read_text(path)
    marker = MARKER.decode()
    found = [
        i for line in text.splitlines() if marker in line and (i := parse_metrics_line(line)) and i.measured
    ]
    evidence = Evidence(
        id="decode-log", kind="kv_transfer_intervals", origin=Origin.PARSED, source=path, facts=tuple(found)
    )
    near = [i for i in found if _near(i, size)]
    transfers = sum(i.num_successful_transfers for i in near)
    seconds = sum(i.xfer_seconds_total or 0.0 for i in near)
    if not transfers:
        sizes = sorted({round(i.avg_mib_per_transfer) for i in found if i.avg_mib_per_transfer})
        span = " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else ""
        seen = f"its transfers average {span} MiB" if sizes else "it has no transfer line"
        return Rung(
            number=5, status="unknown", note=f"{path}: {seen}, none about {size / 2**20:,.0f} MiB"
        ), evidence
    note = (
        f"{transfers} transfers in {len(near)} intervals of {path}; post, transfer and the engine's polling"
    )
    return (
        Rung(
            number=5, status="measured", bytes=size, seconds=seconds / transfers, statistic="mean", note=note
        ),
        evidence,
    )


def _near(interval: Interval, size: int) -> bool:
    each = (interval.avg_mib_per_transfer or 0.0) * 2**20
    return abs(each - size) <= _SAME_SIZE * size


def user_rungs(door: Door, prefill: str, decode: str, colocated: str | None) -> tuple[list[Rung], Draft]:
    """Rungs 5 and 6 from the running servers: a short `kvprobe live` at the judged prompt length."""
    params: dict[str, Any] = {
        "prefill": prefill, "decode": decode, "colocated": colocated, "prompt_tokens": (JUDGED_TOKENS,), **_LIVE
    }  # fmt: skip
    draft = live(door, params)
    rungs = [
        Rung(
            number=row["rung"],
            status=row["status"],
            bytes=row.get("bytes"),
            seconds=row.get("seconds"),
            statistic=row.get("statistic"),
            samples=tuple(row.get("samples") or ()),
            note=row.get("note"),
        )
        for row in draft.result.get("ladder") or []
        if row["rung"] in (5, 6)
    ]
    return rungs, draft
