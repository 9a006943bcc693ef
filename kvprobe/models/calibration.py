"""Fit the assumed terms of the TTFT tax to measured runs, and the file that carries them to ``preflight``.

The fit minimises the 24th power of the errors, each in units of what a prediction may miss (15 % of the tax,
at least 10 ms): close to the smallest worst error, which is what a prediction is judged by, but unique.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec

from kvprobe.errors import FormatError, UsageError
from kvprobe.evidence import Origin
from kvprobe.models.linear import solve
from kvprobe.models.ttft import BUILT_IN, Calibration, Constants, Staging, nearest, version_key

SCHEMA = "kvprobe.calibration/v1"
TOLERANCE_RATIO = 0.15
TOLERANCE_SECONDS = 0.010
_POWER = 24
_ROUNDS = 1000


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt length of one run: medians."""

    prompt_tokens: int
    transfer_seconds: float
    tax_seconds: float
    staged_bytes: int = 0
    """Bytes that went through a host buffer; 0 without one."""
    requests: int = 1

    @property
    def tolerance_seconds(self) -> float:
        return tolerance(self.tax_seconds)


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``kvprobe.calibration/v1``: the constants, and the samples they stand on."""

    schema: str = SCHEMA
    constants: tuple[Constants, ...]
    staging: Staging | None = None
    samples: tuple[Sample, ...] = ()
    created_at: str | None = None
    host: str | None = None
    worst_error_seconds: float | None = None
    worst_error_in_tolerances: float | None = None


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Constants with what they leave unexplained: ``errors`` are predicted minus measured, seconds."""

    constants: Constants
    staging: Staging | None
    errors: tuple[float, ...]
    hop_fixed: bool
    """Too few prompt lengths to tell the hop from the constant; the built-in hop was kept."""


def tolerance(tax_seconds: float) -> float:
    """What a prediction may miss: 15 % of the measured tax, or 10 ms where that is more."""
    return max(TOLERANCE_SECONDS, TOLERANCE_RATIO * abs(tax_seconds))


def fit_constants(
    samples: Sequence[Sample], *, vllm_version: str, step_seconds: float, source: str
) -> Fitted:
    """Scheduling, hop per token and (where a host buffer was used) staging from one version's samples.

    ``step_seconds`` is the measured decode step; it is taken out of the constant. Raises UsageError without a
    sample, for a version that is none, or if the measured tax leaves nothing for the terms.
    """
    if not samples:
        raise UsageError("There is no measured tax to calibrate on.")
    if version_key(vllm_version) is None:
        raise UsageError(f"{vllm_version!r} is not a vLLM version such as 0.30.0.")
    if not all(
        math.isfinite(v) for s in samples for v in (s.tax_seconds, s.transfer_seconds, float(s.staged_bytes))
    ):
        raise UsageError("A sample is not a finite number, so nothing can be fitted to it.")
    lengths = {s.prompt_tokens for s in samples}
    staged = any(s.staged_bytes for s in samples)
    scale = [s.tolerance_seconds for s in samples]
    hop = nearest(vllm_version, BUILT_IN).hop_seconds_per_token
    columns = [[1.0 for _ in samples]]
    fixed = len(lengths) < 2
    if not fixed:
        columns.append([s.prompt_tokens * 1e-6 for s in samples])
    if staged:
        columns.append([s.staged_bytes * 1e-9 for s in samples])
    target = [s.tax_seconds - s.transfer_seconds - (hop * s.prompt_tokens if fixed else 0) for s in samples]
    found = fit_terms([list(row) for row in zip(*columns, strict=True)], target, scale)
    if found[0] < step_seconds:
        raise UsageError(
            "The measured tax leaves no time beside the transfer and one decode step, so the terms cannot be "
            "calibrated on it. Check that the transfer figure belongs to the same run."
        )
    if not fixed:
        hop = found[1] * 1e-6
    each = found[-1] * 1e-9 if staged else 0.0
    constants = Constants(
        vllm_version=vllm_version,
        hop_seconds_per_token=hop,
        schedule_seconds=found[0] - step_seconds,
        step_seconds=step_seconds,
        source=source,
        origin=Origin.READ,
    )
    staging = None
    if staged:  # a paired tax cannot tell the two sides apart: half each, and the source says so
        staging = Staging(
            prefill_seconds_per_byte=each / 2,
            decode_seconds_per_byte=each / 2,
            source=f"{source}; both sides together, halved",
            origin=Origin.READ,
        )
    errors = tuple(
        round(
            _predict(s, constants, each) - s.tax_seconds, 9
        )  # below a nanosecond is arithmetic, not an error
        for s in samples
    )
    return Fitted(constants=constants, staging=staging, errors=errors, hop_fixed=fixed)


