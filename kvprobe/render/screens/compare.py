"""The table of ``kvprobe compare``: both sides next to each other, bars for what decides, a line a load for sweeps."""

from __future__ import annotations

from typing import Any

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block
from kvprobe.report import Report
from kvprobe.units import format_seconds, signed_seconds, significant

_ROWS = (
    ("TTFT median", "median_ttft_ms"), ("TTFT p99", "p99_ttft_ms"), ("TPOT mean", "mean_tpot_ms"),
    ("ITL median", "median_itl_ms"), ("ITL p99", "p99_itl_ms"), ("requests/s", "request_throughput"),
    ("output tokens/s", "output_throughput"),
)  # fmt: skip
_BARS = (("TTFT median", "median_ttft_ms"), ("ITL p99", "p99_itl_ms"))
_WORDS = {
    "pd_better": "P/D gains", "pd_worse": "P/D loses", "mixed": "mixed", "no_difference": "no difference",
    "not_comparable": "not comparable", "no_verdict": "no verdict", "invalid_run": "invalid run",
    "suspect_prefix_cache": "prefix cache?", "pd_not_active": "P/D not active", "itl_unusable": "ITL unusable",
}  # fmt: skip


def blocks(report: Report, look: Look) -> list[Block]:
    found = []
    for part in report.result.get("comparisons") or [report.result]:
        title = f" ({part['pd_source']})" if part.get("pd_source") else ""
        if part.get("points"):
            found.append(Block(title=f"Load by load{title}", body=(_sweep(part["points"], look),)))
            bars = _sweep_bars(part["points"], look)
            if bars is not None:
                found.append(Block(title=f"ITL p99 by load{title}", body=(bars,)))
            continue
        if not any(p["colocated"] is not None or p["pd"] is not None for p in part["metrics"].values()):
            continue
        found.append(Block(title=_title(part) + title, body=_pair(part, look)))
    return found


def _title(part: dict[str, Any]) -> str:
    words = _WORDS.get(part["verdict"], str(part["verdict"]))
    return f"Side by side: {words}" if part["comparable"] else f"Figures only: {words}"


def _pair(part: dict[str, Any], look: Look) -> tuple[RenderableType, ...]:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in range(4):
        table.add_column(justify="right")
    interval = part["comparable"] and any("delta_interval" in m for m in part["metrics"].values())
    heads = [
        "",
        "colocated",
        "P/D",
        "difference" if part["comparable"] else "",
        "95 % interval" if interval else "",
    ]
    table.add_row(*(Text(h, style="dim") for h in heads))
    for words, key in _ROWS:
        told = part["metrics"].get(key)
        if told is None or (told["colocated"] is None and told["pd"] is None):
            continue
        table.add_row(
            words,
            _figure(told["colocated"], key),
            _figure(told["pd"], key),
            _difference(told) if part["comparable"] else "",
            _interval(told) if interval else "",
        )
    goodput = {side: part["goodput"].get(side) for side in ("colocated", "pd")}
    if any(goodput.values()):
        table.add_row("good requests/s", *(_good(goodput[side]) for side in ("colocated", "pd")), "", "")
    body: list[RenderableType] = [table]
    if part["comparable"]:
        bars = _bars(part["metrics"], look)
        if bars is not None:
            body += [Text(), bars]
    return tuple(body)


def _figure(value: float | None, key: str) -> str:
    if value is None:
        return "no data"
    return format_seconds(value / 1e3) if key.endswith("_ms") else significant(value)


def _good(told: dict[str, Any] | None) -> str:
    if told is None:
        return "not known"
    return f"{significant(told['requests_per_second'])} ({told['share'] * 100:.0f} %)"


def _difference(told: dict[str, Any]) -> str:
    ratio = told["ratio_pd_over_colocated"]
    if ratio is None:
        return ""
    return f"{ratio:.2g} times" if ratio >= 2 else f"{(ratio - 1) * 100:+.2g} %"


def _interval(told: dict[str, Any]) -> str:
    found = told.get("delta_interval")
    if not found:
        return ""
    return f"{signed_seconds(found['low'] / 1e3)} to {signed_seconds(found['high'] / 1e3)}"


def _bars(metrics: dict[str, Any], look: Look) -> Table | None:
    grid = Table.grid(padding=(0, 1))
    drawn = False
    for words, key in _BARS:
        told = metrics.get(key)
        if not told or told["colocated"] is None or told["pd"] is None:
            continue
        longest = max(told["colocated"], told["pd"])
        _bar(grid, words, "colocated", told["colocated"], longest, look)
        _bar(grid, "", "P/D", told["pd"], longest, look)
        drawn = True
    return grid if drawn else None


def _bar(grid: Table, words: str, side: str, value: float, longest: float, look: Look) -> None:
    width = max(10, min(50, look.width - 38))
    style = "blue" if side == "colocated" else "magenta"
    bar = Bar(size=longest, begin=0, end=value, width=width, color=style)
    grid.add_row(words, Text(side, style="dim"), bar, format_seconds(value / 1e3))


def _sweep(points: list[dict[str, Any]], look: Look) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in range(6 if look.width >= 100 else 4):
        table.add_column(justify="right")
    table.add_column()
    wide = look.width >= 100
    heads = ["load", "TTFT coloc.", "TTFT P/D", "ITL p99 coloc.", "ITL p99 P/D"]
    heads += ["good coloc.", "good P/D"] if wide else []
    table.add_row(*(Text(h, style="dim") for h in [*heads, ""]))
    for point in points:
        cells = [_load(point)]
        for key in ("median_ttft_ms", "p99_itl_ms"):
            told = point["metrics"].get(key) or {"colocated": None, "pd": None}
            cells += [_figure(told["colocated"], key), _figure(told["pd"], key)]
        if wide:
            cells += [_share(point["goodput"].get(side)) for side in ("colocated", "pd")]
        words = _WORDS.get(point["verdict"], "")
        if not point["comparable"] and point["blocking"]:
            words = point["blocking"][0].replace("_", " ")
        table.add_row(*cells, words)
    return table


def _share(told: dict[str, Any] | None) -> str:
    return "-" if told is None else f"{told['share'] * 100:.0f} %"


def _load(point: dict[str, Any]) -> str:
    rate = point["request_rate"]
    text = "all at once" if rate == "inf" else "-" if rate is None else f"{rate:g}/s"
    return f"{text}, {point['max_concurrency']:g} in flight" if point.get("max_concurrency") else text


def _sweep_bars(points: list[dict[str, Any]], look: Look) -> Table | None:
    usable = [
        p
        for p in points
        if p["comparable"] and p["metrics"].get("p99_itl_ms", {}).get("ratio_pd_over_colocated")
    ]
    if len(usable) < 2:
        return None
    longest = max(max(p["metrics"]["p99_itl_ms"][s] for s in ("colocated", "pd")) for p in usable)
    grid = Table.grid(padding=(0, 1))
    for point in usable:
        told = point["metrics"]["p99_itl_ms"]
        _bar(grid, _load(point), "colocated", told["colocated"], longest, look)
        _bar(grid, "", "P/D", told["pd"], longest, look)
    return grid
