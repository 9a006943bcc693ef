"""The HTML report's charts of ``kvprobe compare``: both sides' latencies, their distributions, and a sweep by load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pygal

from kvprobe.figures import number, rows
from kvprobe.render.charts import _COMMON, _svg, _time_axis
from kvprobe.units import format_seconds

_SIDES = (("colocated", "colocated"), ("P/D", "pd"))
_LATENCIES = (
    ("TTFT median", "median_ttft_ms"), ("TTFT p99", "p99_ttft_ms"), ("ITL median", "median_itl_ms"),
    ("ITL p99", "p99_itl_ms"), ("TPOT mean", "mean_tpot_ms"),
)  # fmt: skip


def drawn(result: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Title, text and SVG of each chart; None where the figures are not there or must not be compared."""
    if not result.get("comparable"):
        return []
    if result.get("points"):
        left_out = "Loads at which a side cannot be compared are left out."
        return [
            ("ITL p99 by request rate", left_out, _by_load(result, "p99_itl_ms")),
            ("TTFT median by request rate", left_out, _by_load(result, "median_ttft_ms")),
            ("Goodput by request rate", "Requests a second that keep all targets.", _by_load(result, "goodput")),
        ]  # fmt: skip
    return [
        ("TTFT, both sides", "Time to first token: the price of P/D.", _bars(result, "ttft")),
        ("Token gaps, both sides", "What P/D is for: no prefill stops decoding.", _bars(result, "itl")),
        ("Distribution of TTFT", "Each percentile of the saved requests.", _curve(result, "ttft")),
        ("Distribution of token gaps", "Each percentile of the saved gaps, from the median up.", _curve(result, "itl")),
    ]  # fmt: skip


def _metric(part: Mapping[str, Any], key: str, side: str) -> float | None:
    metrics = part.get("metrics")
    told = metrics.get(key) if isinstance(metrics, dict) else None
    value = number(told.get(side)) if isinstance(told, dict) else None
    return None if value is None else value / 1e3


def _bars(result: Mapping[str, Any], metric: str) -> str | None:
    keys = [(words, key) for words, key in _LATENCIES if metric in key or (metric == "itl" and "tpot" in key)]
    shown = [
        (words, key)
        for words, key in keys
        if all(_metric(result, key, side) is not None for _, side in _SIDES)
    ]
    if not shown:
        return None
    chart = pygal.Bar(**{**_COMMON, "height": 300}, value_formatter=format_seconds)
    chart.x_labels = [words for words, _ in shown]
    values = [[_metric(result, key, side) for _, key in shown] for _, side in _SIDES]
    for (name, _), line in zip(_SIDES, values, strict=True):
        chart.add(name, line)
    _time_axis(chart, max(v for line in values for v in line if v is not None))
    return _svg(chart, f"compare-{metric}")


def _curve(result: Mapping[str, Any], metric: str) -> str | None:
    """Percentiles 0 to 100 (50 to 100 for gaps) over time."""
    series = result.get("series")
    lines = {}
    for name, side in _SIDES:
        told = series.get(side) if isinstance(series, dict) else None
        found = told.get(f"{metric}_ms_percentiles") if isinstance(told, dict) else None
        values = [number(v) for v in found] if isinstance(found, list) else []
        if len(values) == 101 and all(v is not None for v in values):
            lines[name] = [(p, (v or 0.0) / 1e3) for p, v in enumerate(values) if metric == "ttft" or p >= 50]
    if len(lines) < 2:
        return None
    chart = pygal.XY(
        **{**_COMMON, "height": 330, "show_dots": False, "margin_bottom": 30},
        x_title="percentile",
        value_formatter=format_seconds,
        x_value_formatter=lambda v: f"p{v:g}",
    )
    for name, line in lines.items():
        chart.add(name, line)
    _time_axis(chart, max(y for line in lines.values() for _, y in line))
    return _svg(chart, f"compare-{metric}-curve")


def _by_load(result: Mapping[str, Any], key: str) -> str | None:
    points = [
        (rate, p)
        for p in rows(result.get("points"))
        if p.get("comparable") and (rate := number(p.get("request_rate"))) is not None
    ]
    lines = {
        name: [(rate, value) for rate, p in points if (value := _at_load(p, key, side)) is not None]
        for name, side in _SIDES
    }
    if any(len(line) < 2 for line in lines.values()):
        return None
    good = key == "goodput"
    chart = pygal.XY(
        **{**_COMMON, "height": 330, "dots_size": 4, "margin_bottom": 30},
        x_title="requests per second",
        value_formatter=(lambda v: f"{v:.3g}/s") if good else format_seconds,
        x_value_formatter=lambda v: f"{v:g}",
    )
    chart.x_labels = [rate for rate, _ in points]
    for name, line in lines.items():
        chart.add(name, line)
    top = max(y for line in lines.values() for _, y in line)
    if good:
        # The rates themselves are the yardstick: at best every request is good.
        ticks = [0.0, *(rate for rate, _ in points)]
        chart.range = (0, max(top, ticks[-1]))
        chart.y_labels = [{"label": f"{tick:g}/s" if tick else "0", "value": tick} for tick in ticks]
    else:
        _time_axis(chart, top)
    return _svg(chart, f"compare-{key}")


def _at_load(point: Mapping[str, Any], key: str, side: str) -> float | None:
    if key != "goodput":
        return _metric(point, key, side)
    goodput = point.get("goodput")
    told = goodput.get(side) if isinstance(goodput, dict) else None
    return number(told.get("requests_per_second")) if isinstance(told, dict) else None
