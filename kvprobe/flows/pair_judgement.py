"""What preflight says of a measured pair beside the ladder: topology, and the diagnosis where the ladder looks sick."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from kvprobe.evidence import AnyEvidence
from kvprobe.finding import Finding, Status
from kvprobe.flows import Door, Draft
from kvprobe.flows.diagnose import describe, diagnose
from kvprobe.flows.ladder import Plan
from kvprobe.formats.nvml import Gpu, GpuFacts
from kvprobe.models.host import HostFacts
from kvprobe.models.p2p import conclude
from kvprobe.models.prompt_steps import JUDGED_TOKENS
from kvprobe.models.topology import from_nvml
from kvprobe.policy import Policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.diagnosis import RULES as DIAGNOSIS_RULES
from kvprobe.rules.diagnosis import DiagnosisFacts
from kvprobe.rules.host import RULES as HOST_RULES
from kvprobe.rules.host import HostView
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.topology import RULES as TOPOLOGY_RULES
from kvprobe.rules.topology import TopologyFacts

_FAR = 4.0
"""NIXL in order takes 1.4 times a raw copy on a healthy pair (samples/scenarios); four times is another transport."""


def judge_host(policy: Policy, facts: HostFacts) -> list[Finding]:
    """What the host's settings say about the transports, before anything is measured."""
    return run_rules(HOST_RULES, HostView(host=facts), policy)


def judge_topology(
    policy: Policy, seen: GpuFacts, prefill: Gpu, decode: Gpu, connector: str, ladder: LadderFacts
) -> list[Finding]:
    """The topology rules on this pair. A refused P2P is a warning where the transfer was measured: that decides."""
    topology = from_nvml(seen)
    told = conclude(topology, f"GPU{prefill.index}", f"GPU{decode.index}", connector)
    facts = TopologyFacts(topology=topology, conclusion=told, gpus=seen, evidence=("gpus",))
    found = run_rules(TOPOLOGY_RULES, facts, policy)
    if ladder.judged is None:
        return found
    return [
        msgspec.structs.replace(
            f, status=Status.WARN, notes=(*f.notes, "the measured transfer decides (KVP203)")
        )
        if f.id == "KVP101" and f.status is Status.FAIL
        else f
        for f in found
    ]


def suspicious(facts: LadderFacts) -> bool:
    """The pair moves bytes another way than it could; descriptors alone do not explain it."""
    seen, copy, nixl = facts.observed, facts.rung(1), facts.rung(3)
    if seen is not None and seen.emulated:
        return True
    return bool(copy and nixl and copy.seconds and nixl.seconds and nixl.seconds > _FAR * copy.seconds)


def diagnose_ladder(
    door: Door, plan: Plan, facts: LadderFacts, budget_seconds: float
) -> tuple[dict[str, Any] | None, list[AnyEvidence]]:
    """Experiments on the shortest telling prompt length; None if no series has warm samples."""
    run = facts.transfer
    lengths = (2048, 512, JUDGED_TOKENS)
    series = next((s for n in lengths if run and (s := run.find(plan.operation, "shuffled", n))), None)
    if run is None or series is None:
        return None, []
    planned = plan.plans[series.prompt_tokens]
    found, evidence = diagnose(door, run.setup, planned, series, budget_seconds=budget_seconds)
    return describe(found), evidence


def with_diagnosis(door: Door, draft: Draft, diagnosis: dict[str, Any]) -> Draft:
    """The draft with the diagnosis and what the rules make of it."""
    facts = msgspec.convert(diagnosis, DiagnosisFacts, strict=False)
    return dataclasses.replace(
        draft,
        findings=(*draft.findings, *run_rules(DIAGNOSIS_RULES, facts, door.policy)),
        result={**draft.result, "diagnosis": diagnosis},
    )
