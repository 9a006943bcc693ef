"""``--format nagios``: one line, performance data, and exit codes 0, 1, 2, 3 of its own.

https://www.monitoring-plugins.org/doc/guidelines.html
"""

from __future__ import annotations

from decimal import Decimal

from kvprobe.figures import Figure, figures, number
from kvprobe.finding import ExitCode, Finding, Status, VerdictStatus
from kvprobe.render import Look
from kvprobe.render.line import headline, one_line
from kvprobe.report import Report

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_UOM = {"s": "s", "B": "B", "B/s": "B"}
"""Nagios knows no rate; the label says that it is one."""


def render(report: Report, look: Look) -> str:
    # "UNKNOWN - UNKNOWN ..." says it twice.
    text = headline(report).replace("|", "/").removeprefix("UNKNOWN ")
    data = " ".join([*_checks(report), *map(_figure, figures(report.result))])
    line = f"KVPROBE {_WORDS[exit_code(report)]} - {text}"
    return f"{line} | {data}\n" if data else f"{line}\n"


def exit_code(report: Report) -> int:
    """GO 0, GO with warnings 1, NO-GO 2, UNKNOWN and usage errors 3 (1 if let through by hand)."""
    verdict = report.verdict
    if verdict.status is VerdictStatus.NO_GO:
        return CRITICAL
    if verdict.status is VerdictStatus.UNKNOWN:
        return WARNING if verdict.exit_code == ExitCode.GO else UNKNOWN
    warned = any(f.status is Status.WARN for f in report.findings)
    return WARNING if warned else OK


def _checks(report: Report) -> list[str]:
    """The figure of each finding, with the bound that it was held against."""
    seen: dict[str, str] = {}
    for finding in report.findings:
        measured = finding.measured
        value = number(measured.value) if measured else None
        if measured is None or value is None:
            continue
        label = _label(f"{finding.id}_{finding.name}")
        if label in seen:
            label = _label(f"{label}_{finding.where or len(seen)}")
        unit = _UOM.get(measured.unit, "")
        seen[label] = f"'{label}'={plain(value)}{unit};;{_bound(finding)};;"
    return list(seen.values())


def _bound(finding: Finding) -> str:
    """``10`` alerts above 10, ``10:`` below 10."""
    expected = finding.expected
    if expected is None or expected.unit not in ("", finding.measured.unit if finding.measured else ""):
        return ""
    low, high = number(expected.min), number(expected.max)
    if low is not None and high is not None:
        return f"{plain(low)}:{plain(high)}"
    if low is not None:
        return f"{plain(low)}:"
    return f"~:{plain(high)}" if high is not None else ""


def _figure(figure: Figure) -> str:
    label = _label("_".join([figure.name, *figure.labels.values()]))
    return f"'{label}'={plain(figure.value)}{_UOM.get(figure.unit, '')};;;;"


def _label(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_.-" else "_" for c in one_line(text))


def plain(value: float) -> str:
    """``value`` without an exponent or grouping, as perfdata wants it."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
