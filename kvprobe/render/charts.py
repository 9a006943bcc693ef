"""The HTML report's charts: inline SVG from pygal, coloured by the page's CSS variables, so that both themes fit.

Each takes a report's ``result`` and returns the SVG, or None where the figures are not there.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pygal
from pygal.style import Style

from kvprobe.figures import number, rows
from kvprobe.units import format_bytes, format_rate, format_seconds

# pygal's hook for plug-ins has no find_spec: on Python 3.11 every later import that fails would warn of it.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "PluginImportFixer"]

_MAX_POINTS = 400
_COLORS = (
    "var(--c1)",
    "var(--c2)",
    "var(--c3)",
    "var(--c4)",
    "var(--c5)",
    "var(--c6)",
    "var(--c7)",
    "var(--c8)",
)
_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--text)",
    foreground_strong="var(--text)",
    foreground_subtle="var(--muted)",
    guide_stroke_color="var(--line)",
    major_guide_stroke_color="var(--line)",
    colors=_COLORS,
    value_colors=("var(--text)",) * len(_COLORS),
    font_family="inherit",
    label_font_size=13,
    major_label_font_size=13,
    value_font_size=13,
    value_label_font_size=13,
    legend_font_size=13,
    title_font_size=14,
    opacity="1",
    stroke_opacity="1",
    stroke_width="2",
    transition="0s",
)
_COMMON: dict[str, Any] = {
    "style": _STYLE,
    "js": (),
    "disable_xml_declaration": True,
    "width": 440,
    "show_legend": True,
    "legend_at_bottom": True,
    "legend_box_size": 10,
    "margin": 6,
    "margin_right": 26,
    "legend_at_bottom_columns": 2,
    "no_data_text": "",
    "truncate_label": -1,
    "truncate_legend": -1,
}


def ladder(result: Mapping[str, Any]) -> str | None:
    """The waterfall: each bar begins where the rung below ends, its length is what the rung adds."""
    steps = [
        (r, s) for r in rows(result.get("ladder")) if (s := number(r.get("seconds"))) is not None and s > 0
    ]
    if len(steps) < 2:
        return None
    chart = pygal.HorizontalStackedBar(
        **{**_COMMON, "height": 70 + 40 * len(steps), "show_legend": False},
        value_formatter=format_seconds,
    )
    below = [0.0, *[s for _, s in steps]]
    hidden, added = [], []
    for index, (row, seconds) in enumerate(steps):
        start = min(below[index], seconds)
        worst = bool(row.get("largest_loss"))
        hidden.append({"value": start, "style": "fill: transparent; stroke: none"})
        added.append(
            {
                "value": seconds - start,
                "style": f"fill: {'var(--fail)' if worst else 'var(--c1)'}; stroke: none",
            }
        )
    chart.add("rung below", list(reversed(hidden)))
    chart.add("added", list(reversed(added)))
    chart.x_labels = [f"{_short(str(row.get('name')))} {format_seconds(s)}" for row, s in reversed(steps)]
    _time_axis(chart, max(s for _, s in steps))
    return _svg(chart, "ladder")


def tax(result: Mapping[str, Any], room_seconds: float | None) -> str | None:
    """TTFT tax over prompt length, p50 and p90, with the room that the TTFT objective leaves as a line."""
    found = [
        r for r in rows(result.get("tax")) if number(r.get("prompt_tokens")) and number(r.get("p50_seconds"))
    ]
    if len(found) < 2:
        return None
    chart = pygal.Line(
        **{**_COMMON, "height": 330, "dots_size": 4, "margin_bottom": 30},
        x_title="prompt tokens",
        value_formatter=format_seconds,
    )
    chart.x_labels = [f"{r['prompt_tokens']:,}" for r in found]
    chart.add("p50", [number(r.get("p50_seconds")) for r in found])
    chart.add("p90", [number(r.get("p90_seconds")) for r in found])
    transfers = [number(r.get("transfer_seconds")) for r in found]
    if any(v is not None for v in transfers):
        chart.add("transfer alone", transfers)
    top = max(
        v
        for r in found
        for v in (number(r.get("p90_seconds")), number(r.get("p50_seconds")))
        if v is not None
    )
    if room_seconds is not None:
        style = {"width": 2, "dasharray": "6,4"}
        chart.add(
            f"room in the objective {format_seconds(room_seconds)}",
            [room_seconds] * len(found),
            stroke_style=style,
            show_dots=False,
        )
        top = max(top, room_seconds)
    _time_axis(chart, top)
    return _svg(chart, "tax")


def descriptor_curve(result: Mapping[str, Any]) -> str | None:
    """Measured bandwidth over descriptor size, one line an order of blocks (or a way that tune tried), both axes logarithmic."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows(result.get("transfers")):
        size, count = (
            number(row.get("bytes")),
            number(row.get("nixl_descriptors")) or number(row.get("descriptors")),
        )
        seconds = number(row.get("median_seconds"))
        if size and count and seconds and min(size, count, seconds) > 0:
            name = f"{row.get('op', '')} {row.get('order', '')}".strip() or "transfer"
            lines.setdefault(name, []).append((size / count, size / seconds))
    for row in rows(result.get("descriptor_curve")):
        size, rate = number(row.get("descriptor_bytes")), number(row.get("bandwidth_bytes_per_second"))
        if size and rate and min(size, rate) > 0:
            lines.setdefault("curve", []).append((size, rate))
    for row in [*rows([result.get("baseline")]), *rows(result.get("candidates"))]:
        size, count, seconds = (number(row.get(key)) for key in ("bytes", "descriptors", "seconds"))
        if size and count and seconds and min(size, count, seconds) > 0:
            lines.setdefault(str(row.get("way")), []).append((size / count, size / seconds))
    lines = dict(sorted(lines.items(), key=lambda item: -len(item[1]))[: len(_COLORS)])
    points = [p for line in lines.values() for p in line]
    if len({round(x) for x, _ in points}) < 2:
        return None
    low, high = (f(math.log2(x) for x, _ in points) for f in (min, max))
    chart = pygal.XY(
        **{**_COMMON, **_legend(lines), "dots_size": 4},
        logarithmic=True,
        x_title="bytes of one descriptor",
        value_formatter=format_rate,
        x_value_formatter=lambda v: _round(format_bytes(round(2**v))),
        xrange=(math.floor(low), math.ceil(high)),
    )
    step = max(1, math.ceil((high - low) / 5))
    chart.x_labels = list(range(math.floor(low), math.ceil(high) + 1, step))
    rates = [y for _, y in points]
    decades = _decades(min(rates), max(rates))
    # pygal drops a tick that rounding puts a hair above the range.
    chart.range = (decades[0], decades[-1] * 1.001)
    chart.y_labels = [{"label": _round(format_rate(rate)), "value": rate} for rate in decades]
    for name, line in sorted(lines.items()):
        chart.add(name, [(math.log2(x), y) for x, y in sorted(line)], stroke=len({x for x, _ in line}) > 1)
    return _svg(chart, "curve")


