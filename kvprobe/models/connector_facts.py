"""All that :mod:`kvprobe.rules.connectors` judges, and the command's ``result``."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.models.connector_needs import OUT_OF_SCOPE
from kvprobe.models.connectors import ConnectorState, Problem
from kvprobe.models.mooncake import MooncakeFacts, comparison
from kvprobe.models.transfer import TransferFacts


class ConnectorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``asked``: names that have to be ready; none: a survey, and one connector for P/D has to be."""

    vllm: str
    vllm_source: str
    states: tuple[ConnectorState, ...]
    asked: tuple[str, ...] = ()
    composition: tuple[Problem, ...] = ()
    """What is wrong with a MultiConnector, and what it costs."""
    multi: bool = False
    mooncake: MooncakeFacts | None = None
    mooncake_default: MooncakeFacts | None = None
    """A single write with Mooncake's own queue limit."""
    nixl: TransferFacts | None = None
    measure_note: str | None = None
    """Why nothing was measured; None when it was."""
    mooncake_over_tcp: bool = True
    """Mooncake would use TCP here: told to, or for want of an RDMA device."""
    plan: str = ""

    def state(self, name: str) -> ConnectorState | None:
        return next((s for s in self.states if s.name == name), None)


def result_of(facts: ConnectorFacts) -> dict[str, Any]:
    """``vllm_version``, ``connectors``, ``composition``, ``transfer``, ``out_of_scope``."""
    default = facts.mooncake_default
    return {
        "vllm_version": facts.vllm,
        "vllm_version_source": facts.vllm_source,
        "asked": list(facts.asked),
        "connectors": [msgspec.to_builtins(s) for s in facts.states],
        "composition": [msgspec.to_builtins(p) for p in facts.composition],
        "transfer": {
            "plan": facts.plan,
            "path": "DRAM to DRAM, TCP on 127.0.0.1, two processes",
            "rows": comparison(facts.mooncake, facts.nixl),
            "mooncake_version": facts.mooncake.version if facts.mooncake else None,
            "nixl_version": facts.nixl.versions.get("nixl") if facts.nixl else None,
            "mooncake_queue_limit": facts.mooncake.queue_limit if facts.mooncake else None,
            "mooncake_refused_batch_by_default": default.refused_batch if default else None,
            "note": facts.measure_note,
        },
        "out_of_scope": dict(OUT_OF_SCOPE),
    }
