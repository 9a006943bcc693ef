"""What P/D adds to the time to first token: transfer, staging copies, second hop, scheduling, one decode step.

The transfer is the caller's (rung 4, or a log). The rest is a function of the prompt length with three constants
per vLLM version: seconds a token of the second HTTP call, scheduling and polling, one decode step. Host staging
(``kv_buffer_device=cpu``) copies every byte once more on each side. Without a calibration of the deployment
itself the constants are assumed: those fitted to recorded runs of vLLM 0.26.0 and 0.30.0 (samples/ttft), which
``scripts/bench.d/ttft`` holds against the recordings again. Where the time goes in vLLM: the scheduler parks the
request until its worker has polled the transfer as done, then one step computes the last prompt token again
(vllm/distributed/kv_transfer/kv_connector/v1/nixl, vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import Origin

HOST_BUFFER = "cpu"
P90_RATIO = 1.35
"""p90 over p50 of decode-to-first-token, pooled over the 79 warm recorded requests of samples/ttft."""
FIRST_CONTACT_SECONDS = 0.20
"""First request between two engines: handshake and UCX wire-up (recorded: 0.16 to 0.25 s above a warm one)."""
_VERSION = re.compile(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?")


class Constants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one vLLM version adds beside the transfer."""

    vllm_version: str
    hop_seconds_per_token: float
    """Second HTTP call: the token ids are sent, parsed and scheduled once more."""
    schedule_seconds: float
    """Admission, posting the read and polling until the scheduler may run the request."""
    step_seconds: float
    """The forward step that computes the last prompt token again."""
    source: str
    origin: Origin = Origin.ASSUMED

    def beside_transfer(self, prompt_tokens: int) -> float:
        """All three terms, seconds."""
        return self.hop_seconds_per_token * prompt_tokens + self.schedule_seconds + self.step_seconds


class Staging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies through host memory, seconds a byte: device to host on prefill, host to device on decode."""

    prefill_seconds_per_byte: float
    decode_seconds_per_byte: float
    source: str
    origin: Origin = Origin.ASSUMED


_RECORDED = "2x H200, Qwen2.5-7B shape, recorded in samples/ttft"
BUILT_IN = (
    Constants(
        vllm_version="0.26.0",
        hop_seconds_per_token=0.55e-6,
        schedule_seconds=24.3e-3,
        step_seconds=4.85e-3,
        source=f"fitted to vLLM 0.26.0 ({_RECORDED})",
    ),
    Constants(
        vllm_version="0.30.0",
        hop_seconds_per_token=0.55e-6,
        schedule_seconds=47.75e-3,
        step_seconds=4.75e-3,
        source=f"fitted to vLLM 0.30.0 ({_RECORDED})",
    ),
)
BUILT_IN_STAGING = Staging(
    prefill_seconds_per_byte=0.19e-9,
    decode_seconds_per_byte=0.26e-9,
    source=f"fitted to vLLM 0.26.0 with kv_buffer_device=cpu ({_RECORDED}); pageable copies there ran at 4.7 GB/s",
)


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants to use instead of the built-in ones; read from a file by :mod:`kvprobe.models.calibration`."""

    constants: tuple[Constants, ...]
    staging: Staging | None = None


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One addend of the tax."""

    name: str
    seconds: float
    origin: Origin
    source: str


class TaxEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted TTFT through P/D minus TTFT colocated, of one prompt length, for a warm pair."""

    prompt_tokens: int
    p50_seconds: float
    p90_seconds: float
    terms: tuple[Term, ...]
    """Add up to ``p50_seconds``."""
    first_contact: Term
    """On top for the first request between two engines; not part of the percentiles."""
    vllm_version: str | None
    """The version that was asked for; None: unknown."""
    calibrated_on: str
    """The version whose constants were used."""

    @property
    def exact_version(self) -> bool:
        return self.vllm_version is not None and version_key(self.vllm_version) == version_key(
            self.calibrated_on
        )


