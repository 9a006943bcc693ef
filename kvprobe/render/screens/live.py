"""The live screen: the tax by prompt length, the ladder's upper rungs, load, prediction against truth."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.render.screens.preflight import ladder_table
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_seconds

_UNKNOWN, _DASH = "not measured", "-"


def blocks(report: Report, look: Look) -> list[Block]:
    result, narrow = report.result, look.width < 100
    found = [Block("servers", tuple(_servers(result)))]
    if result.get("lengths"):
        title = f"TTFT, medians of pairs: P/D against {result.get('baseline')}"
        notes = sentences(*_notes(result, narrow=narrow))
        found.append(Block(title, (_lengths(result["lengths"], narrow=narrow), notes)))
    if result.get("ladder"):
        found.append(Block(_ladder_title(result), (ladder_table(result["ladder"], look),)))
    if rows := result.get("predictions"):
        asked = rows[0].get("asked")
        title = "prediction against truth" if asked else "this run's transfer plus the assumed terms"
        found.append(_block(title, _predictions(rows, asked=bool(asked))))
    if result.get("proxy"):
        found.append(_block("proxy", _proxy(result["proxy"])))
    if result.get("load"):
        roles = {s["role"] for s in result.get("servers") or []}
        title = "streams while long prompts arrive"
        if "colocated" not in roles:
            title += " (colocated: both servers, in turn)"
        found.append(_block(title, _load(result["load"])))
    if hops := (result.get("four_hops") or {}).get("medians"):
        found.append(_block("four hops: render, prefill, decode, derender (medians)", _hops(hops)))
    return found


def _block(title: str, table: Table) -> Block:
    """A table, and what its dash means where it has one."""
    unknown = any(cell == _DASH for column in table.columns for cell in column.cells)
    return Block(title, (table, *((Text(f"{_DASH}: {_UNKNOWN}", style="dim"),) if unknown else ())))


def _servers(result: dict[str, Any]) -> list[RenderableType]:
    lines = []
    for one in result.get("servers") or []:
        said = (
            one["failure"]["reason"]
            if one.get("failure")
            else f"vLLM {one.get('version') or 'version not told'}"
        )
        lines.append(Text(f"{one['role']:<10} {one['url']}  {said}"))
    return list(lines)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _lengths(rows: list[dict[str, Any]], *, narrow: bool) -> Table:
    names = ["tokens", "n", "colocated", "P/D", "tax", "95 % interval"]
    if not narrow:
        names += ["prefill", "decode", "transfer"]
    table = _table(*names)
    for row in rows:
        low, high = row["tax_interval"]["low"], row["tax_interval"]["high"]
        cells = [
            f"{row['prompt_tokens']:,}",
            str(row["pairs"]),
            _seconds(row["colocated_ttft"]["median"]),
            _seconds(row["pd_ttft"]["median"]),
            _seconds(row["tax"]["median"]),
            _range(low, high),
        ]
        if not narrow:
            cells += [
                _seconds(row["prefill_call"]["median"]),
                _seconds(row["decode_first"]["median"]),
                _seconds(row.get("transfer_seconds") or (row.get("transfer") or {}).get("xfer_seconds")),
            ]
        table.add_row(*cells)
    return table


def _notes(result: dict[str, Any], *, narrow: bool) -> list[Text]:
    cold = (result.get("first_contact") or {}).get("decode_first_seconds")
    lines = []
    if not narrow:
        lines.append(
            "prefill: its call; decode: its call to the first token; transfer: decode's counters"
            f" ({'median' if all(r.get('xfer') for r in result['lengths']) else 'mean'})"
        )
    lines += [
        f"first contact: {_UNKNOWN if cold is None else format_seconds(cold)} from decode call to first token (cold if this pair is fresh); not in the medians"
    ]
    moved = [(r["prompt_tokens"], r["transfer"]) for r in result["lengths"] if r.get("transfer")]
    for tokens, one in moved[-1:]:
        size = format_bytes(one["bytes"]) if one.get("bytes") else _UNKNOWN
        pieces = (
            f"{one['descriptors']:,.0f} descriptors" if one.get("descriptors") else "descriptors not told"
        )
        lines.append(f"a transfer of {tokens:,} tokens: {size}, {pieces} (mean of {one['transfers']})")
    if result.get("stopped"):
        lines.append(f"stopped early: {result['stopped']}")
    lines += [f"left out: {one}" for one in result.get("left_out") or []]
    return [Text(line, style="dim") for line in lines]


def _ladder_title(result: dict[str, Any]) -> str:
    size = next((r["bytes"] for r in result["ladder"] if r.get("bytes")), None)
    return f"ladder{f': {format_bytes(size)}' if size else ''}"


def _predictions(rows: list[dict[str, Any]], *, asked: bool) -> Table:
    transfer = ("transfer predicted", "measured") if asked else ("transfer",)
    table = _table("tokens", "predicted", "measured", "error", *transfer)
    for row in rows:
        ratio = row.get("error_ratio")
        table.add_row(
            f"{row['prompt_tokens']:,}",
            _seconds(row["predicted_seconds"]),
            _seconds(row["measured_seconds"]),
            f"{ratio * 100:+.1f} %" if ratio is not None else _DASH,
            *((_seconds(row.get("predicted_transfer_seconds")),) if asked else ()),
            _seconds(row.get("measured_transfer_seconds")),
        )
    return table


def _proxy(rows: list[dict[str, Any]]) -> Table:
    table = _table("tokens", "requests", "TTFT", "over direct", "95 % interval")
    for row in rows:
        interval = row["overhead_interval"]
        table.add_row(
            f"{row['prompt_tokens']:,}",
            str(row["ttft"]["samples"]),
            _seconds(row["ttft"]["median"]),
            _seconds(row["overhead"]["median"]),
            _range(interval["low"], interval["high"]),
        )
    return table


def _load(rows: list[dict[str, Any]]) -> Table:
    rows = sorted(rows, key=lambda row: (row["rate"], row["way"]))  # the ways ran in random order
    targets = any(row.get("good") is not None for row in rows)
    names = ("rate", "way", "ITL p50", "p99", "longest", "gaps", "TTFT p50", "done")
    table = _table(*names, *(("good",) if targets else ()))
    for row in rows:
        good = row.get("good")
        table.add_row(
            f"{row['rate']:g}/s",
            row["way"],
            _seconds(row["itl_p50"]),
            _seconds(row["itl_p99"]),
            _seconds(row["itl_max"]),
            f"{row['gaps']:,}",
            _seconds(row["ttft_p50"]),
            f"{row['finished']}/{row['arrived']}",
            *((_DASH if good is None else f"{good}/{row['arrived']}",) if targets else ()),
        )
    return table


def _hops(rows: list[dict[str, Any]]) -> Table:
    table = _table("tokens", "n", "render", "prefill", "first token", "decode", "derender", "TTFT", "total")
    for row in rows:
        tokens = row.get("prompt_tokens")
        hops = ("render", "prefill", "decode_first", "decode", "derender", "ttft", "total")
        first = f"{tokens:,.0f}" if tokens is not None else _DASH
        table.add_row(first, str(row["requests"]), *(_seconds(row.get(f"{hop}_seconds")) for hop in hops))
    return table


def _range(low: float, high: float) -> str:
    """``18.1 to 18.4 ms``: the unit once where it is the same."""
    first, last = format_seconds(low), format_seconds(high)
    number, unit = first.split()
    return f"{number} to {last}" if unit == last.split()[1] else f"{first} to {last}"


def _seconds(value: float | None) -> str:
    return _DASH if value is None else format_seconds(value)
