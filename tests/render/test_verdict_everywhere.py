"""One report, one verdict, whatever the format."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from prometheus_client.parser import text_string_to_metric_families

from kvprobe.finding import Finding, Quantity, Status, judge
from kvprobe.render import RENDERERS, Look, renderer
from kvprobe.render.nagios import exit_code as nagios_code
from kvprobe.report import Report, decode
from tests.reports import finding, report

LOOK = Look(color=False)
TEXT = st.text(max_size=60)
FINDINGS = st.lists(
    st.builds(
        finding,
        status=st.sampled_from(list(Status)),
        id=st.sampled_from([f"KVP{n}" for n in (101, 203, 204, 301, 402, 501, 910)]),
        title=TEXT,
        where=st.none() | TEXT,
        notes=st.lists(TEXT, max_size=2).map(tuple),
        measured=st.none()
        | st.builds(
            Quantity,
            value=st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
            unit=st.sampled_from(["s", "B", "B/s", "ratio", "", "times"]),
        ),
    ),
    max_size=6,
)  # fmt: skip


def told(text: str, form: str) -> str:
    """The verdict that a document of this format tells."""
    words = {"GO": "go", "NO-GO": "no_go", "UNKNOWN": "unknown"}
    if form == "json":
        return str(json.loads(text)["verdict"]["status"])
    if form == "junit":
        suite = next(iter(JUnitXml.fromstring(text.encode())))
        return next(p.value for p in suite.properties() if p.name == "verdict")
    if form == "prom":
        family = next(f for f in text_string_to_metric_families(text) if f.name == "kvprobe_verdict")
        (on,) = [s.labels["verdict"] for s in family.samples if s.value == 1]
        return on
    if form == "nagios":
        return {"OK": "go", "WARNING": "go", "CRITICAL": "no_go", "UNKNOWN": "unknown"}[text.split()[1]]
    if form == "line":
        return words[text.split()[0]]
    if form == "github":
        return words[text.splitlines()[-1].split("::")[2].split()[0]]
    if form == "markdown":
        return words[text.splitlines()[0].split()[-1]]
    if form == "html":
        found = re.search(r'<div class="word">(.*?)</div>', text)
        assert found
        return words[found[1]]
    assert form == "table"
    return words[text.rstrip().splitlines()[-1].split()[0]]


@given(
    findings=FINDINGS, required=st.sampled_from([(), ("KVP203",)]), fail_on=st.sampled_from(["fail", "warn"])
)
def test_all_formats_tell_the_same_verdict(
    findings: list[Finding], required: tuple[str, ...], fail_on: str
) -> None:
    verdict = judge(findings, required=required, fail_on=fail_on)
    document = report(*findings, verdict=verdict)
    for form in RENDERERS:
        text = renderer(form)(document, LOOK)
        assert told(text, form) == verdict.status.value, form
    assert {0: "go", 1: "go", 2: "no_go", 3: "unknown"}[nagios_code(document)] == verdict.status.value


def test_a_stored_report_reads_back_as_itself() -> None:
    document = report(finding())
    again = decode(renderer("json")(document, LOOK).encode())
    assert again.verdict == document.verdict and again.findings == document.findings


def test_nothing_follows_the_verdict_in_the_table() -> None:
    text = renderer("table")(report(finding(Status.PASS)), LOOK)
    assert text.splitlines()[-1].startswith("GO  1 passed")


def test_every_format_survives_a_report_without_anything() -> None:
    empty = Report(run=report().run, verdict=judge(()))
    for form in RENDERERS:
        assert told(renderer(form)(empty, LOOK), form) == "unknown", form
