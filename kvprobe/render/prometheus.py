"""``--format prom``: gauges for node_exporter's textfile collector; what was not measured is absent.

https://github.com/prometheus/node_exporter#textfile-collector: no timestamps, the same HELP in every file.
Every series carries the command and the model, so that the files of two commands can lie side by side.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from kvprobe.evidence import AnyEvidence
from kvprobe.figures import figures, number
from kvprobe.finding import Finding, Status, VerdictStatus
from kvprobe.render import Look
from kvprobe.render.line import harmless
from kvprobe.report import Report

_STATE = {Status.PASS: 0, Status.WARN: 1, Status.FAIL: 2, Status.UNKNOWN: 3, Status.SKIP: 4}
_UNITS = {"s": "seconds", "B": "bytes", "B/s": "bytes_per_second", "ratio": "ratio", "tokens": "tokens", "descriptors": "descriptors"}  # fmt: skip
_VERSIONS = ("driver", "nixl", "ucx", "vllm")


def render(report: Report, look: Look) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report))
    text: str = generate_latest(registry).decode()
    return text


class _Collector:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.rows: dict[str, list[tuple[dict[str, str], float]]] = {}
        self.help: dict[str, str] = {}

    def collect(self) -> Iterable[Metric]:
        self._run()
        for finding in _worst_of_each(self.report.findings):
            self._check(finding)
        for figure in figures(self.report.result):
            self._add(figure.name, figure.help, figure.value, figure.labels)
        return [self._metric(name) for name in self.rows]

    def _run(self) -> None:
        report = self.report
        for status in VerdictStatus:
            here = float(report.verdict.status is status)
            self._add(
                "verdict",
                "1 for the verdict of the last run, 0 for the others.",
                here,
                {"verdict": status.value},
            )
        ended = _ended(report)
        if ended is not None:
            self._add("last_run_timestamp_seconds", "Unix time at which the last run finished.", ended)
        if report.run.duration_seconds is not None:
            self._add("last_run_duration_seconds", "How long the last run took.", report.run.duration_seconds)
        self._add("build_info", "Always 1; the labels carry versions.", 1.0, _build(report))

    def _check(self, finding: Finding) -> None:
        labels = {"check": finding.id, "name": finding.name, "where": _short(finding.where or "")}
        text = "State of one check in the last run (0 pass, 1 warn, 2 fail, 3 unknown, 4 skipped)."
        self._add("check_state", text, float(_STATE[finding.status]), labels)
        measured = finding.measured
        value = number(measured.value) if measured else None
        if measured and value is not None and measured.unit in _UNITS:
            unit = _UNITS[measured.unit]
            self._add(f"check_{unit}", f"What a check measured, in {unit.replace('_', ' ')}.", value, labels)

    def _add(self, name: str, text: str, value: float, labels: dict[str, str] | None = None) -> None:
        model = str(self.report.subject.get("model") or "")
        row = {"command": self.report.run.command, "model": _short(model), **(labels or {})}
        self.rows.setdefault(name, []).append((row, value))
        self.help[name] = text

    def _metric(self, name: str) -> Metric:
        # Rows of one family may lack a label (a rung without a pair); "" is Prometheus' word for absent.
        labels = list(dict.fromkeys(label for row, _ in self.rows[name] for label in row))
        metric = Metric(f"kvprobe_{name}", self.help[name], "gauge")
        for row, value in self.rows[name]:
            metric.add_sample(metric.name, {label: row.get(label, "") for label in labels}, value)
        return metric


def _worst_of_each(findings: Iterable[Finding]) -> list[Finding]:
    """One series a check and place: two findings with the same labels would spoil the whole file."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.id, _short(finding.where or ""))
        if key not in worst or finding.status.rank > worst[key].status.rank:
            worst[key] = finding
    return list(worst.values())


def _ended(report: Report) -> float | None:
    try:
        started = datetime.datetime.fromisoformat(report.run.started_at or "")
    except ValueError:
        return None
    if started.tzinfo is None:
        started = started.replace(tzinfo=datetime.UTC)
    return started.timestamp() + (report.run.duration_seconds or 0.0)


def _build(report: Report) -> dict[str, str]:
    found = {"version": report.tool.version, "schema": report.schema}
    evidence: AnyEvidence
    for evidence in report.evidence:
        for name in _VERSIONS:
            if name in evidence.versions:
                found.setdefault(name, _short(evidence.versions[name]))
    return found


def _short(text: str) -> str:
    return harmless(text)[:120]
