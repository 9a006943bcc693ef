"""``kvprobe.report/v1``: one document per run, the only input of every renderer."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe import __version__
from kvprobe.errors import FormatError
from kvprobe.evidence import AnyEvidence
from kvprobe.finding import Finding, Verdict

SCHEMA = "kvprobe.report/v1"


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "kvprobe"
    version: str = __version__


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """When, where and how; ``replayed_from`` names the recording of a replayed run."""

    command: str
    argv: tuple[str, ...] = ()
    id: str | None = None
    started_at: str | None = None
    """UTC, ISO 8601. A replayed run keeps the time of the recording."""
    duration_seconds: float | None = None
    host: str | None = None
    replayed_from: str | None = None
    interrupted: bool = False


class PolicyUsed(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    fail_on: str = "fail"
    required: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run found out. Base units; ``null`` is not measured; additive only within v1."""

    schema: str = SCHEMA
    tool: Tool = Tool()
    run: Run
    subject: dict[str, Any] = {}
    """What was judged: ``model``, ``kv_cache_dtype``, ``prefill``, ``decode`` ..."""
    policy: PolicyUsed | None = None
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    evidence: tuple[AnyEvidence, ...] = ()
    result: dict[str, Any] = {}
    """The command's own answer; its keys are documented per command."""
    error: dict[str, Any] | None = None
    """``{"reason", "remedy"}`` when the run ended early."""


def encode(report: Report) -> bytes:
    """The report as indented JSON with a final newline; key order is the order of the schema."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(data: bytes, source: str = "report") -> Report:
    """Read a stored report. Raises FormatError if it is not a ``kvprobe.report/v1`` document."""
    try:
        report = msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{source} is not a {SCHEMA} document: {error}.") from error
    if report.schema != SCHEMA:
        raise FormatError(f"{source} has schema {report.schema!r}; this kvprobe reads {SCHEMA}.")
    return report


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``kvprobe.report/v1``."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}
