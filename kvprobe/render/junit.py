"""``--format junit``: NO-GO is a failure, UNKNOWN an error, SKIP skipped, WARN a pass with output.

Figures stay out of the names: GitLab and Jenkins key a test's history by classname and name.
"""

from __future__ import annotations

import datetime

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from kvprobe.finding import Finding, Status, VerdictStatus
from kvprobe.render import Look
from kvprobe.render.line import WORDS, subject
from kvprobe.render.words import CATEGORIES, describe_expected, describe_quantity
from kvprobe.report import Report


def render(report: Report, look: Look) -> str:
    suite = TestSuite(_clean(subject(report)))
    if started := _timestamp(report.run.started_at):
        suite.timestamp = started
    suite.hostname = _clean(report.run.host or "unknown")
    for name, value in _properties(report):
        suite.add_property(name, _clean(value))
    names: dict[tuple[str, str], int] = {}
    cases = [_verdict(report)]
    for finding in report.findings:
        case = _case(finding)
        key = (case.classname, case.name)
        names[key] = names.get(key, 0) + 1
        if names[key] > 1:
            case.name += f" #{names[key]}"
        cases.append(case)
    suite.add_testcases(cases)
    document = JUnitXml("kvprobe")
    document.add_testsuite(suite)
    document.update_statistics()
    if report.run.duration_seconds is None:
        for element in (document, suite):
            del element._elem.attrib["time"]
    else:
        document.time = suite.time = round(report.run.duration_seconds, 3)
    text = document.tostring()
    body = text.decode() if isinstance(text, bytes) else text
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _properties(report: Report) -> list[tuple[str, str]]:
    policy = report.policy
    found = [
        ("schema", report.schema),
        ("version", report.tool.version),
        ("verdict", report.verdict.status.value),
        ("policy", f"{policy.name} ({policy.source})" if policy else "none"),
    ]
    if report.run.replayed_from:
        found.append(("replayed_from", report.run.replayed_from))
    return found


def _verdict(report: Report) -> TestCase:
    """The verdict as a case of its own: a required check that did not run has no finding to carry it."""
    case = _named("kvprobe.verdict", report.run.command)
    text = "\n".join(report.verdict.reasons)
    message = f"{WORDS[report.verdict.status]} {report.verdict.reasons[0] if report.verdict.reasons else ''}".strip()
    if report.verdict.status is VerdictStatus.NO_GO:
        case.result = [_result(Failure, message, "no_go", text)]
    elif report.verdict.status is VerdictStatus.UNKNOWN:
        case.result = [_result(Error, message, "unknown", text)]
    return case


def _case(finding: Finding) -> TestCase:
    where = f" {finding.where}" if finding.where else ""
    category = CATEGORIES.get(finding.id[3:4], "other")
    case = _named(f"kvprobe.{category}", f"{finding.id} {finding.name}{where}")
    details = _details(finding)
    if finding.status is Status.FAIL:
        case.result = [_result(Failure, finding.title, "no_go", details)]
    elif finding.status is Status.UNKNOWN:
        case.result = [_result(Error, finding.title, "unknown", details)]
    elif finding.status is Status.SKIP:
        case.result = [_result(Skipped, finding.title, "skip", details)]
    else:
        prefix = "warning: " if finding.status is Status.WARN else ""
        case.system_out = _clean(f"{prefix}{finding.title}\n{details}")
    return case


def _named(classname: str, name: str) -> TestCase:
    # Without a time: what a single check took is not known, and 0 would be a made-up figure.
    return TestCase(_clean(name), classname=classname)


def _result(
    kind: type[Failure | Error | Skipped], message: str, label: str, text: str
) -> Failure | Error | Skipped:
    result = kind(_clean(message) or "no text was given", label)
    result.text = _clean(text) or None
    return result


def _details(finding: Finding) -> str:
    rows = []
    if finding.measured:
        rows.append(f"measured: {describe_quantity(finding.measured)}")
    if finding.expected:
        rows.append(f"expected: {describe_expected(finding.expected)}")
    rows += finding.notes
    if finding.remedy:
        rows.append(f"fix: {finding.remedy.text}")
        rows += [f"$ {command}" for command in finding.remedy.commands]
    rows += finding.links
    return "\n".join(rows)


def _timestamp(text: str | None) -> str | None:
    """``text`` if it is a time; a stored report may hold anything."""
    try:
        datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return text


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 forbids; the output of GPU tools has them."""
    return "".join(
        c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )
