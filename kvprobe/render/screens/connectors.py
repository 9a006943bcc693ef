"""The screen of ``kvprobe connectors``: one line a connector, and Mooncake beside NIXL."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.report import Report
from kvprobe.units import format_rate, format_seconds

_STATUS = {"ready": "ready", "not_ready": "NOT READY", "not_in_version": "not in this vLLM"}


def blocks(report: Report, look: Look) -> list[Block]:
    """``connectors`` and, when measured, ``the same plan over both libraries``."""
    result = report.result
    found = [
        Block(
            title=f"connectors of vLLM {result['vllm_version']}",
            body=(_connectors(result["connectors"], look),),
        )
    ]
    transfer = result["transfer"]
    if transfer["rows"]:
        body: tuple[RenderableType, ...] = (
            sentences(Text(_caption(transfer), style="dim")),
            _rows(transfer["rows"]),
        )
        found.append(Block(title="Mooncake beside NIXL", body=body))
    outside = "; ".join(f"{name}: {why}" for name, why in result["out_of_scope"].items())
    if look.verbose:
        found.append(Block(title="out of scope", body=(sentences(Text(outside)),)))
    return found


def _caption(transfer: dict[str, Any]) -> str:
    counts = sorted({row["samples"] for row in transfer["rows"]})
    samples = "-".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    return f"{transfer['plan']}; {transfer['path']}; {samples} warm samples a row"


def _connectors(states: list[dict[str, Any]], look: Look) -> Table:
    """Below 100 columns the packages stand in the last column, too."""
    narrow = look.width < 100
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for column in (
        "connector",
        "status",
        "P/D",
        *(() if narrow else ("package",)),
        "what is missing" if not narrow else "package; what is missing",
    ):
        table.add_column(column, overflow="fold", no_wrap=column in ("connector", "status"))
    for state in states:
        package = ", ".join(
            f"{p['distribution']} {p['version']}" for p in state["packages"] if p["distribution"]
        )
        missing = "; ".join(p["text"] for p in state["problems"]) or ""
        last = ("; ".join(filter(None, (package, missing))),) if narrow else (package, missing)
        table.add_row(state["name"], _STATUS[state["status"]], "yes" if state["pd"] else "", *last)
    return table


def _rows(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for column in ("library", "blocks", "pieces", "median", "p90", "cold", "rate"):
        table.add_column(column, justify="left" if column in ("library", "blocks") else "right")
    for row in rows:
        pieces = row["descriptors_sent"] or row["descriptors"]
        table.add_row(
            f"{row['library']} {row['op']}",
            row["order"],
            f"{pieces:,}",
            _time(row["seconds_median"]),
            _time(row["seconds_p90"]),
            _time(row["cold_seconds"]),
            "" if row["bytes_per_second"] is None else format_rate(row["bytes_per_second"]),
        )
    return table


def _time(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)
