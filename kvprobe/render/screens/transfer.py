"""The transfer screen: every series, and what several in flight do to each other."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block
from kvprobe.render.screens.preflight import ladder_table
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_rate, format_seconds


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    found = []
    if result.get("nodes"):
        found.append(Block("nodes", (_nodes(result["nodes"]),)))
    if result.get("ladder"):
        size = next((r["bytes"] for r in result["ladder"] if r.get("bytes")), 0)
        found.append(
            Block(f"ladder between the nodes, {format_bytes(size)}", (ladder_table(result["ladder"], look),))
        )
    for number, session in enumerate(result.get("sessions") or []):
        body = (
            _told(session["series"]),
            *(Text(f"{op['operation']} over {op['label']}", style="dim") for op in session["network"]),
        )
        found.append(
            Block(
                f"session {number + 1}, measured by {session['decode']['hostname']} (medians of warm samples)",
                body,
            )
        )
    if result.get("transfers"):
        rows = result["transfers"]
        over = {row["op"]: row.get("transport") or "unknown transport" for row in rows}
        body = (
            _series(rows, narrow=look.width < 90),
            Text("; ".join(f"{op} over {name}" for op, name in over.items()), style="dim"),
        )
        found.append(Block("series (medians of warm samples)", body))
    if result.get("ranks"):
        seen = result.get("transport")
        path = Text(f"READ over {seen['label'] if seen else 'unknown transport'}", style="dim")
        title = f"ranks, {result['prompt_tokens']:,} tokens {result['order']} (medians of warm samples)"
        found.append(Block(title, (_ranks(result["ranks"]), path)))
    if result.get("concurrency"):
        found.append(Block("transfers in flight", (_levels(result["concurrency"]),)))
    return found


def _nodes(nodes: dict[str, Any]) -> RenderableType:
    table = _table("role", "host", "kvprobe", "memory", "RDMA ports", "interfaces")
    for column in table.columns[1:]:
        column.justify = "left"
    for role, node in nodes.items():
        if node is None:
            table.add_row(role, "unknown")
            continue
        ports = [f"{p['device']}:{p['port']} {p['state']}" for p in node["host"]["rdma"]]
        up = [f"{d['name']} (MTU {d['mtu']})" for d in node["network"] if d["up"] and d["name"] != "lo"]
        table.add_row(
            role,
            node["hostname"],
            node["kvprobe"],
            node["gpu"] or "host memory",
            ", ".join(ports) or "none",
            ", ".join(up[:4]) or "none but lo",
        )
    return table


def _ranks(rows: list[dict[str, Any]]) -> RenderableType:
    table = _table("decode rank", "from", "bytes", "descr.", "alone", "together", "rate", "slower", "n")
    for row in rows:
        alone, together = row["alone_median_seconds"], row["together_median_seconds"]
        table.add_row(
            str(row["rank"]),
            ", ".join(str(p) for p in row["reads_from"]),
            format_bytes(row["bytes"]),
            f"{row['descriptors']:,}",
            format_seconds(alone) if alone else "",
            format_seconds(together) if together else "not measured",
            format_rate(row["bytes"] / together) if together else "",
            f"{row['slowdown']:.2f}" if row["slowdown"] else "",
            str(len(row["together_seconds"])),
        )
    return table


def _told(series: list[dict[str, Any]]) -> RenderableType:
    table = _table("series", "bytes", "warm", "rate", "n")
    for row in series:
        seconds = row["median_seconds"]
        table.add_row(
            row["id"],
            format_bytes(row["bytes"]),
            format_seconds(seconds) if seconds else "not measured",
            format_rate(row["bytes"] / seconds) if seconds else "",
            str(row["samples"]),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(
            name, justify="left" if number == 0 or name == "over" else "right", no_wrap=name != "over"
        )
    return table


def _series(rows: list[dict[str, Any]], *, narrow: bool) -> RenderableType:
    names = ("series", "bytes", "sent", "cold", "warm", "rate", "each", "n")
    table = _table(*(n for n in names if n != "cold" or not narrow))
    for row in rows:
        seconds, cold = row.get("median_seconds"), row.get("cold_seconds") or []
        sent = (row.get("nixl_descriptors") or 0) * row["in_flight"] or row["descriptors"]
        table.add_row(
            row["id"],
            format_bytes(row["bytes"]),
            f"{sent:,}",
            *(() if narrow else (format_seconds(cold[0]) if cold else "",)),
            format_seconds(seconds) if seconds else "not measured",
            format_rate(row["bytes"] / seconds) if seconds else "",
            format_seconds(seconds / sent) if seconds else "",
            str(len(row["seconds"])),
        )
    return table


def _levels(rows: list[dict[str, Any]]) -> RenderableType:
    table = _table("in flight", "until all are done", "together", "fairness", "n")
    for row in rows:
        table.add_row(
            str(row["in_flight"]),
            format_seconds(row["seconds"]),
            format_rate(row["bandwidth_bytes_per_second"]),
            f"{row['fairness']:.2f}",
            str(row["samples"]),
        )
    return table
