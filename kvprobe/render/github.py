"""``--format github``: workflow annotations, one a problem, and the verdict as a notice.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from kvprobe.finding import Finding, Status, VerdictStatus
from kvprobe.render import Look
from kvprobe.render.line import harmless, headline, problems
from kvprobe.render.words import describe_expected, describe_quantity
from kvprobe.report import Report

_LEVEL = {Status.FAIL: "error", Status.UNKNOWN: "error", Status.WARN: "warning"}
_VERDICT = {VerdictStatus.GO: "notice", VerdictStatus.NO_GO: "error", VerdictStatus.UNKNOWN: "error"}


def render(report: Report, look: Look) -> str:
    lines = [_command(_LEVEL[f.status], _title(f), _text(f)) for f in problems(report)]
    verdict = _command(_VERDICT[report.verdict.status], "kvprobe", headline(report))
    return "\n".join([*lines, verdict]) + "\n"


def _title(finding: Finding) -> str:
    return f"{finding.id} {finding.name}" + (" (unknown)" if finding.status is Status.UNKNOWN else "")


def _text(finding: Finding) -> str:
    lines = [finding.title]
    if finding.where:
        lines.append(f"where: {finding.where}")
    if finding.measured:
        lines.append(f"measured: {describe_quantity(finding.measured)}")
    if finding.expected:
        lines.append(f"expected: {describe_expected(finding.expected)}")
    if finding.remedy:
        lines.append(f"fix: {finding.remedy.text}")
        lines += finding.remedy.commands
    return "\n".join(lines)


def _command(level: str, title: str, text: str) -> str:
    escaped = _escape(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={escaped}::{_escape(text)}"


def _escape(text: str) -> str:
    return harmless(text).replace("%", "%25").replace("\n", "%0A")
