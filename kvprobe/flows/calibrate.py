"""``kvprobe calibrate``: the assumed terms of the TTFT tax, fitted to live runs and kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvprobe.errors import FormatError, UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Status
from kvprobe.flows import Door, Draft
from kvprobe.models.calibration import (
    CalibrationFile,
    Fitted,
    Sample,
    encode_calibration,
    fit_constants,
)
from kvprobe.models.statistics import median
from kvprobe.models.ttft import HOST_BUFFER
from kvprobe.report import Report, decode
from kvprobe.rules.base import run_rules
from kvprobe.rules.calibration import RULES, CalibrationFacts
from kvprobe.system import System, write_atomically

_MUST_HOLD = ("KVP683", "KVP685", "KVP687", "KVP688")
"""A run in which one of these failed did not measure P/D."""


class CalibrateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``kvprobe calibrate``."""

    reports: tuple[str, ...] = ()
    save: str | None = None
    vllm_version: str | None = None


class _Median(msgspec.Struct, frozen=True):
    median: float


class _Moved(msgspec.Struct, frozen=True):
    xfer_seconds: float
    bytes: float | None = None


class _Row(msgspec.Struct, frozen=True):
    prompt_tokens: int
    pairs: int
    tax: _Median
    transfer: _Moved | None = None
    colocated_itl: _Median | None = None
    xfer: _Median | None = None


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    vllm_version: str
    samples: tuple[Sample, ...]
    steps: tuple[float, ...]
    at: str | None


def calibrate(door: Door, params: dict[str, Any]) -> Draft:
    """Fit one set of constants a vLLM version. Raises UsageError or FormatError for reports that hold no base."""
    request = msgspec.convert(params, CalibrateRequest, strict=False)
    if not request.reports:
        raise UsageError(
            "calibrate needs the JSON reports of live runs.",
            "Write one: kvprobe live --prefill URL --decode URL --format json --output live.json",
        )
    runs = [_read(door.system, path, request.vllm_version) for path in request.reports]
    versions = sorted({r.vllm_version for r in runs})
    fits: list[tuple[Fitted, tuple[Sample, ...]]] = []
    for version in versions:
        mine = [r for r in runs if r.vllm_version == version]
        samples = tuple(s for r in mine for s in r.samples)
        requests = sum(s.requests for s in samples)
        when = max((r.at for r in mine if r.at), default=None)
        source = f"fitted to {requests} live pairs, vLLM {version}{f', {when[:10]}' if when else ''}"
        steps = [s for r in mine for s in r.steps]
        if not steps:
            raise FormatError(
                f"{mine[0].path} holds no inter-token latency, so the decode step is not known.",
                "Run live again with --output-tokens 16.",
            )
        fits.append(
            (
                fit_constants(samples, vllm_version=version, step_seconds=median(steps), source=source),
                samples,
            )
        )
    facts = CalibrationFacts(fits=tuple(f for f, _ in fits), samples=tuple(s for _, s in fits))
    file = CalibrationFile(
        constants=tuple(f.constants for f, _ in fits),
        staging=next((f.staging for f, _ in fits if f.staging), None),
        samples=tuple(s for _, samples in fits for s in samples),
        created_at=door.system.now().isoformat(timespec="seconds"),
        host=door.system.hostname(),
        worst_error_seconds=facts.worst_error_seconds,
        worst_error_in_tolerances=facts.worst_in_tolerances,
    )
    if request.save and door.system.replayed_from is None:
        write_atomically(Path(request.save), encode_calibration(file))
    return Draft(
        subject={"headline": f"vLLM {', '.join(versions)}"},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=(
            Evidence(
                id="live-reports",
                kind="live_reports",
                origin=Origin.READ,
                source=", ".join(request.reports),
                facts=tuple(r.samples for r in runs),
            ),
        ),
        result={
            "saved": request.save,
            "constants": msgspec.to_builtins([f.constants for f, _ in fits]),
            "staging": msgspec.to_builtins(file.staging),
            "samples": [
                {
                    **msgspec.to_builtins(sample),
                    "vllm_version": fitted.constants.vllm_version,
                    "predicted_seconds": sample.tax_seconds + error,
                    "error_seconds": error,
                }
                for fitted, samples in fits
                for sample, error in zip(samples, fitted.errors, strict=True)
            ],
        },
    )


def _read(system: System, path: str, version: str | None) -> _Run:
    report = decode(system.read_text(path).encode(), path)
    if report.run.command != "live":
        raise FormatError(
            f"{path} is a report of `kvprobe {report.run.command}`; calibrate reads those of `kvprobe live`."
        )
    if bad := [f for f in report.findings if f.id in _MUST_HOLD and f.status is Status.FAIL]:
        raise FormatError(f"{path} is no base for a calibration: {bad[0].id} {bad[0].title}.")
    try:
        rows = msgspec.convert(report.result.get("lengths"), tuple[_Row, ...])
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: result.lengths is not what `kvprobe live` writes: {error}.") from error
    usable = [row for row in rows if row.transfer is not None and row.pairs > 0]
    if not usable:
        raise FormatError(
            f"{path} holds no prompt length with both a measured tax and the engine's transfer.",
            "Decode's /metrics must be reachable for kvprobe live.",
        )
    return _Run(
        path=path,
        vllm_version=_version(report, version, path),
        samples=tuple(_sample(row, report) for row in usable),
        steps=tuple(row.colocated_itl.median for row in usable if row.colocated_itl is not None),
        at=report.run.started_at,
    )


def _version(report: Report, given: str | None, path: str) -> str:
    found = given or report.result.get("vllm_version")
    if not isinstance(found, str) or not found:
        raise UsageError(f"{path} does not tell the vLLM version.", "Name it with --vllm-version.")
    return found


def _sample(row: _Row, report: Report) -> Sample:
    assert row.transfer is not None
    staged = report.result.get("kv_buffer_device") == HOST_BUFFER
    return Sample(
        prompt_tokens=row.prompt_tokens,
        # Both medians where the run has them: a slow first transfer pulls a mean of few away from a median tax.
        transfer_seconds=row.xfer.median if row.xfer else row.transfer.xfer_seconds,
        tax_seconds=row.tax.median,
        staged_bytes=round(row.transfer.bytes or 0) if staged else 0,
        requests=row.pairs,
    )
