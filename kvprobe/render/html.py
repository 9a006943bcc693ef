"""``--format html``: one self-contained file for people who were not there: no network, no script, both themes."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvprobe.figures import number
from kvprobe.finding import Finding, Status
from kvprobe.render import Look
from kvprobe.render.limits import limits
from kvprobe.render.line import WORDS, one_line, problems
from kvprobe.render.words import CATEGORIES, describe_expected, describe_quantity
from kvprobe.report import Report

_WORD = {Status.PASS: "pass", Status.WARN: "warn", Status.FAIL: "fail", Status.UNKNOWN: "unknown", Status.SKIP: "skip"}  # fmt: skip


def render(report: Report, look: Look) -> str:
    environment = Environment(
        loader=PackageLoader("kvprobe.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"quantity": describe_quantity, "expected": describe_expected, "line": one_line}
    return environment.get_template("report.html.j2").render(
        report=report,
        verdict=WORDS[report.verdict.status],
        status=report.verdict.status.value,
        reasons=report.verdict.reasons,
        problems=problems(report),
        groups=_groups(report),
        word=_WORD,
        charts=_charts(report),
        limits=limits(report),
        versions=_versions(report),
        facts=_facts(report),
    )


def _groups(report: Report) -> list[tuple[str, list[Finding]]]:
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        found.setdefault(CATEGORIES.get(finding.id[3:4], "other"), []).append(finding)
    return list(found.items())


def _charts(report: Report) -> list[dict[str, Any]]:
    # pygal is imported here: a report without figures needs no charts.
    from kvprobe.render import charts, charts_compare

    result = report.result
    drawn = (
        ("The ladder", _ladder_text(report), charts.ladder(result)),
        ("What P/D adds to the first token", _tax_text(report), charts.tax(result, _objective(report))),
        (
            "Bandwidth over descriptor size",
            "Each point is a measured median. Few large descriptors use the link, many small ones pay for each.",
            charts.descriptor_curve(result),
        ),
        (
            "Transfers in the log",
            "Each point is one interval of the engine's own metrics line.",
            charts.timeline(result),
        ),
        *(charts_compare.drawn(result) if report.run.command == "compare" else ()),
    )
    return [{"title": t, "text": text, "svg": Markup(svg)} for t, text, svg in drawn if svg]


def _ladder_text(report: Report) -> str:
    top = report.result.get("largest_loss")
    told = "Each bar begins where the rung below it ends; the figure is the rung's whole time."
    if isinstance(top, dict) and top.get("means"):
        told += f" The largest loss is rung {top.get('rung')} ({top.get('means')})."
    return told


def _tax_text(report: Report) -> str:
    rows = report.result.get("tax") or []
    assumed = any(
        term.get("origin") == "assumed"
        for row in rows
        if isinstance(row, dict)
        for term in row.get("terms") or []
        if isinstance(term, dict)
    )
    note = " Terms that were not measured are assumed from a calibrated vLLM version." if assumed else ""
    return f"TTFT through P/D minus TTFT colocated, by prompt length.{note}"


def _objective(report: Report) -> float | None:
    """What the TTFT objective leaves for the tax: the objective minus the TTFT without P/D, where both are told."""
    for place in (report.result, report.subject):
        slo = number(place.get("ttft_slo_seconds")) or number(place.get("ttft_slo"))
        base = number(place.get("base_ttft_seconds")) or number(place.get("base_ttft"))
        if slo is not None and base is not None and slo > base:
            return slo - base
    return None


def _versions(report: Report) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for evidence in report.evidence:
        found |= evidence.versions
    return sorted(found.items())


def _facts(report: Report) -> list[tuple[str, str]]:
    run = report.run
    duration = None if run.duration_seconds is None else f"{run.duration_seconds:.1f} s"
    policy = report.policy
    rows = [
        ("model", report.subject.get("model")),
        ("subject", report.subject.get("headline")),
        ("host", run.host),
        ("started", (run.started_at or "").replace("T", " ").replace("+00:00", " UTC")),
        ("took", duration),
        ("policy", f"{policy.name} ({policy.source})" if policy else None),
        ("replayed from", run.replayed_from),
    ]
    return [(name, one_line(str(value))) for name, value in rows if value]