def timeline(result: Mapping[str, Any]) -> str | None:
    """Transfer time of each interval of the logs in their order: average, p90 and post; of several engines the average."""
    streams: dict[str, list[dict[str, Any]]] = {}
    for row in rows(result.get("kv_transfer_intervals")):
        if number(row.get("avg_xfer_time_ms")) is not None:
            name = str(row.get("file") or "log").rpartition("/")[2]
            streams.setdefault(f"{name} engine {row.get('engine', 0)}", []).append(row)
    longest = max(streams.values(), key=len, default=[])
    if len(longest) < 2:
        return None
    # A long log is thinned evenly for the drawing; the JSON keeps every interval.
    step = math.ceil(len(longest) / _MAX_POINTS)
    shown = longest[::step]
    alone = len(streams) == 1
    names = [name for name, _ in _TIMES] if alone else list(streams)[: len(_COLORS)]
    chart = pygal.Line(
        **{**_COMMON, **_legend(names), "show_dots": len(shown) < 60},
        x_title=("line of the log" if alone else "interval")
        + (f", every {step}th interval" if step > 1 else ""),
        value_formatter=format_seconds,
        show_minor_x_labels=False,
    )
    chart.x_labels = [str(r.get("line", i + 1)) if alone else str(i * step + 1) for i, r in enumerate(shown)]
    chart.x_labels_major = chart.x_labels[:: max(1, len(shown) // 5)]
    values: list[float | None] = []
    if alone:
        for name, key in _TIMES:
            line = _milliseconds(shown, key)
            if any(v is not None for v in line):
                chart.add(name, line)
                values += line
    else:
        for name in names:
            line = _milliseconds(streams[name][::step], "avg_xfer_time_ms")
            chart.add(name, line)
            values += line
    _time_axis(chart, max(v for v in values if v is not None))
    return _svg(chart, "timeline")


_TIMES = (("average", "avg_xfer_time_ms"), ("p90", "p90_xfer_time_ms"), ("post, average", "avg_post_time_ms"))


def _milliseconds(found: list[dict[str, Any]], key: str) -> list[float | None]:
    """The printed milliseconds in seconds; None where the line does not have them."""
    return [None if (v := number(r.get(key))) is None else v / 1000 for r in found]


def _legend(names: Collection[str]) -> dict[str, int]:
    """Two columns of short names, one of long ones, and a chart that is higher by the rows."""
    columns = 2 if max(map(len, names), default=0) <= 18 else 1
    return {
        "legend_at_bottom_columns": columns,
        "height": 290 + 20 * math.ceil(len(names) / columns),
        "margin_bottom": 30,
    }


def _round(text: str) -> str:
    """``20 ms`` for ``20.0 ms``: a tick is exact, its zeros tell nothing."""
    return re.sub(r"\.0+(?= )", "", text)


def _short(name: str) -> str:
    """The longest rung name leaves a phone no room for its bar."""
    return name.replace("NIXL as vLLM stores it", "NIXL as stored").replace(" (TTFT tax)", "")[:20]


def _time_axis(chart: Any, top: float) -> None:
    """Ticks at round times, from 0: a cut axis would make a small tax look like a large one."""
    rough = (top or 1.0) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough)
    ticks = [step * i for i in range(math.ceil(top / step) + 1)]
    chart.range = (0, ticks[-1])
    chart.y_labels = [{"label": _round(format_seconds(t)) if t else "0", "value": t} for t in ticks]


def _decades(low: float, high: float) -> Sequence[float]:
    return [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _svg(chart: Any, name: str) -> str:
    # pygal names the chart at random; the same report must give the same page.
    chart.uuid = name
    text: str = chart.render(is_unicode=True)
    # Its configuration for tooltips, which need a script that this page does not have.
    return re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)
