"""The HTML page: self-contained, escaped, the same for the same report, charts only where there are figures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lxml import html as lxml_html

from kvprobe.finding import Status
from kvprobe.render import Look, charts
from kvprobe.render.html import render
from tests.reports import finding, report, result


def page(*findings: Any, **changes: Any) -> str:
    return render(report(*findings, **changes), Look())


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page(finding())
    assert "<script" not in text
    assert not re.search(
        r'(?:src|href)\s*=\s*"(?!#)', text.replace("xmlns:xlink", "").replace('xlink:href="#', "")
    )
    assert not re.search(r"url\(|@import", text)
    # The only addresses are the names of the SVG namespaces.
    assert set(re.findall(r"https?://[^\"' <]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://pygal.org"} | {
        u for u in re.findall(r"https?://[^\"' <]+", text) if "pygal" in u or "kozea" in u.lower()
    }  # fmt: skip


def test_hostile_text_is_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    text = page(finding(title=evil, where=evil, notes=(evil,)), subject={"model": evil})
    assert evil not in text and "&lt;img src=x" in text


def test_the_same_report_gives_the_same_page() -> None:
    assert page(finding()) == page(finding())


def test_the_page_tells_verdict_findings_remedies_environment_and_limits() -> None:
    tree = lxml_html.fromstring(page(finding(), finding(Status.PASS, id="KVP201")))
    assert tree.xpath("string(//div[@class='word'])") == "NO-GO"
    assert tree.xpath("//pre/text()") == ["unset UCX_TLS"]
    titles = [t.text_content() for t in tree.xpath("//h2")]
    assert titles == [
        "The ladder",
        "What P/D adds to the first token",
        "Bandwidth over descriptor size",
        "Findings",
        "What this run does not prove",
        "Environment",
    ]
    assert "580.159.04" in tree.text_content()
    assert "width=device-width" in tree.xpath("string(//meta[@name='viewport']/@content)")


def test_both_themes_are_in_the_page() -> None:
    assert "prefers-color-scheme: dark" in page(finding())


@pytest.mark.parametrize(
    "broken", [{}, {"ladder": None}, {"ladder": [{}], "tax": "x", "transfers": [{"seconds": [None]}]}]
)
def test_no_figures_no_charts(broken: dict[str, Any]) -> None:
    text = page(finding(), result=broken)
    assert "<svg" not in text and "KVP203" in text


def test_the_ladder_marks_the_largest_loss_and_leaves_out_what_was_not_measured() -> None:
    svg = charts.ladder(result())
    assert svg is not None
    assert svg.count("var(--fail); stroke: none") >= 1
    assert "UCX" not in svg and "NIXL as stored 50.5 ms" in svg


def test_the_objective_is_a_line_of_its_own() -> None:
    without, with_line = charts.tax(result(), None), charts.tax(result(), 0.3)
    assert without is not None and with_line is not None
    assert "room in the objective 300 ms" in with_line and "objective" not in without


def test_a_long_log_is_thinned_and_says_so() -> None:
    rows = [{"line": i, "avg_xfer_time_ms": 50.0 + i % 7} for i in range(5000)]
    svg = charts.timeline({"kv_transfer_intervals": rows})
    assert svg is not None and "every 13th interval" in svg and len(svg) < 300_000


def test_the_objective_leaves_room_only_when_the_base_is_told() -> None:
    told = {**result(), "ttft_slo_seconds": 0.5, "base_ttft_seconds": 0.2}
    assert "room in the objective 300 ms" in page(finding(), result=told)
    assert "room in the objective" not in page(finding(), result={**result(), "ttft_slo_seconds": 0.5})


def test_logs_of_several_engines_are_lines_of_their_own() -> None:
    rows = [
        {"line": i, "file": f"/logs/{name}.log", "engine": 0, "avg_xfer_time_ms": 50.0 + i}
        for name in "ab"
        for i in range(5)
    ]
    svg = charts.timeline({"kv_transfer_intervals": rows})
    assert svg is not None and "a.log engine 0" in svg and "b.log engine 0" in svg


def test_what_tune_measured_is_a_curve_over_descriptor_size() -> None:
    tried = [
        {"way": "READ as now", "bytes": 2**29, "descriptors": 2**29 // size, "seconds": 2**29 / size * 3.5e-6}
        for size in (2**15, 2**17, 2**19)
    ]
    svg = charts.descriptor_curve({"baseline": tried[0], "candidates": tried[1:]})
    assert svg is not None and "READ as now" in svg and svg.count("<circle") == 3
