"""The one line that node-problem-detector keeps, and the 4 KiB of a termination log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvprobe.finding import Status
from kvprobe.render import Look
from kvprobe.render.line import render, summary
from tests.reports import finding, report


@given(st.text(max_size=300))
def test_one_line_of_at_most_80_bytes_with_the_verdict_first(title: str) -> None:
    line = render(report(finding(title=title)), Look())
    assert line.startswith("NO-GO KVP203")
    assert line.endswith("\n") and line.count("\n") == 1
    assert len(line.rstrip("\n").encode()) <= 80
    assert "\x1b" not in line


def test_go_names_what_was_judged_and_a_warning_is_called_one() -> None:
    assert render(report(finding(Status.PASS)), Look()) == "GO preflight Qwen/Qwen2.5-7B-Instruct\n"
    assert render(report(finding(Status.WARN)), Look()).startswith("GO with a warning: KVP203")


def test_the_summary_has_the_fix_and_fits() -> None:
    text = summary(report(finding(), finding(Status.UNKNOWN, id="KVP204", title="not read")), 4096)
    assert text.splitlines()[0].startswith("NO-GO KVP203")
    assert "  fix: UCX emulates the read over tcp: allow cuda_ipc." in text
    assert "unknown KVP204 not read" in text
    many = summary(report(*[finding(title="ü" * 500) for _ in range(40)]), 4096)
    assert len(many.encode()) <= 4096
