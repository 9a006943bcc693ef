"""What tuning measured: candidates, their whole tax, the ranking, the winner's settings and costs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from kvprobe.evidence import Origin
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.statistics import median
from kvprobe.models.transfer import Series
from kvprobe.models.ttft import TaxEstimate, Term, tax
from kvprobe.models.tuning import Cut, Way
from kvprobe.units import format_bytes

_NEAR = 0.05
"""Candidates this close to the best are equal; then the one that changes least wins."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A measured combination."""

    way: Way
    cut: Cut
    seconds: float
    """Transfer, median."""
    samples: int
    transport: str | None
    nixl_descriptors: int | None
    stage_out_seconds: float = 0.0
    """Copies on the prefill side."""
    stage_in_seconds: float = 0.0
    tax: TaxEstimate | None = None

    @property
    def name(self) -> str:
        return f"{self.cut.name}, {self.way.name}"

    @property
    def whole_seconds(self) -> float:
        """Transfer and staging copies of both sides."""
        return self.seconds + self.stage_out_seconds + self.stage_in_seconds

    @property
    def available(self) -> bool:
        return self.cut.available


def candidate_of(
    way: Way, cut: Cut, series: Series, transport: str | None, vllm_version: str | None
) -> Candidate:
    """The candidate that a measured series makes; the series must have warm samples."""
    seconds = median(series.seconds)
    out = median(series.stage_out_seconds) if series.stage_out_seconds else 0.0
    back = median(series.stage_in_seconds) if series.stage_in_seconds else 0.0
    estimate = tax(series.prompt_tokens, seconds, vllm_version=vllm_version, bytes=series.bytes)
    return Candidate(
        way=way,
        cut=cut,
        seconds=seconds,
        samples=len(series.seconds),
        transport=transport,
        nixl_descriptors=series.nixl_descriptors,
        stage_out_seconds=out,
        stage_in_seconds=back,
        tax=with_staging(estimate, out, back),
    )


def with_staging(estimate: TaxEstimate, out_seconds: float, in_seconds: float) -> TaxEstimate:
    """The tax with the measured staging copies of both sides added."""
    if not out_seconds and not in_seconds:
        return estimate
    source = "measured with this plan"
    terms = (
        Term(name="host staging on prefill", seconds=out_seconds, origin=Origin.MEASURED, source=source),
        Term(name="host staging on decode", seconds=in_seconds, origin=Origin.MEASURED, source=source),
    )
    more = out_seconds + in_seconds
    return msgspec.structs.replace(
        estimate,
        p50_seconds=estimate.p50_seconds + more,
        p90_seconds=estimate.p90_seconds + more,
        terms=(*estimate.terms, *terms),
    )


def rank(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Least tax first, those that cannot be chosen after the rest."""
    return tuple(sorted(candidates, key=lambda c: (not c.available, _tax(c))))


def winner(candidates: Sequence[Candidate]) -> Candidate | None:
    """The least tax; among near-equals the fewest changes, then the smallest blocks."""
    free = [c for c in candidates if c.available]
    if not free:
        return None
    best = min(_tax(c) for c in free)
    near = [c for c in free if _tax(c) <= best * (1 + _NEAR)]
    return min(
        near,
        key=lambda c: (
            c.way.changes,
            c.cut.packed,
            c.cut.kv_cache_dtype is not None,
            c.cut.block_size,
            _tax(c),
        ),
    )


def _tax(candidate: Candidate) -> float:
    return candidate.tax.p50_seconds if candidate.tax else candidate.whole_seconds


def flags(candidate: Candidate, operation: str = "READ") -> list[str]:
    """What to write on both sides: vLLM flags, environment, transfer config."""
    setup, found = candidate.way.setup, []
    config: dict[str, object] = {
        "kv_connector": "NixlPushConnector" if candidate.way.operation == "WRITE" else "NixlConnector"
    }
    if setup.kv_buffer_device == "cpu":
        config["kv_buffer_device"] = "cpu"
    threads = setup.backend.get("num_threads")
    extra: dict[str, object] = {}
    if threads and threads != "4":
        extra["num_threads"] = int(threads)
    found += [f"export {k}={v}" if v is not None else f"unset {k}" for k, v in setup.env.items()]
    found += [line for line in candidate.way.settings if "CUDA_VISIBLE_DEVICES" in line]
    for flag in candidate.cut.flags:
        if flag.startswith('"kv_connector_extra_config"'):
            extra["enable_cross_layers_blocks"] = "True"
        elif "=" in flag and not flag.startswith("--"):
            found.append(f"export {flag}")
        else:
            found.append(flag)
    if extra:
        config["kv_connector_extra_config"] = extra
    if len(config) > 1 or candidate.way.operation != operation:
        roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
        for side, role in roles.items():
            found.append(f"{side}: --kv-transfer-config '{json.dumps({**config, 'kv_role': role})}'")
    return found


def costs(candidate: Candidate, layout: KvLayout, now_block_size: int) -> list[str]:
    """What the winner costs elsewhere, in numbers."""
    told = []
    each, size = layout.growth_bytes_per_token.per_rank, candidate.cut.block_size
    if size > now_block_size:
        waste, before = (size - 1) / 2, (now_block_size - 1) / 2
        told.append(
            f"the last block of a sequence is half empty on average: {waste:g} tokens or {format_bytes(waste * each)} "
            f"a sequence and rank, instead of {before:g} tokens or {format_bytes(before * each)}"
        )
        told.append(
            f"prefix cache hits end at multiples of {size} tokens: {waste:g} tokens a hit are computed again on average, instead of {before:g}"
        )
    if candidate.stage_out_seconds:
        told.append(
            f"prefill answers {candidate.stage_out_seconds * 1e3:.3g} ms later per prompt (device to host), decode starts "
            f"{candidate.stage_in_seconds * 1e3:.3g} ms later (host to device); host memory for the buffers on both sides; no CUDA IPC"
        )
    if candidate.cut.kv_cache_dtype:
        told.append(
            f"{candidate.cut.kv_cache_dtype} KV cache changes the model's numerics: check your quality metric"
        )
    if candidate.way.operation == "WRITE":
        told.append(
            "the push connector: no bidirectional transfer, no DCP; transfer metrics appear on the prefill side"
        )
    if candidate.way.setup.env.get("UCX_RMA_PPLN_ENABLE") == "y":
        told.append(
            "the RMA pipeline uses pinned host memory; in a real vLLM 0.30 the engine took 1.6 times what NIXL alone took (samples/ttft)"
        )
    return told
