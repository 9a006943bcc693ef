"""What ``lint`` understood, above what it found: one line an instance, so that a misreading shows at once."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.report import Report

_ROLE_STYLE = {"prefill": "cyan", "decode": "blue"}


def blocks(report: Report, look: Look) -> list[Block]:
    """The instances as read, and below the findings what the launch will lead to."""
    instances: list[dict[str, Any]] = report.result.get("instances") or []
    out = []
    if instances:
        out.append(Block("instances, as read", (_table(instances, look),)))
    verdict = report.result.get("verdict")
    if verdict:
        words = str(verdict).replace("_", " ")
        assumed = (
            "; no version was given, so the newest known one is assumed"
            if report.result.get("vllm_version_assumed")
            else ""
        )
        line = Text(f"{words}, judged by vLLM {report.result.get('vllm_version')}{assumed}")
        out.append(Block("what this leads to", (sentences(line),), below=True))
    return out


def _table(instances: list[dict[str, Any]], look: Look) -> Table:
    narrow = look.width < 100
    table = Table(
        box=box.SIMPLE_HEAD if look.unicode else box.ASCII2, show_edge=False, pad_edge=False, padding=(0, 1)
    )
    for name in (
        "role",
        "where",
        "host",
        "connector",
        "TP x DP",
        "port",
        "side channel",
        *(() if narrow else ("GPUs",)),
    ):
        table.add_column(name, overflow="fold", no_wrap=name in ("role", "TP x DP", "port"))
    for item in instances:
        role = item["role"] or "?"
        cells = [
            Text(role, style=_ROLE_STYLE.get(role, "")),
            Text(item["where"]),
            Text(item["host"] or "not said"),
            Text(_connector(item)),
            Text(f"{_known(item['tensor_parallel_size'])} x {_known(item['data_parallel_size'])}"),
            Text(_known(item["http_port"])),
            Text(_ports(item["side_channel_ports"])),
        ]
        if not narrow:
            cells.append(Text(",".join(item["devices"]) if item["devices"] else "not said"))
        table.add_row(*cells)
    return table


def _connector(item: dict[str, Any]) -> str:
    if not item["connector"]:
        return "none"
    role = item["kv_role"] or "no kv_role"
    return f"{item['connector']} {role}"


def _ports(ports: list[int] | None) -> str:
    if not ports:
        return "-"
    return str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)
