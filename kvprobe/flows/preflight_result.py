"""What preflight's ``result`` says of the model and of a pair. Bytes and seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.flows.ladder import Plan
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.ladder import describe, largest_loss
from kvprobe.models.transfer import TransferFacts
from kvprobe.rules.ladder_facts import LadderFacts


def kv_result(layout: KvLayout, plan: Plan) -> dict[str, Any]:
    return {
        "bytes_per_token": msgspec.to_builtins(layout.bytes_per_token),
        "kv_cache_dtype": layout.kv_cache_dtype,
        "block_size_tokens": layout.block_size_tokens,
        "assumptions": msgspec.to_builtins(layout.assumptions),
        "plans": [
            {
                "prompt_tokens": n,
                "bytes": p.bytes,
                "descriptors": p.descriptors,
                "descriptor_bytes": p.bytes // max(1, p.descriptors),
            }
            for n, p in plan.plans.items()
        ],
    }


def pair_result(facts: LadderFacts) -> dict[str, Any]:
    """The measured part of ``result`` for one pair."""
    run: TransferFacts | None = facts.transfer
    top = largest_loss([r for r in facts.rungs if r.number <= 4])
    seen = facts.observed
    return {
        "subject": facts.subject,
        "ladder": describe(facts.rungs),
        "largest_loss": {**msgspec.to_builtins(top), "means": top.means} if top else None,
        "transport": {**msgspec.to_builtins(seen), "label": seen.label} if seen else None,
        "fit": fits(run) if run else {},
        "transfers": [
            {**msgspec.to_builtins(s), "median_seconds": s.median_seconds, "transport": _label(run, s.op)}
            for s in run.series
        ]
        if run
        else [],
        "handshake_seconds": run.handshake_seconds if run else None,
        "not_measured": facts.reduced,
    }


def _label(run: TransferFacts | None, operation: str) -> str | None:
    seen = run.transport(operation) if run else None
    return seen.label if seen else None


def fits(run: TransferFacts) -> dict[str, Any]:
    """The cost fits by operation, with range and residuals, under the transport they hold for."""
    found: dict[str, Any] = {}
    for operation in ("READ", "WRITE"):
        fitted = run.fit(operation)
        if fitted is not None:
            found[operation] = {
                **msgspec.to_builtins(fitted),
                "transport": _label(run, operation),
                "worst_residual": fitted.worst_residual,
                "range_bytes": list(fitted.range_bytes),
                "range_descriptors": list(fitted.range_descriptors),
            }
    return found
