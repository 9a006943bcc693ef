"""The tune screen: the ranked table and the winner's settings and costs."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, labelled
from kvprobe.report import Report
from kvprobe.units import format_seconds, significant

_SHOWN = 12


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    rows = result.get("candidates") or []
    if not rows:
        return []
    shown = rows if look.verbose else rows[:_SHOWN]
    title = f"ranked by predicted TTFT tax, {result['prompt_tokens']:,} tokens"
    body: list[RenderableType] = [_table(shown)]
    if len(shown) < len(rows):
        body.append(Text(f"{len(rows) - len(shown)} more with -v", style="dim"))
    body += [Text(f"* {row['name']}: {row['why_not']}", style="dim") for row in shown if row.get("why_not")][
        :1
    ]
    found = [Block(title, tuple(body))]
    best = result.get("winner")
    if best and not best["is_baseline"]:
        found.append(Block("before and after", _winner(result["baseline"], best)))
    return found


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    table.add_column("setting")
    for name in ("descriptors", "transfer", "copies", "tax p50", "times"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("over", style="dim")
    for row in rows:
        copies = (row.get("stage_out_seconds") or 0) + (row.get("stage_in_seconds") or 0)
        style = "" if row["available"] else "dim"
        table.add_row(
            f"{row['name']}{'' if row['available'] else ' *'}",
            f"{row['descriptors']:,}",
            format_seconds(row["seconds"]),
            format_seconds(copies) if copies else "",
            format_seconds(row["tax_p50_seconds"]) if row.get("tax_p50_seconds") else "",
            f"{significant(row['speedup'])}x",
            _short(row.get("transport")),
            style=style,
        )
    return table


def _short(transport: str | None) -> str:
    """``cuda_ipc`` for zero-copy, ``tcp/lo emulated``: the table has no room for more."""
    return (transport or "unknown").replace(", zero-copy", "").replace(", software emulation", " emulated")


def _winner(base: dict[str, Any], best: dict[str, Any]) -> tuple[RenderableType, ...]:
    lines: list[RenderableType] = [
        Text(f"transfer  {format_seconds(base['whole_seconds'])} -> {format_seconds(best['whole_seconds'])} ({significant(best['speedup'])} times as fast, median of {best['samples']})"),
        Text(f"tax p50   {format_seconds(base['tax_p50_seconds'])} -> {format_seconds(best['tax_p50_seconds'])}"),
    ]  # fmt: skip
    lines += [Text(f"set       {line}", style="bold") for line in best["settings"]]
    if best["costs"]:
        lines.append(labelled(*(("costs", line) for line in best["costs"])))
    return tuple(lines)
