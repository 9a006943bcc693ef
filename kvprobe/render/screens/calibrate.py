"""The calibrate screen: the fitted constants, and how well they give the runs back."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block
from kvprobe.report import Report
from kvprobe.units import format_seconds, significant


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    found = [Block("constants", tuple(Text(line) for c in result["constants"] for line in _constants(c)))]
    if result.get("staging"):
        both = sum(result["staging"][f"{side}_seconds_per_byte"] for side in ("prefill", "decode"))
        found.append(
            Block("host staging", (Text(f"{significant(both * 1e9)} ns a byte, both sides together"),))
        )
    found.append(Block("the runs, predicted with them", (_samples(result["samples"]),)))
    if result.get("saved"):
        found.append(
            Block("saved", (Text(f"kvprobe preflight --calibration {result['saved']}"),), below=True)
        )
    return found


def _constants(one: dict[str, Any]) -> list[str]:
    return [
        f"vLLM {one['vllm_version']}  ({one['source']})",
        f"  second HTTP hop         {format_seconds(one['hop_seconds_per_token'] * 1000)} per 1,000 tokens",
        f"  scheduling and polling  {format_seconds(one['schedule_seconds'])}",
        f"  decode step             {format_seconds(one['step_seconds'])}",
    ]


def _samples(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for index, name in enumerate(("vLLM", "tokens", "pairs", "transfer", "measured", "predicted", "error")):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["vllm_version"],
            f"{row['prompt_tokens']:,}",
            str(row["requests"]),
            *(format_seconds(row[f"{key}_seconds"]) for key in ("transfer", "tax", "predicted", "error")),
        )
    return table
