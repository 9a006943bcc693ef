"""What an operator can set to make a transfer faster: candidates, what each costs elsewhere, and the ranking."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from kvprobe.evidence import Origin
from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.experiments import suspects
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.transfer import Setup
from kvprobe.models.ttft import TaxEstimate, Term
from kvprobe.units import format_bytes

BLOCK_SIZES = (16, 32, 64, 128, 256)
_NEAR = 0.05
"""Candidates this close to the best are equal; then the one that changes least wins."""
_MLA = ("mla", "indexer")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A set-up of the two sides and the direction: what one pair of processes measures."""

    name: str
    setup: Setup
    operation: str = "READ"
    settings: tuple[str, ...] = ()
    """Environment and connector settings, copyable."""
    changes: int = 0
    """How much it changes, for ties: 0 is what runs now."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache is cut into descriptors."""

    name: str
    block_size: int
    packed: bool = False
    kv_cache_dtype: str | None = None
    """None: as now."""
    plan: DescriptorPlan
    flags: tuple[str, ...] = ()
    available: bool = True
    why_not: str | None = None
    """Why it cannot be chosen although it was measured."""


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


def ways(
    setup: Setup, environ: Mapping[str, str], operation: str, keep: Sequence[str] = ()
) -> tuple[Way, ...]:
    """What runs now first, then each suspect as a way; the direction and threads among them."""
    now = Way(name=f"{operation} as now", setup=setup, operation=operation)
    tried = [
        Way(
            name=experiment.name,
            setup=experiment.setup,
            operation=experiment.operation,
            settings=experiment.settings,
            changes=1 if experiment.kind == "cause" else 2,
        )
        for experiment in suspects(setup, environ, operation, keep)
    ]
    return (now, *tried)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that could be cut: block size, packed or not, KV dtype (None: as now)."""

    block_size: int
    plan: DescriptorPlan
    packed: bool = False
    kv_cache_dtype: str | None = None


def cuts(
    layout: KvLayout, planned: Sequence[Planned], vllm_version: str | None, *, allow_dtype: bool = False
) -> tuple[Cut, ...]:
    """One cut per plan; a layout that this vLLM does not have and a dtype that was not allowed are measured only."""
    found = []
    for item in planned:
        now = item.block_size == layout.block_size_tokens
        settings = [] if now else [f"--block-size {item.block_size}"]
        available, why_not, name = True, None, f"blocks of {item.block_size}"
        if item.packed:
            available, setting, why_not = _packed(layout, vllm_version)
            settings.append(setting)
            name += " with all layers packed"
        if item.kv_cache_dtype:
            available, why_not = (
                allow_dtype,
                None if allow_dtype else "changes numerics; --allow-fp8 lets it win",
            )
            settings.append(f"--kv-cache-dtype {item.kv_cache_dtype}")
            name += f", {item.kv_cache_dtype} KV"
        if now and not item.packed and not item.kv_cache_dtype:
            name += " (now)"
        found.append(
            Cut(
                name=name, block_size=item.block_size, packed=item.packed, kv_cache_dtype=item.kv_cache_dtype,
                plan=item.plan, flags=tuple(settings), available=available, why_not=why_not,
            )
        )  # fmt: skip
    return tuple(found)


def _packed(layout: KvLayout, vllm_version: str | None) -> tuple[bool, str, str | None]:
    """Whether this vLLM can lay all layers of a block together for this model, and how it is asked for.

    BLHNC did not lower the descriptor count of a GQA model in 0.30 (samples/ttft, 030-block16-nvlink-blhnc);
    for MLA it gives one region. enable_cross_layers_blocks existed from 0.16 to 0.28.
    """
    numbers = [int(p) for p in (vllm_version or "").split(".")[:2] if p.isdecimal()]
    minor = numbers[1] if len(numbers) == 2 and numbers[0] == 0 else None
    if minor is not None and 16 <= minor <= 28:
        return True, '"kv_connector_extra_config": {"enable_cross_layers_blocks": "True"}', None
    if all(group.kind in _MLA for group in layout.layer_groups):
        return True, "VLLM_KV_CACHE_LAYOUT=BLHNC", None
    why = "vLLM packs layers only for MLA models from 0.29 on (BLHNC changed nothing for a GQA model in 0.30)"
    return False, "VLLM_KV_CACHE_LAYOUT=BLHNC", why


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
