"""``kvprobe logs``: engine logs, or ``/metrics``, read right and judged."""

from __future__ import annotations

from typing import Any

from kvprobe.errors import UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.formats.log_scan import Needles
from kvprobe.models.log_facts import LogFacts
from kvprobe.models.log_meaning import assessment, compare_with_fit, meaning
from kvprobe.models.log_reader import LogReader
from kvprobe.models.log_result import requests_of, result_of
from kvprobe.probes.decode_log import Follow, LogRead
from kvprobe.probes.log_signatures import load_signatures
from kvprobe.report import decode
from kvprobe.rules.base import run_rules
from kvprobe.rules.logs import RULES
from kvprobe.units import format_seconds

_COMPARED_BYTES = 64 * 1024 * 1024


def logs(door: Door, params: dict[str, Any]) -> Draft:
    """Read what was asked for. Raises UsageError, ProbeError or FormatError."""
    files, urls = list(params["files"]), list(params["metrics_url"])
    if files and urls:
        raise UsageError("Give log files or --metrics-url, not both.")
    if urls:
        from kvprobe.flows.logs_metrics import read_metrics

        return read_metrics(
            door, urls, params["interval"], stored_result(door, params["report"]), params["report"]
        )
    if not files:
        raise UsageError("Nothing to read.", "Give a log file, - for stdin, or --metrics-url.")
    if len(files) > 1 and (params["follow"] or "-" in files):
        raise UsageError("--follow and - take one log at a time.")
    fit = stored_result(door, params["report"])
    signatures = () if params["metrics_only"] else load_signatures(door.system, params["signatures"])
    reader = LogReader(signatures, keep_intervals=params["keep"])
    follow = Follow(grow=params["follow"], seconds=params["for_"], silence_seconds=params["silence"])
    reads = []
    for number, path in enumerate(files, 1):
        door.progress.step(f"reading {path}", index=number, total=len(files))
        needles = Needles(reader.literals)
        read = LogRead(door.system, path, needles, follow, door.progress.detail)
        reads.append(read)
        try:
            _read(door, reader, read, needles, live=params["follow"])
        except KeyboardInterrupt:
            # What was read so far is still worth a report; the exit code says that it is not all.
            door.system.interrupted = True
            read.note = "interrupted"
            break
    reader.conclude()
    return _draft(door, reader, reads, fit, params)


def _read(door: Door, reader: LogReader, read: LogRead, needles: Needles, *, live: bool) -> None:
    name = "stdin" if read.path == "-" else read.path
    known: set[str] = set()
    for hit in read.hits():
        before = reader.interval_count
        if reader.take(name, hit) and reader.stats_needle is not None:
            needles.drop(reader.stats_needle)
        if live:
            for code in [c for c in reader.doctor.seen if c not in known]:
                known.add(code)
                found = reader.doctor.seen[code]
                door.progress.warn(f"{found.first or ''} {found.signature.title} ({code})".strip())
            if reader.interval_count > before:
                i = reader.intervals()[-1]
                mean = (
                    ""
                    if i.avg_xfer_time_ms is None or not i.measured
                    else f", {format_seconds(i.avg_xfer_time_ms / 1e3)} each"
                )
                failed = f", {i.failures} failed" if i.failures else ""
                door.progress.warn(f"{i.timestamp or f'line {i.line}'}  {_count(i.num_successful_transfers)}{mean}{failed}")  # fmt: skip


def _count(transfers: int) -> str:
    return f"{transfers:,} transfer{'' if transfers == 1 else 's'}"


def stored_result(door: Door, path: str | None) -> dict[str, Any]:
    """``result`` of a stored report; empty without a path. Raises ProbeError or FormatError."""
    if path is None:
        return {}
    return decode(door.system.read_text(path, limit_bytes=_COMPARED_BYTES).encode(), path).result


def _draft(
    door: Door, reader: LogReader, reads: list[LogRead], fit: dict[str, Any], params: dict[str, Any]
) -> Draft:
    total, warm = reader.total(), reader.warm()
    failures, notes = reader.doctor.failures(), reader.doctor.notes()
    engines = [{**e.result(), **requests_of(e, reader)} for e in reader.engines.values()]
    concurrent = [e["implied_concurrency"] for e in engines if e["implied_concurrency"] is not None]
    facts = LogFacts(
        origin="log",
        sources=tuple(r.path for r in reads),
        total=total,
        warm=warm,
        meaning=meaning(warm),
        concurrency=max(concurrent) if concurrent else None,
        failures=tuple(failures),
        notes=tuple(notes),
        outliers=tuple(
            {"file": e["file"], **e["first_interval"]}
            for e in engines
            if (e["first_interval"] or {}).get("outlier")
        ),
        others=tuple(reader.others),
        damaged=reader.damaged_count,
        silent_zeros=reader.silent_zeros,
        read_notes=tuple(f"{r.path}: {r.note}" for r in reads if r.note),
        doctor=reader.with_doctor,
        roles=tuple(sorted({s.role for s in reader.streams.values() if s.role})),
        comparison=compare_with_fit(warm, fit, params["operation"]),
        report=params["report"],
    )
    key = (
        "engine_transfer_seconds"
        if "engine_transfer_seconds" in door.policy.thresholds
        else "transfer_8k_seconds"
    )
    slow = door.policy.thresholds.get(key)
    said = assessment(total, warm, failures, slow.fail_above if slow else None)
    result = result_of(reader, facts, engines, failures, notes, said)
    result["files"] = [{"name": r.path, "lines": r.lines, "bytes": r.bytes, "note": r.note} for r in reads]
    evidence = Evidence(
        id="log",
        kind="engine_log",
        origin=Origin.PARSED,
        source=", ".join(facts.sources),
        facts=total.result(),
        versions={"vllm": v}
        if (v := next((s.version for s in reader.streams.values() if s.version), None))
        else {},
    )
    return Draft(
        subject={"headline": ", ".join(facts.sources[:3]) + (" ..." if len(facts.sources) > 3 else "")},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=(evidence,),
        result=result,
    )
