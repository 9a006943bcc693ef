"""``--format markdown``: a pull-request comment: verdict, problems with remedies, figures, and what it does not prove."""

from __future__ import annotations

from kvprobe.finding import Finding, Status
from kvprobe.render import Look
from kvprobe.render.limits import limits
from kvprobe.render.line import WORDS, one_line, problems, subject
from kvprobe.render.words import describe_expected, describe_quantity
from kvprobe.report import Report

_MARK = {Status.PASS: "✅", Status.WARN: "⚠️", Status.FAIL: "❌", Status.UNKNOWN: "❔", Status.SKIP: "➖"}


def render(report: Report, look: Look) -> str:
    parts = [f"### kvprobe: {WORDS[report.verdict.status]}", _subject(report)]
    if report.verdict.reasons:
        parts.append("\n".join(f"- {_text(reason)}" for reason in report.verdict.reasons))
    if report.findings:
        parts.append(_table(report))
    parts += [_problem(finding) for finding in problems(report)]
    told = limits(report)
    if told:
        parts.append("**What this run does not prove**\n\n" + "\n".join(f"- {_text(line)}" for line in told))
    parts.append(_origin(report))
    return "\n\n".join(part for part in parts if part) + "\n"


def _subject(report: Report) -> str:
    headline = report.subject.get("headline")
    return _text(f"{subject(report)} {headline}" if headline else subject(report))


def _table(report: Report) -> str:
    lines = ["| | check | result | measured | expected |", "|---|---|---|---|---|"]
    for finding in report.findings:
        measured = describe_quantity(finding.measured) if finding.measured else ""
        expected = describe_expected(finding.expected) if finding.expected else ""
        cells = [_text(cell) for cell in (finding.title, measured, expected)]
        # The word stands beside the mark: a screen reader and a plain-text mail need it.
        lines.append(
            f"| {_MARK[finding.status]} {finding.status.value} | {finding.id} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _problem(finding: Finding) -> str:
    head = f"**{finding.id} {_text(finding.name)}**: {_text(finding.title)}"
    lines = [f"- where: {_text(finding.where)}"] if finding.where else []
    lines += [f"- {_text(note)}" for note in finding.notes]
    if finding.remedy and finding.remedy.text:
        lines.append(f"- fix: {_text(finding.remedy.text)}")
    body = "\n".join(lines)
    if finding.remedy and finding.remedy.commands:
        body += "\n\n" + _fenced("\n".join(finding.remedy.commands))
    return f"{head}\n\n{body}".strip()


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}sh\n{text}\n{fence}"


def _origin(report: Report) -> str:
    run = report.run
    policy = f"policy {report.policy.name}" if report.policy else None
    parts = [f"kvprobe {report.tool.version}", policy, run.host, run.started_at]
    return f"<sub>{_text(', '.join(part for part in parts if part))}</sub>"


def _text(text: str) -> str:
    """One line of text that Markdown shows as it is."""
    text = one_line(text)
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "#", "~"):
        text = text.replace(mark, f"\\{mark}")
    # Only a mark that could start HTML or a mention is changed; the rest stays readable as plain text.
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
