"""`kvprobe transfer`'s ``result``. Seconds and bytes, every sample kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.flows.preflight_result import pair_result
from kvprobe.models.concurrency import Level, knee
from kvprobe.rules.ladder_facts import LadderFacts


def transfer_result(facts: LadderFacts, crowd: Sequence[Level]) -> dict[str, Any]:
    """Series, transport, fit; levels of concurrency where they were measured."""
    found = pair_result(facts)
    found.pop("ladder")
    found.pop("largest_loss")
    bend = knee(crowd) if len(crowd) > 1 else None
    found["concurrency"] = msgspec.to_builtins(tuple(crowd)) if len(crowd) > 1 else None
    found["knee"] = bend.in_flight if bend else None
    found["setup"] = msgspec.to_builtins(facts.transfer.setup) if facts.transfer else None
    found["workers"] = facts.transfer.workers if facts.transfer else {}
    return found
