"""`kvprobe transfer --connect`: decode's side of a measurement between two nodes; it conducts and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Status
from kvprobe.flows import Door, Draft
from kvprobe.flows.ladder import nixl_rungs, progress_of
from kvprobe.flows.one_side import connecting_side, token_of
from kvprobe.flows.transfer import TransferRequest, build_steps, limits_of, plans_of
from kvprobe.flows.transfer_result import transfer_result
from kvprobe.models.concurrency import levels
from kvprobe.models.ladder import Rung, describe, largest_loss
from kvprobe.models.lanes import lanes, nominal_rate
from kvprobe.models.raw_ucx import raw_ucx_rung
from kvprobe.models.statistics import median
from kvprobe.models.transfer import TransferFacts
from kvprobe.models.two_nodes import Failure, NodeFacts
from kvprobe.probes import node, transfer, two_nodes, ucx
from kvprobe.probes import two_node_phases as phases
from kvprobe.probes.peer_wire import parse_address, show_address
from kvprobe.rules.base import run_rules
from kvprobe.rules.concurrency import RULES as CONCURRENCY_RULES
from kvprobe.rules.concurrency import ConcurrencyFacts
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.transfer import complete
from kvprobe.rules.transfer_quality import direction, overhead
from kvprobe.rules.two_nodes import RULES, OperationSeen, TwoNodeFacts, describe_seen


def connect(door: Door, params: dict[str, Any]) -> Draft:
    """Measure with the listener at ``--connect``. Raises UsageError; failures on the way are findings."""
    request = msgspec.convert(params, TransferRequest, strict=False)
    address = parse_address(str(params["connect"]))
    if address[0] != "localhost" and not address[0].replace(".", "").isdecimal():
        door.system.hide({address[0]: "node-b"})
    token = token_of(door.system, params.get("token_file"))
    setup, capability, evidence = connecting_side(door, request)
    plans, config = plans_of(door, request, capability)
    evidence += [config] if config is not None else []
    steps = build_steps(request, plans)
    mine = node.look(door.system, gpu=None if setup.memory == "dram" else f"GPU {setup.decode_gpu}")
    operation = "WRITE" if request.op == "write" else "READ"
    size = plans[max(plans)].bytes // 4 * 4
    told = progress_of(door, "two nodes")
    talk = two_nodes.conduct(
        door.system,
        address,
        token,
        mine.facts,
        phases.asks(setup, steps, size, operation, request.budget),
        key={"role": "connect", "setup": setup.name, "steps": [s.id for s in steps]},
        summarise=lambda outcomes: phases.summarise(setup, steps, outcomes),
        on_phase=lambda kind: door.progress.step(f"{_NAMES[kind]} with {show_address(*address)}"),
        on_event=lambda event: told(event) if "step" in event or "role" in event else None,
    )
    outcomes = talk.outcomes.get("nixl", ())
    run = transfer.read_outcomes(setup, steps, outcomes) if outcomes else None
    remote = talk.remote
    seen = observed(run, mine.facts, remote)
    rungs = _rungs(talk, run, seen, size, operation)
    if run is not None:
        evidence.append(
            Evidence(
                id="transfer", kind="transfer", origin=Origin.MEASURED, source=f"NIXL workers on two nodes, {setup.name}",
                at=mine.at, versions=run.versions, facts=run,
            )
        )  # fmt: skip
    evidence.append(mine)
    if remote is not None:
        evidence.append(
            Evidence(id="remote-node", kind="node", origin=Origin.READ, source="told by the listening side", facts=remote)
        )  # fmt: skip
    told_by = tuple(e.id for e in evidence if e.id in ("transfer", "node", "remote-node"))
    subject = f"{remote.peer_hostname if remote else show_address(*address)} -> {mine.facts.peer_hostname}"
    ladder = LadderFacts(
        subject=subject, memory=setup.memory, judged_tokens=max(plans), operation=operation, transfer=run,
        rungs=rungs, evidence=told_by,
    )  # fmt: skip
    facts = TwoNodeFacts(
        role="connect", mine=mine.facts, remote=remote, failure=_failure(talk), seen=seen,
        done=len(run.series) if run else 0, versions=_versions(run), evidence=told_by,
    )  # fmt: skip
    findings = run_rules(RULES, facts, door.policy)
    findings += [f for rule in (complete, direction, overhead) for f in rule(ladder, door.policy)]
    for told_id, side in (("node", mine.facts), ("remote-node", remote)):
        if side is not None:
            findings += [
                msgspec.structs.replace(f, where=side.peer_hostname, evidence=(told_id,))
                for f in limits_of(door, side.host)
                if f.status is not Status.PASS
            ]
    crowd = levels([s for s in run.series if (s.prompt_tokens, s.order, s.op) == (max(plans), "shuffled", operation)]) if run else ()  # fmt: skip
    if len(crowd) > 1:
        findings += run_rules(
            CONCURRENCY_RULES, ConcurrencyFacts(levels=crowd, evidence=told_by), door.policy
        )
    result = transfer_result(ladder, crowd)
    top = largest_loss(rungs)
    result |= {
        "ladder": describe(rungs),
        "largest_loss": {**msgspec.to_builtins(top), "means": top.means} if top else None,
        "nodes": nodes_result(prefill=remote, decode=mine.facts),
        "network": describe_seen(seen),
    }
    return Draft(
        subject={"model": request.model, "headline": f"{subject}, {setup.name}", "kv_cache_dtype": request.kv_cache_dtype, "tp": request.tp},
        findings=tuple(findings),
        evidence=tuple(evidence),
        result=result,
        error={"reason": talk.failure.reason, "remedy": talk.failure.remedy} if talk.failure else None,
    )  # fmt: skip


_NAMES = {"stream": "one TCP stream", "ucx": "raw UCX", "nixl": "NIXL"}


def observed(
    run: TransferFacts | None, mine: NodeFacts, remote: NodeFacts | None
) -> tuple[OperationSeen, ...]:
    """Each operation's transport with the devices of the side that posts it: decode reads, prefill writes."""
    found = []
    for operation, poster in (("READ", mine), ("WRITE", remote)):
        transport = run.transport(operation) if run else None
        if transport is not None and poster is not None:
            devices = lanes(transport.via, poster.host, poster.network)
            found.append(OperationSeen(operation=operation, transport=transport, lanes=devices))
    return tuple(found)


