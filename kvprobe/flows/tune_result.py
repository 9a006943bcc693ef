"""`kvprobe tune`'s ``result``: the ranked table, the winner with its flags and costs."""

from __future__ import annotations

from typing import Any

from kvprobe.models.tuning_rank import Candidate, costs, flags, rank, winner
from kvprobe.rules.tuning import TuneFacts


def result_of(facts: TuneFacts, prompt_tokens: int, operation: str) -> dict[str, Any]:
    """Rows in seconds and bytes; ``speedup`` is of transfer and staging copies together."""
    best, base = winner(facts.candidates), facts.baseline
    return {
        "prompt_tokens": prompt_tokens,
        "baseline": row_of(base, base),
        "candidates": [row_of(c, base) for c in rank(facts.candidates)],
        "winner": None
        if best is None
        else {
            **row_of(best, base),
            "settings": flags(best, operation),
            "costs": costs(best, facts.layout, base.cut.block_size),
            "is_baseline": best is base,
        },
        "left_out": list(facts.left_out),
        "failures": list(facts.failures),
    }


def row_of(candidate: Candidate, base: Candidate) -> dict[str, Any]:
    estimate = candidate.tax
    return {
        "name": candidate.name,
        "block_size": candidate.cut.block_size,
        "packed": candidate.cut.packed,
        "way": candidate.way.name,
        "operation": candidate.way.operation,
        "descriptors": candidate.nixl_descriptors or candidate.cut.plan.descriptors,
        "bytes": candidate.cut.plan.bytes,
        "seconds": candidate.seconds,
        "statistic": "median",
        "samples": candidate.samples,
        "stage_out_seconds": candidate.stage_out_seconds or None,
        "stage_in_seconds": candidate.stage_in_seconds or None,
        "whole_seconds": candidate.whole_seconds,
        "transport": candidate.transport,
        "speedup": base.whole_seconds / candidate.whole_seconds,
        "tax_p50_seconds": estimate.p50_seconds if estimate else None,
        "tax_p90_seconds": estimate.p90_seconds if estimate else None,
        "available": candidate.available,
        "why_not": candidate.cut.why_not,
    }
