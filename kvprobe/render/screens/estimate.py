"""The table of ``kvprobe estimate``: terms of each prompt length, tax of the judged one, advice, planner's units."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_rate, format_seconds, significant

_ADVICE = {
    "split": "Split prefill and decode", "colocate": "Stay colocated", "no_need": "No need to split",
    "measure_first": "Measure first",
}  # fmt: skip


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    if not result.get("prompts"):
        return []
    found = [Block(title="Transfer of one prompt", body=_transfer(result))]
    judged = result["prompts"][-1]
    found.append(Block(title=_tax_title(judged), body=_tax(judged)))
    if result.get("advice") and result["advice"]["label"] in ("split", "no_need"):
        # The other two stand below as findings with everything about them.
        found.append(
            Block(title=f"Advice: {_ADVICE[result['advice']['label']]}", body=_advice(result["advice"]))
        )
    if result.get("planner"):
        found.append(Block(title="For Dynamo's planner", body=_planner(result["planner"])))
    return found


def _transfer(result: dict[str, Any]) -> tuple[RenderableType, ...]:
    kv, link = result["kv"], result["link"]
    per_token = kv["bytes_per_token"]["per_rank"]
    rank = " a rank" if kv["tp"] > 1 else ""
    head = (
        link["source"]
        if link["bytes_per_second"] is None
        else f"{link['name']}: {_rate(link)}{link['source']}"
    )
    lines = [
        f"{format_bytes(per_token)} per token{rank}, {kv['kv_cache_dtype']}, blocks of {kv['block_size_tokens']} tokens",
        head,
    ]
    table = _grid(7)
    heads = ["tokens", f"bytes{rank}", "descriptors", "wire", "descriptors", "round trip", "transfer"]
    table.add_row(*(Text(h, style="dim") for h in heads))
    for row in result["prompts"]:
        known = row["transfer_seconds"]
        table.add_row(
            f"{row['prompt_tokens']:,}",
            format_bytes(row["bytes"]),
            f"{row['descriptors']:,}",
            _seconds(row["wire_seconds"]),
            _descriptors(row),
            _seconds(row["round_trip_seconds"] or None, "-"),
            format_seconds(known) if known is not None else f"≥ {format_seconds(row['at_least_seconds'])}",
        )
    return (*(Text(line) for line in lines), Text(), table)


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(justify="right")
    return table


def _rate(link: dict[str, Any]) -> str:
    speed, effective = link["bytes_per_second"], link["effective_bytes_per_second"]
    told = "" if link["name"] == format_rate(speed) else f"{format_rate(speed)}, "
    return told if effective == speed else f"{told}{format_rate(effective)} through the window, "


def _descriptors(row: dict[str, Any]) -> str:
    if row["descriptor_seconds"] == 0:
        return "in the rate"
    mark = " (extrapolated)" if row["extrapolated"] else ""
    return _seconds(row["descriptor_seconds"]) + mark


def _seconds(value: float | None, absent: str = "unknown") -> str:
    return absent if value is None else format_seconds(value)


def _tax_title(row: dict[str, Any]) -> str:
    least = "at least " if row["tax_is_lower_bound"] else ""
    tax = row["tax"]
    p90 = "" if row["tax_is_lower_bound"] else f", p90 {format_seconds(tax['p90_seconds'])}"
    return f"TTFT tax of {row['prompt_tokens']:,} tokens: {least}{format_seconds(tax['p50_seconds'])}{p90}"


def _tax(row: dict[str, Any]) -> tuple[RenderableType, ...]:
    terms = [*row["tax"]["terms"], {**row["tax"]["first_contact"], "name": "first contact, once"}]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column()
    sources = list(dict.fromkeys(term["source"] for term in terms))
    for term in terms:
        least = "≥ " if term["name"] == "transfer" and row["tax_is_lower_bound"] else ""
        mark = Text(f"({sources.index(term['source']) + 1})", style="dim")
        table.add_row(term["name"], least + format_seconds(term["seconds"]), term["origin"], mark)
    notes = Table.grid(padding=(0, 1))
    for number, source in enumerate(sources, 1):
        notes.add_row(Text(f"({number})", style="dim"), Text(source, style="dim"))
    return (table, notes)


def _advice(advice: dict[str, Any]) -> tuple[RenderableType, ...]:
    lines = [Text(f"because {text}") for text in advice["deciding"]]
    lines += [Text(f"but     {text}", style="dim") for text in advice["also"]]
    return tuple(lines)


def _planner(told: dict[str, Any]) -> tuple[RenderableType, ...]:
    rate = significant(told["kv_transfer_bandwidth_gb_s"])
    command = (
        f"python -m dynamo.mocker ... --kv-bytes-per-token {told['kv_bytes_per_token']} "
        f"--kv-transfer-bandwidth {rate.replace(',', '')}"
    )
    note = f"GB/s at {told['prompt_tokens']:,} tokens, from {told['basis']}"
    return Text(command), Text(note, style="dim")