def nodes_result(*, prefill: NodeFacts | None, decode: NodeFacts | None) -> dict[str, Any]:
    """Both nodes as the report's ``result.nodes``; None for one that did not tell."""
    return {
        role: None if facts is None else {**msgspec.to_builtins(facts), "hostname": facts.peer_hostname}
        for role, facts in (("prefill", prefill), ("decode", decode))
    }


def _rungs(
    talk: two_nodes.Conversation,
    run: TransferFacts | None,
    seen: Sequence[OperationSeen],
    size: int,
    operation: str,
) -> tuple[Rung, ...]:
    op = next((o for o in seen if o.operation == operation), None)
    rate = nominal_rate(op.lanes) if op else None
    link = Rung(
        number=0,
        status="computed" if rate else "unknown",
        bytes=size,
        seconds=size / rate if rate else None,
        statistic="nominal rate",
        transport=", ".join(lane.device for lane in op.lanes) if op else None,
        note="nominal rate of the devices used" if rate else "the devices used tell no speed",
    )
    tcp = op is None or all(lane.transport == "tcp" for lane in op.lanes)
    raw = talk.outcomes.get("ucx")
    version = run.versions.get("ucx") if run else None
    where = "vram" if run is not None and run.setup.memory == "vram" else "dram"
    return (
        link,
        _stream_rung(talk, size, comparable=tcp),
        raw_ucx_rung(ucx.read_outcomes(where, (0, 0), raw), size, operation, version)
        if raw
        else Rung(number=2, status="skipped", note=talk.refused.get("ucx", "not measured")),
        *nixl_rungs(run, operation, max((s.prompt_tokens for s in run.series), default=0) if run else 0),
    )


def _stream_rung(talk: two_nodes.Conversation, size: int, *, comparable: bool) -> Rung:
    found = talk.outcomes.get("stream", ())
    samples = [
        e["seconds"] for o in found for e in o.events if e["event"] == "sample" and not e["warm_up"] and e["bytes"] == size
    ]  # fmt: skip
    if not samples:
        why = talk.refused.get("stream") or next((o.error for o in found if o.error), None) or "not measured"
        return Rung(number=1, status="unknown", note=why)
    return Rung(
        number=1, status="measured", bytes=size, seconds=median(samples), statistic="median", samples=tuple(samples),
        transport="one TCP stream", note="a plain socket between the nodes" + ("" if comparable else "; another path than UCX took"),
        comparable=comparable,
    )  # fmt: skip


def _failure(talk: two_nodes.Conversation) -> Failure | None:
    if talk.failure is None and "nixl" in talk.refused:
        return Failure(
            code="refused",
            reason=f"The listening node refuses the measurement: {talk.refused['nixl']}.",
            remedy="Ask for less (a shorter --prompt-tokens), or start it with a larger --max-memory.",
        )
    return talk.failure


def _versions(run: TransferFacts | None) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for role, told in (run.workers if run else {}).items():
        names = {"NIXL": told.get("nixl_version"), "UCX": told.get("ucx_version")}
        found[role] = {name: str(value) for name, value in names.items() if value}
    return found
