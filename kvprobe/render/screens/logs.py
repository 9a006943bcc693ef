"""The table of ``kvprobe logs``: a row an engine, transfers over time, what the numbers mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_rate, format_seconds, significant

_ROWS = 16
_ENGINES = 16


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    found = []
    engines = result.get("engines") or []
    if engines:
        found.append(Block(title="Transfers", body=(_engines(engines, look), *_units(result, engines))))
    timeline = result.get("timeline")
    if timeline and len(timeline["bins"]) > 1:
        found.append(Block(title=_timeline_title(timeline), body=(_timeline(timeline, look),)))
    told = _meaning(result)
    if told:
        found.append(Block(title="What the numbers mean", body=told))
    others = result.get("other_connectors") or {}
    if others:
        found.append(Block(title="Other connectors (not prefill to decode)", body=tuple(_others(others))))
    return found


def _engines(engines: list[dict[str, Any]], look: Look) -> RenderableType:
    """Wide enough for 80 columns with six figures, 100 with eight, 120 with all."""
    level = 2 if look.width >= 120 else 1 if look.width >= 100 else 0
    columns = [c for c in _COLUMNS if c[1] <= level]
    table = Table.grid(padding=(0, 1))
    table.add_column(overflow="fold", max_width=24)
    for _ in columns:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(name, style="dim") for name, _, _ in columns))
    for e in engines[:_ENGINES]:
        table.add_row(_name(e), *(cell(e) for _, _, cell in columns))
    if len(engines) > _ENGINES:
        table.add_row(Text(f"and {len(engines) - _ENGINES} more in the JSON report", style="dim"))
    return table


def _figure(key: str, form: Callable[[float], str]) -> Callable[[dict[str, Any]], str | Text]:
    def cell(e: dict[str, Any]) -> str | Text:
        value = e.get(key)
        return Text("-", style="dim") if value is None else form(value)

    return cell


def _p90(e: dict[str, Any]) -> str | Text:
    bounds = e["xfer_seconds_p90_bounds"]
    return Text("-", style="dim") if bounds is None else format_seconds(bounds[1])


def _bad(*keys: str) -> Callable[[dict[str, Any]], Text]:
    def cell(e: dict[str, Any]) -> Text:
        values = [e[k] for k in keys if e[k] is not None]
        if not values:
            return Text("-", style="dim")
        return Text(f"{sum(values):,}", style="red" if sum(values) else "")

    return cell


_COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str | Text]], ...] = (
    ("count", 0, _figure("num_successful_transfers", lambda v: f"{v:,.0f}")),
    ("size", 0, _figure("bytes_per_transfer_mean", format_bytes)),
    ("mean", 0, _figure("xfer_seconds_mean", format_seconds)),
    ("P90 ≤", 0, _p90),
    ("post", 0, _figure("post_share", lambda v: f"{v:.0%}")),
    ("/descr.", 1, _figure("seconds_per_descriptor", format_seconds)),
    ("rate", 1, _figure("bytes_per_second_of_a_transfer", format_rate)),
    ("goodput", 2, _figure("goodput_bytes_per_second", format_rate)),
    ("at once", 2, _figure("implied_concurrency", significant)),
    ("failed", 0, _bad("num_failed_transfers", "num_failed_recvs")),
    ("expired", 0, _bad("num_kv_expired_reqs")),
    ("late", 0, _bad("num_notifs_after_expiry")),
)
"""Name, the level of width it needs, and the cell."""


def _name(e: dict[str, Any]) -> str:
    place = (
        e.get("source")
        or str(e.get("url") or e.get("file") or "").removesuffix("/metrics").rsplit("/", 1)[-1]
    )
    place = re.sub(r"\.(?:gz|zst|xz|bz2)$", "", place)
    engine = f" engine {e['engine']}" if e.get("engine") not in (None, "") else ""
    return f"{place}{engine} {str(e['connector']).removesuffix('Connector')}"


def _units(result: dict[str, Any], engines: list[dict[str, Any]]) -> list[RenderableType]:
    sides = sorted({e["measured_by"] for e in engines if e.get("measured_by")})
    who = f"; measured by {' and '.join(sides)}" if sides else ""
    lines = [
        f"A transfer is one rank's of one request{who}. The log's MB are MiB. '-': not printed by this vLLM."
    ]
    cold = [e for e in engines if (e.get("first_interval") or {}).get("outlier")]
    for e in cold[:4]:
        first = e["first_interval"]
        lines.append(
            f"{_name(e)}: the first interval took {format_seconds(first['xfer_seconds_mean'])} a transfer; "
            f"{format_seconds(e['warm_xfer_seconds_mean'])} without it."
        )
    for e in [e for e in engines if (e.get("ranks_seen") or 0) > 1][:4]:
        size = e["bytes_per_request_estimated"]
        each = f" of {format_bytes(size)}" if size else ""
        lines.append(f"{_name(e)}: {e['ranks_seen']} ranks seen, so about {_requests(e)}{each}.")
    if result.get("intervals_left_out"):
        lines.append(
            f"{result['intervals_in_all']:,} intervals; the JSON report lists the first and the newest, all are in the sums."
        )
    return [_wrapped(line, "dim") for line in lines]


def _requests(e: dict[str, Any]) -> str:
    count = round(e["requests_estimated"])
    return "1 request" if count == 1 else f"{count:,} requests"


def _wrapped(line: str, style: str = "") -> RenderableType:
    return sentences(Text(line, style=style))


def _timeline_title(timeline: dict[str, Any]) -> str:
    start = f" from {timeline['start']}" if timeline["start"] else ""
    return f"Mean transfer time{start}"


def _timeline(timeline: dict[str, Any], look: Look) -> RenderableType:
    rows = _grouped(timeline["bins"], _ROWS)
    longest = max((r["mean"] for r in rows if r["mean"] is not None), default=0.0)
    room = max(
        8, min(50, look.width - (70 if any(r["failed"] or r["expired"] or r["late"] for r in rows) else 46))
    )
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for row in rows:
        mean = row["mean"]
        marks = [
            f"{row[key]:,} {word}"
            for key, word in (("failed", "failed"), ("expired", "expired"), ("late", "late"))
            if row[key]
        ]
        table.add_row(
            Text(row["start"], style="dim"),
            Text(_bar(mean, longest, room), style="cyan"),
            "-" if mean is None else format_seconds(mean),
            f"{row['transfers']:,} transfer{'' if row['transfers'] == 1 else 's'}",
            Text(", ".join(marks), style="red"),
        )
    return table


def _grouped(bins: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """At most ``limit`` rows of neighbouring bins; means weighted by transfers."""
    size = -(-len(bins) // limit)
    rows = []
    for at in range(0, len(bins), size):
        part = bins[at : at + size]
        timed = [b for b in part if b["xfer_seconds_mean"] is not None]
        count = sum(b["num_successful_transfers"] for b in timed)
        rows.append({
            "start": part[0]["start"] or f"+{part[0]['offset_seconds']:.0f} s",
            "mean": sum(b["xfer_seconds_mean"] * b["num_successful_transfers"] for b in timed) / count if count else None,
            "transfers": sum(b["num_successful_transfers"] for b in part),
            "failed": sum(b["failed"] for b in part),
            "expired": sum(b["expired"] for b in part),
            "late": sum(b["notifs_after_expiry"] for b in part),
        })  # fmt: skip
    return rows


def _bar(value: float | None, longest: float, room: int) -> str:
    if value is None or not longest:
        return ""
    eighths = max(1, round(value / longest * room * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _meaning(result: dict[str, Any]) -> tuple[RenderableType, ...]:
    found = result.get("meaning") or {}
    lines = []
    if found.get("bound") in ("descriptors", "bytes"):
        lines.append(f"bound by {found['bound']}: {found['bound_why']}")
    if found.get("looks_like"):
        lines.append(f"looks like {found['looks_like']}: {found['looks_like_why']}")
    against = result.get("against_nixl")
    if against:
        beyond = ", beyond the measured range" if against["extrapolated"] else ""
        lines.append(
            f"NIXL alone: {format_seconds(against['predicted_seconds'])} predicted{beyond}; the engine needs "
            f"{format_seconds(against['measured_seconds'])}, {against['ratio']:.2f} times as much"
        )
    return tuple(_wrapped(line) for line in lines)


def _others(others: dict[str, dict[str, Any]]) -> list[RenderableType]:
    found: list[RenderableType] = []
    for name, values in others.items():
        rates = [
            f"{k.removesuffix('_GB_per_s')} {v} GB/s" for k, v in values.items() if k.endswith("_GB_per_s")
        ]
        told = rates or [f"{k} {v:,}" for k, v in list(values.items())[:4]]
        found.append(_wrapped(f"{name}: {', '.join(told)}"))
    return found
