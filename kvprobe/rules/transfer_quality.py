"""KVP206 to KVP210: how far the transfer figures can be trusted, and what they compare with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.statistics import median
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.units import format_seconds


def idle(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP206: the GPUs were idle, so the figures are the link's and not another job's."""
    if facts.busy:
        yield Finding(
            id="KVP206",
            name="gpu-idle",
            status=Status.UNKNOWN,
            title=f"the GPUs are busy: {'; '.join(facts.busy)}",
            remedy=Remedy(
                text="Measure on idle GPUs; a busy one makes every figure a lower bound.",
                commands=("nvidia-smi",),
            ),
            evidence=facts.evidence,
        )


def direction(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP207: READ (pull) is not far slower than WRITE (push) on the same pair."""
    if facts.transfer is None:
        return
    read, write = (facts.transfer.find(op, "shuffled", facts.judged_tokens) for op in ("READ", "WRITE"))
    if not read or not write or not read.median_seconds or not write.median_seconds:
        return
    ratio = read.median_seconds / write.median_seconds
    limit = policy.threshold("read_over_write")
    slow = limit.status(ratio) is not Status.PASS
    yield Finding(
        id="KVP207",
        name="read-against-write",
        status=Status.WARN if slow else Status.PASS,
        title=f"READ takes {ratio:.2g} times WRITE ({format_seconds(read.median_seconds)} against {format_seconds(write.median_seconds)})",
        measured=Quantity(
            value=ratio,
            unit="times",
            statistic="ratio of medians",
            samples=min(len(read.seconds), len(write.seconds)),
        ),
        expected=Expected(
            max=limit.warn_above,
            unit="times",
            source=policy.cite("read_over_write"),
        ),
        remedy=Remedy(
            text="Without NVLink UCX switches READ over cuda_ipc off (vllm#52607): allow it, or use the push connector.",
            commands=(
                "export UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on",
                '--kv-transfer-config \'{"kv_connector":"NixlPushConnector", ...}\'',
            ),
        )
        if slow
        else None,  # fmt: skip
        evidence=facts.evidence,
    )


def fit_quality(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP208: the cost fit explains its own points."""
    fitted = facts.transfer.fit(facts.operation) if facts.transfer else None
    if fitted is None or len(fitted.points) < 3:
        return
    limit = policy.threshold("fit_worst_residual")
    status = limit.status(fitted.worst_residual)
    yield Finding(
        id="KVP208",
        name="fit-residual",
        status=status,
        title=f"cost fit over {len(fitted.points)} points: worst residual {fitted.worst_residual:.0%}",
        measured=Quantity(
            value=fitted.worst_residual, unit="ratio", statistic="max", samples=len(fitted.points)
        ),
        expected=Expected(max=limit.warn_above, unit="ratio", source=policy.cite("fit_worst_residual")),
        remedy=None
        if status is Status.PASS
        else Remedy(
            text="Trust the measured prompt lengths; between and beyond them the prediction is coarse."
        ),
        evidence=facts.evidence,
    )


def overhead(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP209: kvprobe's own Python takes a negligible part of the judged time."""
    series = facts.judged
    if series is None or not series.overhead_seconds or not series.median_seconds:
        return
    share = median(series.overhead_seconds) / series.median_seconds
    limit = policy.threshold("probe_overhead_fraction")
    yield Finding(
        id="KVP209",
        name="probe-overhead",
        status=limit.status(share),
        title=f"kvprobe's own share of a transfer: {share:.2%} (building and releasing the request, outside the timed span)",
        measured=Quantity(
            value=share, unit="ratio", statistic="median", samples=len(series.overhead_seconds)
        ),
        expected=Expected(max=limit.warn_above, unit="ratio", source=policy.cite("probe_overhead_fraction")),
        evidence=facts.evidence,
    )


class GpuPathFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Why no GPU pair was measured, and what was measured instead."""

    reason: str
    remedy: str = ""
    commands: tuple[str, ...] = ()
    instead: LadderFacts | None = None


def gpu_path_missing(facts: GpuPathFacts, policy: Policy) -> Iterable[Finding]:
    """KVP210: there is a pair of GPUs to measure."""
    notes = []
    series = facts.instead.judged if facts.instead else None
    if facts.instead and series and series.median_seconds:
        seen = facts.instead.observed
        notes.append(
            f"measured instead: NIXL {facts.instead.operation} of {facts.instead.judged_tokens:,} tokens {facts.instead.subject}, {format_seconds(series.median_seconds)} "
            f"(median of {len(series.seconds)}) over {seen.label if seen else 'an unknown transport'}; it says nothing about GPUs"
        )
    yield Finding(
        id="KVP210",
        name="gpu-path",
        status=Status.UNKNOWN,
        title=f"the GPU path was not measured: {facts.reason}",
        remedy=Remedy(
            text=facts.remedy or "Run kvprobe on a node with two NVIDIA GPUs.", commands=facts.commands
        ),
        notes=tuple(notes),
    )


LADDER_RULES: tuple[Rule[LadderFacts], ...] = (
    Rule("KVP206", "gpu-idle", idle),
    Rule("KVP207", "read-against-write", direction),
    Rule("KVP208", "fit-residual", fit_quality),
    Rule("KVP209", "probe-overhead", overhead),
)
PATH_RULES: tuple[Rule[GpuPathFacts], ...] = (Rule("KVP210", "gpu-path", gpu_path_missing),)
RULES: tuple[Rule[Any], ...] = (*LADDER_RULES, *PATH_RULES)
