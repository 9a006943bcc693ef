"""Prediction against truth: a preflight report's tax, or the model's with this run's own transfer."""

from __future__ import annotations

from kvprobe.errors import FormatError
from kvprobe.evidence import Origin
from kvprobe.flows.live_session import Session
from kvprobe.models.calibration import tolerance
from kvprobe.models.paired_facts import Prediction
from kvprobe.models.ttft import tax
from kvprobe.report import Report, decode
from kvprobe.system import System


def read_report(system: System, path: str) -> Report:
    """The preflight report of ``--report``. Raises FormatError when it is none, or holds no prediction."""
    report = decode(system.read_text(path).encode(), path)
    rows = report.result.get("tax")
    usable = isinstance(rows, list) and all(
        isinstance(r, dict)
        and isinstance(r.get("prompt_tokens"), int)
        and isinstance(r.get("p50_seconds"), int | float)
        for r in rows
    )
    if report.run.command != "preflight" or not usable or not rows:
        raise FormatError(
            f"{path} is a report of `kvprobe {report.run.command}` without a predicted TTFT tax.",
            "Write one on the same node: kvprobe preflight --model MODEL --format json --output FILE.",
        )
    return report


def planned_descriptors(report: Report | None) -> dict[int, float]:
    """Pieces of a scattered transfer by prompt length, as the report counted them."""
    rows = report.result["tax"] if report else []
    return {
        r["prompt_tokens"]: float(n)
        for r in rows
        if isinstance(n := r.get("descriptors"), int | float) and n > 0
    }


def predictions(session: Session, report: Report | None) -> tuple[Prediction, ...]:
    """One row a measured prompt length that was predicted."""
    rows = {r["prompt_tokens"]: r for r in (report.result["tax"] if report else [])}
    version = next((s.version for s in session.servers if s.role == "decode"), None)
    found = []
    for length in session.lengths:
        moved, seconds = length.transfer, length.transfer_seconds
        predicted_transfer = None
        if report is not None:
            row = rows.get(length.prompt_tokens)
            if row is None:
                continue
            predicted, predicted_transfer = float(row["p50_seconds"]), row.get("transfer_seconds")
            source = f"{report.run.command} report of {report.run.started_at or 'an unknown time'}"
        elif moved is not None and seconds is not None:
            estimate = tax(
                length.prompt_tokens,
                seconds,
                vllm_version=version,
                bytes=round(moved.bytes or 0),
                kv_buffer_device=session.request.kv_buffer_device,
                step_seconds=length.colocated_itl.median if length.colocated_itl else None,
                transfer_origin=Origin.READ,
                transfer_source="rung 5: the decode engine's counters",
            )
            predicted = estimate.p50_seconds
            source = f"this run's transfer, other terms {estimate.terms[-2].source}"
        else:
            continue
        found.append(
            Prediction(
                prompt_tokens=length.prompt_tokens,
                predicted_seconds=predicted,
                measured_seconds=length.tax.median,
                tolerance_seconds=tolerance(length.tax.median),
                predicted_transfer_seconds=predicted_transfer,
                measured_transfer_seconds=seconds,
                source=source,
                asked=report is not None,
                interval=length.tax_interval,
                planned_descriptors=planned_descriptors(report).get(length.prompt_tokens),
                seen_descriptors=moved.descriptors if moved else None,
            )
        )
    return tuple(found)
