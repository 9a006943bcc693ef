"""Nagios: one line, perfdata by the guidelines, codes of its own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.finding import Expected, Quantity, Status, Verdict, VerdictStatus
from kvprobe.render import Look
from kvprobe.render.nagios import exit_code, plain, render
from tests.reports import finding, report

PERFDATA = re.compile(r"'[A-Za-z0-9_.-]+'=-?[0-9]+(\.[0-9]+)?(s|B)?;[^;]*;((~|-?[0-9.]+)?:?-?[0-9.]*);;")


def test_the_line_leads_to_the_problem() -> None:
    line = render(report(finding()), Look())
    assert line.startswith("KVPROBE CRITICAL - NO-GO KVP203 NIXL READ of 8,192 tokens")
    assert line.count("\n") == 1 and line.count("|") == 1
    assert "'KVP203_nixl-read-scattered'=1.29s;;~:0.2;;" in line


def test_perfdata_has_the_form_of_the_guidelines() -> None:
    _, data = render(report(finding()), Look()).rstrip().split(" | ")
    words = data.split(" ")
    assert len(words) > 20
    assert [w for w in words if not PERFDATA.fullmatch(w)] == []
    labels = [w.split("=")[0] for w in words]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.PASS, 0), (Status.WARN, 1), (Status.FAIL, 2), (Status.UNKNOWN, 3), (Status.SKIP, 3)],
)
def test_codes(status: Status, code: int) -> None:
    assert exit_code(report(finding(status))) == code


def test_a_usage_error_is_unknown_and_a_let_through_unknown_a_warning() -> None:
    usage = Verdict(status=VerdictStatus.UNKNOWN, exit_code=2, reasons=("no such option",))
    assert exit_code(report(verdict=usage)) == 3
    assert exit_code(report(verdict=Verdict(status=VerdictStatus.UNKNOWN, exit_code=0))) == 1


def test_a_lower_bound_alerts_below() -> None:
    low = finding(
        measured=Quantity(value=0.4, unit="ratio"), expected=Expected(source="rung 1", min=0.5, unit="ratio")
    )
    assert "=0.4;;0.5:;;" in render(report(low), Look())


def test_a_pipe_in_the_text_does_not_start_perfdata() -> None:
    line = render(report(finding(title="a | b\nc", measured=None), result={}), Look())
    assert "|" not in line and "a / b c" in line


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70))
def test_no_exponent_ever(value: float) -> None:
    text = plain(value)
    assert re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text)
    assert float(text) == float(value)
