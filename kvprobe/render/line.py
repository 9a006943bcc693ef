"""``--format line``: one line of at most 80 bytes, verdict first (node-problem-detector keeps no more)."""

from __future__ import annotations

from kvprobe.finding import Finding, Status, VerdictStatus
from kvprobe.render import Look
from kvprobe.report import Report

LIMIT_BYTES = 80
WORDS = {VerdictStatus.GO: "GO", VerdictStatus.NO_GO: "NO-GO", VerdictStatus.UNKNOWN: "UNKNOWN"}


def render(report: Report, look: Look) -> str:
    return clipped(headline(report), LIMIT_BYTES) + "\n"


def headline(report: Report) -> str:
    """Verdict, then the worst problem, or what was judged: the text leads directly to the problem."""
    word = WORDS[report.verdict.status]
    if not report.verdict.reasons:
        return f"{word} {subject(report)}"
    reason = one_line(report.verdict.reasons[0])
    return (
        f"{word} with a warning: {reason}"
        if report.verdict.status is VerdictStatus.GO
        else f"{word} {reason}"
    )


def subject(report: Report) -> str:
    """The command and the model it judged."""
    return one_line(" ".join(str(part) for part in (report.run.command, report.subject.get("model")) if part))


def problems(report: Report) -> list[Finding]:
    """What is not in order, worst first."""
    found = [f for f in report.findings if f.status in (Status.FAIL, Status.UNKNOWN, Status.WARN)]
    return sorted(found, key=lambda f: -f.status.rank)


def summary(report: Report, limit_bytes: int) -> str:
    """The headline and every problem with its remedy, within ``limit_bytes`` of UTF-8."""
    lines = [headline(report)]
    for finding in problems(report):
        lines.append(f"{finding.status.value} {finding.id} {one_line(finding.title)}")
        if finding.remedy and finding.remedy.text:
            lines.append(f"  fix: {one_line(finding.remedy.text)}")
    return clipped("\n".join(lines), limit_bytes - 1) + "\n"


def harmless(text: str) -> str:
    """Control characters become spaces, line breaks stay: file names and log lines come from others."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(text: str) -> str:
    """Control characters and line breaks become single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def clipped(text: str, limit_bytes: int) -> str:
    """``text`` cut to ``limit_bytes`` of UTF-8 with an ellipsis, never inside a character."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode("utf-8", "ignore").rstrip() + "..."
