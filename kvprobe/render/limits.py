"""What a run does not prove: said in every document that people hand on."""

from __future__ import annotations

from kvprobe.evidence import Origin
from kvprobe.figures import rows
from kvprobe.finding import Status
from kvprobe.policy import waiver_note
from kvprobe.report import Report


def limits(report: Report) -> list[str]:
    """One sentence each, from what is in the report and what is missing there."""
    found = []
    run, command = report.run, report.run.command
    if run.replayed_from:
        found.append(
            f"It was replayed from {run.replayed_from}: it tells of the recorded machine, not of this one."
        )
    if run.interrupted:
        found.append("The run was interrupted; what had not been measured by then is missing.")
    if report.error:
        found.append(f"The run ended early: {report.error.get('reason', 'no reason was given')}")
    unknown = [f.id for f in report.findings if f.status is Status.UNKNOWN]
    if unknown:
        found.append(f"Not measured: {', '.join(dict.fromkeys(unknown))}.")
    skipped = [f.id for f in report.findings if f.status is Status.SKIP]
    if skipped:
        found.append(f"Skipped: {', '.join(dict.fromkeys(skipped))}.")
    notes = [(finding.id, waiver_note(finding)) for finding in report.findings]
    found += [f"{id_} was {waived}." for id_, waived in notes if waived]
    assumed = [e for e in report.evidence if e.origin is Origin.ASSUMED]
    if assumed:
        found.append(f"Assumed, not measured: {', '.join(e.source for e in assumed)}.")
    terms = _assumed_terms(report)
    if terms:
        found.append(f"Assumed terms of the TTFT tax: {', '.join(terms)}.")
    if report.result.get("memory") == "dram":
        found.append("It measured host memory: the path between GPUs is another one.")
    if command in ("preflight", "transfer", "tune"):
        found.append(
            "It measured an idle pair: contention with serving traffic and with other pairs is not in it."
        )
        found.append("It holds for this pair, this NIXL and UCX, this model and these prompt lengths.")
    elif command == "topo":
        found.append(
            "A permitted path is not a used path: only a transfer shows the transport that UCX takes."
        )
    elif command in ("lint", "template", "kvsize", "estimate"):
        found.append("No byte was moved: it is read and computed, not measured.")
    elif command in ("logs", "live", "compare"):
        found.append("It holds for the traffic of that time, not for another load.")
    return found


def _assumed_terms(report: Report) -> list[str]:
    """Names of the tax terms that no measurement stands behind."""
    names: dict[str, None] = {}
    for row in rows(report.result.get("tax")):
        for term in rows(row.get("terms")):
            if term.get("origin") == Origin.ASSUMED.value:
                names[str(term.get("name"))] = None
    return list(names)
