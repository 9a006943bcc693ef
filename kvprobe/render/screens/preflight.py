"""The preflight screen: KV facts, the ladder as a waterfall, the TTFT tax."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, labelled, sentences
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_rate, format_seconds

_BAR, _NARROW_BAR = 20, 7


def blocks(report: Report, look: Look) -> list[Block]:
    result = report.result
    found = [Block("model", _model(report))]
    if result.get("ladder"):
        found.append(Block(_ladder_title(result), (ladder_table(result["ladder"], look), *_largest(result))))
    if result.get("pairs"):
        found.append(Block("all pairs", (_pairs(result["pairs"]),)))
    if result.get("tax"):
        found.append(
            Block(
                f"TTFT tax{_path(result)} (added to every first token)",
                (_tax(result["tax"]), *_tax_notes(result["tax"])),
                below=True,
            )
        )
    return found


def _path(result: dict[str, Any]) -> str:
    return " through host memory, not a GPU figure" if result.get("memory") == "dram" else ""


def _model(report: Report) -> tuple[RenderableType, ...]:
    kv = report.result.get("kv") or {}
    each = (kv.get("bytes_per_token") or {}).get("per_rank")
    lines = [("config", str(report.subject.get("model_source")))]
    if each is not None:
        tp = report.subject.get("tp") or 1
        rank = f" per rank (TP {tp})" if tp > 1 else ""
        told = f"{each:,} B/token{rank}, {kv.get('kv_cache_dtype')}, blocks of {kv.get('block_size_tokens')} tokens"
        lines.append(("KV cache", told))
    assumed = [
        ("assumed", f"{item.get('what')}: {item.get('value')} ({item.get('why')})")
        for item in kv.get("assumptions") or []
    ]
    return labelled(*lines), *([labelled(*assumed, style="dim")] if assumed else [])


def _ladder_title(result: dict[str, Any]) -> str:
    size = next((r["bytes"] for r in result["ladder"] if r.get("bytes")), None)
    judged = result.get("judged") or {}
    amount = f", {format_bytes(size)}" if size else ""
    return f"ladder: {judged.get('prompt_tokens', 0):,} tokens{amount}, {result.get('subject')}"


def ladder_table(ladder: list[dict[str, Any]], look: Look = Look()) -> RenderableType:  # noqa: B008  frozen
    """One row a rung: time, rate, a bar on a square-root scale (so that 1 ms stays visible beside 1 s), loss."""
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="dim", pad_edge=False)
    wide = look.width >= 96
    table.add_column("rung", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("over", overflow="fold")
    longest = max((r["seconds"] for r in ladder if r.get("seconds")), default=1.0)
    for row in ladder:
        seconds, rate, loss = (
            row.get("seconds"),
            row.get("bandwidth_bytes_per_second"),
            row.get("loss_seconds"),
        )
        big = bool(row.get("largest_loss"))
        bar = (
            "█" * max(1, round((_BAR if wide else _NARROW_BAR) * (seconds / longest) ** 0.5))
            if seconds
            else ""
        )
        signed = f"{'+' if loss >= 0 else '-'}{format_seconds(abs(loss))}" if loss is not None else ""
        table.add_row(
            f"{row['rung']} {row['name']}",
            format_seconds(seconds) if seconds else row["status"],
            format_rate(rate) if rate else "",
            Text(bar, style="red" if big else "cyan"),
            Text(signed, style="bold red" if big else ""),
            Text(_how(row, look.verbose), style="dim"),
        )
    return table


def _how(row: dict[str, Any], verbose: bool) -> str:
    if not row.get("seconds"):
        return str(row.get("note") or "")
    parts = [str(row["transport"])] if row.get("transport") else []
    samples = row.get("samples") or []
    if verbose or not parts:
        parts += [str(row["note"])] if row.get("note") else []
    if samples:
        quartiles = row.get("quartiles_seconds")
        spread = (
            f", {format_seconds(quartiles[0])} to {format_seconds(quartiles[1])}"
            if quartiles and verbose
            else ""
        )
        parts.append(f"median of {len(samples)}{spread}")
    return "; ".join(parts)


def _largest(result: dict[str, Any]) -> tuple[RenderableType, ...]:
    top = result.get("largest_loss")
    if not top:
        return ()
    return (
        sentences(
            Text(
                f"largest loss: rung {top['rung']} over rung {top['below']}, {format_seconds(top['seconds'])} ({top['means']})"
            )
        ),
    )


def _pairs(pairs: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("pair", "rung 1", "rung 3", "rung 4", "transport"):
        table.add_column(name, justify="left" if name in ("pair", "transport") else "right", no_wrap=True)
    for pair in pairs:
        by_rung = {r["rung"]: r for r in pair["ladder"]}
        cells = [
            format_seconds(by_rung[n]["seconds"]) if by_rung.get(n, {}).get("seconds") else "not measured"
            for n in (1, 3, 4)
        ]
        table.add_row(pair["subject"], *cells, (pair.get("transport") or {}).get("label") or "unknown")
    return table


def _tax(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for name in ("prompt", "KV", "descriptors", "transfer", "tax p50", "tax p90"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("transfer from")
    for row in rows:
        table.add_row(
            f"{row['prompt_tokens']:,}",
            format_bytes(row["bytes"]),
            f"{row['descriptors']:,}",
            format_seconds(row["transfer_seconds"]),
            format_seconds(row["p50_seconds"]),
            format_seconds(row["p90_seconds"]),
            Text(f"{row['transfer_origin']}: {row['transfer_source']}", style="dim"),
        )
    return table


def _tax_notes(rows: list[dict[str, Any]]) -> tuple[RenderableType, ...]:
    row = rows[-1]
    terms = [t for t in row["terms"] if t["name"] != "transfer"]
    told = ", ".join(f"{t['name']} {format_seconds(t['seconds'])} ({t['origin']})" for t in terms)
    lines = [Text(f"beside the transfer, at {row['prompt_tokens']:,} tokens: {told}", style="dim")]
    if terms:
        lines.append(Text(f"assumed terms: {terms[0]['source']}", style="dim"))
    first = row.get("first_contact")
    if first:
        lines.append(
            Text(
                f"first request between two engines: {format_seconds(first['seconds'])} more ({first['origin']})",
                style="dim",
            )
        )
    return (sentences(*lines),)
