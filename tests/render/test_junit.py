"""JUnit: valid against the named XSD, loadable, and mapped as CI systems count."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml, TestCase
from lxml import etree

from kvprobe.finding import Status
from kvprobe.render import Look
from kvprobe.render.junit import render
from tests.reports import finding, report

XSD = etree.XMLSchema(etree.parse(Path(__file__).with_name("junit-common.xsd")))


def cases(text: str) -> dict[str, TestCase]:
    return {case.name: case for suite in JUnitXml.fromstring(text.encode()) for case in suite}


@pytest.mark.parametrize("status", Status)
def test_every_status_validates_and_is_counted(status: Status) -> None:
    text = render(report(finding(status)), Look())
    XSD.assertValid(etree.fromstring(text.encode()))
    (suite,) = JUnitXml.fromstring(text.encode())
    case = cases(text)["KVP203 nixl-read-scattered GPU0>GPU1"]
    expected = {Status.FAIL: "Failure", Status.UNKNOWN: "Error", Status.SKIP: "Skipped"}.get(status)
    assert [type(r).__name__ for r in case.result] == ([expected] if expected else [])
    # Beside the finding, the verdict is a case of its own: NO-GO fails it, UNKNOWN is an error of it.
    assert suite.tests == 2
    assert suite.failures == (2 if status is Status.FAIL else 0)
    assert suite.errors == {Status.UNKNOWN: 2, Status.SKIP: 1}.get(status, 0)


def test_a_required_check_that_did_not_run_is_an_error_although_no_finding_is() -> None:
    text = render(report(finding(Status.PASS), required=("KVP204",)), Look())
    (suite,) = JUnitXml.fromstring(text.encode())
    assert (suite.tests, suite.failures, suite.errors) == (2, 0, 1)
    assert "KVP204 is required" in cases(text)["preflight"].result[0].message


def test_names_hold_no_figures_and_stay_unique() -> None:
    text = render(
        report(finding(title="1.29 s"), finding(title="1.30 s"), finding(where="GPU1>GPU0")), Look()
    )
    names = list(cases(text))
    assert len(names) == 4
    assert not any("1.29" in n or "1.30" in n for n in names)


def test_a_warning_passes_with_its_text() -> None:
    case = cases(render(report(finding(Status.WARN)), Look()))["KVP203 nixl-read-scattered GPU0>GPU1"]
    assert not case.result
    assert case.system_out.startswith("warning: NIXL READ")
    assert "$ unset UCX_TLS" in case.system_out


@given(text=st.text(max_size=80))
def test_whatever_a_tool_printed_stays_well_formed(text: str) -> None:
    document = report(finding(title=text, where=text, notes=(text,)))
    document = msgspec.structs.replace(document, run=msgspec.structs.replace(document.run, host=text or None))
    XSD.assertValid(etree.fromstring(render(document, Look()).encode()))


def test_a_run_without_time_claims_none() -> None:
    run = msgspec.structs.replace(report().run, started_at=None, duration_seconds=None)
    text = render(msgspec.structs.replace(report(finding()), run=run), Look())
    XSD.assertValid(etree.fromstring(text.encode()))
    assert "time=" not in text and "timestamp=" not in text