def tax(
    prompt_tokens: int,
    transfer_seconds: float,
    *,
    vllm_version: str | None,
    bytes: int,
    kv_buffer_device: str = "cuda",
    calibration: Calibration | None = None,
    step_seconds: float | None = None,
    transfer_origin: Origin = Origin.MEASURED,
    transfer_source: str = "rung 4: NIXL as vLLM stores it",
    transfer_p90_seconds: float | None = None,
) -> TaxEstimate:
    """The TTFT tax of a prompt whose KV (``bytes``, one rank) needs ``transfer_seconds`` to move.

    ``step_seconds``: a measured decode step (median ITL) of this model, if there is one. The version's constants
    come from the calibration, else from the nearest built-in version, and the terms say which. Raises UsageError
    for a negative or non-finite input.
    """
    for name, value in (
        ("prompt_tokens", prompt_tokens),
        ("transfer_seconds", transfer_seconds),
        ("bytes", bytes),
    ):
        if not 0 <= value < float("inf"):
            raise UsageError(
                f"{name} is {value}; a tax can only be predicted from a finite, non-negative value."
            )
    used = nearest(vllm_version, calibration.constants if calibration and calibration.constants else BUILT_IN)
    source = _source(used, vllm_version)
    terms = [Term(name="transfer", seconds=transfer_seconds, origin=transfer_origin, source=transfer_source)]
    if kv_buffer_device == HOST_BUFFER:
        staging = (calibration.staging if calibration else None) or BUILT_IN_STAGING
        for side, each in (
            ("prefill", staging.prefill_seconds_per_byte),
            ("decode", staging.decode_seconds_per_byte),
        ):
            name = f"host staging on {side}"
            terms.append(Term(name=name, seconds=each * bytes, origin=staging.origin, source=staging.source))
    terms += [
        Term(
            name="second HTTP hop",
            seconds=used.hop_seconds_per_token * prompt_tokens,
            origin=used.origin,
            source=source,
        ),
        Term(name="scheduling and polling", seconds=used.schedule_seconds, origin=used.origin, source=source),
        _step(used, step_seconds, source),
    ]
    p50 = sum(t.seconds for t in terms)
    rest = p50 - transfer_seconds
    slow = transfer_p90_seconds if transfer_p90_seconds is not None else transfer_seconds * P90_RATIO
    return TaxEstimate(
        prompt_tokens=prompt_tokens,
        p50_seconds=p50,
        p90_seconds=max(p50, rest * P90_RATIO + slow),
        terms=tuple(terms),
        first_contact=Term(
            name="first contact",
            seconds=FIRST_CONTACT_SECONDS,
            origin=Origin.ASSUMED,
            source=f"handshake and UCX wire-up ({_RECORDED}: 160 to 250 ms)",
        ),
        vllm_version=vllm_version,
        calibrated_on=used.vllm_version,
    )


def nearest(vllm_version: str | None, known: Sequence[Constants] = BUILT_IN) -> Constants:
    """The constants of that version, else of the nearest one (the older of two); of the newest if unknown."""
    wanted = version_key(vllm_version or "")
    newest_first = sorted(known, key=lambda c: version_key(c.vllm_version) or (), reverse=True)
    if wanted is None:
        return newest_first[0]
    return min(reversed(newest_first), key=lambda c: _distance(wanted, version_key(c.vllm_version)))


def version_key(text: str) -> tuple[int, int, int] | None:
    """``0.30.0`` -> (0, 30, 0), suffixes ignored; None if it is no version."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _distance(a: tuple[int, int, int], b: tuple[int, int, int] | None) -> tuple[int, int, int]:
    if b is None:
        return (10**9, 0, 0)
    return abs(a[0] - b[0]), abs(a[1] - b[1]), abs(a[2] - b[2])


def _source(used: Constants, vllm_version: str | None) -> str:
    if vllm_version is None:
        return f"{used.source}; the running version is not known"
    if version_key(vllm_version) != version_key(used.vllm_version):
        return f"{used.source}; used for {vllm_version} as the nearest calibrated version"
    return used.source


def _step(used: Constants, measured: float | None, source: str) -> Term:
    if measured is None:
        return Term(name="decode step", seconds=used.step_seconds, origin=used.origin, source=source)
    return Term(
        name="decode step", seconds=measured, origin=Origin.MEASURED, source="median inter-token latency"
    )