def _predict(sample: Sample, constants: Constants, seconds_per_byte: float) -> float:
    beside = constants.beside_transfer(sample.prompt_tokens)
    return sample.transfer_seconds + beside + seconds_per_byte * sample.staged_bytes


def fit_terms(
    rows: Sequence[Sequence[float]], target: Sequence[float], scale: Sequence[float]
) -> list[float]:
    """Non-negative coefficients of the columns that bring ``rows @ x`` near ``target``, errors in units of ``scale``.

    A column whose coefficient would be negative, or which the rows do not support, is left out (0).
    """
    scaled = [[value / s for value in row] for row, s in zip(rows, scale, strict=True)]
    wanted = [value / s for value, s in zip(target, scale, strict=True)]
    used = list(range(len(rows[0])))
    while used:
        found = _fit([[row[j] for j in used] for row in scaled], wanted)
        if found is None:
            used.pop()
        elif min(found) < 0:
            used.remove(used[found.index(min(found))])
        else:
            full = [0.0] * len(rows[0])
            for j, value in zip(used, found, strict=True):
                full[j] = value
            return full
    return [0.0] * len(rows[0])


def _fit(rows: list[list[float]], target: list[float]) -> list[float] | None:
    """Iteratively reweighted least squares for the 24th power, damped so that it converges."""
    found = _weighted(rows, target, [1.0] * len(rows))
    if found is None:
        return None
    for _ in range(_ROUNDS):
        errors = [abs(sum(a * b for a, b in zip(row, found, strict=True)) - t) for row, t in zip(rows, target, strict=True)]  # fmt: skip
        worst = max(errors)
        if worst < 1e-9:
            break
        better = _weighted(rows, target, [max(e / worst, 0.1) ** (_POWER - 2) for e in errors])
        if better is None:
            break
        found = [a + (b - a) / (_POWER - 1) for a, b in zip(found, better, strict=True)]
    return found


def _weighted(rows: list[list[float]], target: list[float], weights: list[float]) -> list[float] | None:
    n = len(rows[0])
    table = list(zip(rows, target, weights, strict=True))
    matrix = [[sum(w * r[i] * r[j] for r, _, w in table) for j in range(n)] + [sum(w * r[i] * t for r, t, w in table)] for i in range(n)]  # fmt: skip
    return solve(matrix, lambda row, pivot: pivot <= 1e-12 * max(1e-30, max(abs(v) for v in row)))


def warm_transfer_seconds(count: int, mean_seconds: float, p90_seconds: float) -> float:
    """The usual transfer of one "KV Transfer metrics" interval, which prints only mean and P90.

    The first transfer of a length is far slower than the rest and pulls the mean of a few up. With numpy's
    linear P90 and one slow transfer among ``count`` equal ones both follow from the two figures (exact for two);
    from six on the slow one weighs little, and the mean is taken.
    """
    if count < 2 or count > 5:
        return mean_seconds
    part = 0.9 * (count - 1) - (count - 2)
    usual = (part * count * mean_seconds - p90_seconds) / (part * count - 1)
    return usual if 0 < usual <= mean_seconds else mean_seconds


def encode_calibration(file: CalibrationFile) -> bytes:
    """The file as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def parse_calibration(text: str, source: str) -> tuple[CalibrationFile, Calibration]:
    """Read a calibration file; the constants' source then names it. Raises FormatError."""
    try:
        file = msgspec.json.decode(text.encode(), type=CalibrationFile)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FormatError(
            f"{source} is not a {SCHEMA} file: {error}.", "Write one with `kvprobe calibrate`."
        ) from error
    if file.schema != SCHEMA:
        raise FormatError(f"{source} has schema {json.dumps(file.schema)[:60]}; this kvprobe reads {SCHEMA}.")
    figures = [
        v for c in file.constants for v in (c.hop_seconds_per_token, c.schedule_seconds, c.step_seconds)
    ]
    if file.staging is not None:
        figures += [file.staging.prefill_seconds_per_byte, file.staging.decode_seconds_per_byte]
    if not file.constants or any(not math.isfinite(v) or v < 0 for v in figures):
        raise FormatError(f"{source} holds no constants, or one that is negative or not finite.")
    if bad := next((c.vllm_version for c in file.constants if version_key(c.vllm_version) is None), None):
        raise FormatError(f"{source}: {bad[:60]!r} is not a vLLM version such as 0.30.0.")
    named = tuple(msgspec.structs.replace(c, source=f"{source}: {c.source}", origin=Origin.READ) for c in file.constants)  # fmt: skip
    staging = file.staging
    if staging is not None:
        staging = msgspec.structs.replace(staging, source=f"{source}: {staging.source}", origin=Origin.READ)
    return file, Calibration(constants=named, staging=staging)
