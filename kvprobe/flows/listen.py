"""`kvprobe transfer --listen`: prefill's side of a measurement between two nodes; it lends memory and answers."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Finding
from kvprobe.flows import Door, Draft
from kvprobe.flows.one_side import lending, token_of
from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.lanes import lanes
from kvprobe.models.two_nodes import Failure, NodeFacts, Served
from kvprobe.probes import node
from kvprobe.probes.peer_session import listen as serve
from kvprobe.probes.peer_wire import parse_address
from kvprobe.rules.base import run_rules
from kvprobe.rules.two_nodes import RULES, OperationSeen, TwoNodeFacts, describe_seen
from kvprobe.units import format_seconds

_LOOPBACK = "127.0.0.1"


def listen(door: Door, params: dict[str, Any]) -> Draft:
    """Wait for a peer that knows the token and serve it. Raises UsageError."""
    address = parse_address(str(params["listen"]), _LOOPBACK)
    token = token_of(door.system, params.get("token_file"))
    wait = float(params["wait"])
    lent, gpu = lending(door, int(params["prefill_gpu"]), params.get("max_memory"), str(params["memory"]))
    mine = node.look(door.system, gpu=gpu)
    found = serve(
        door.system, lent, mine.facts, address, token, wait_seconds=wait, keep=bool(params["keep"]),
        on_line=door.progress.warn,
        on_event=lambda event: door.progress.detail(str(event["event"])),
    )  # fmt: skip
    evidence = Evidence(
        id="two-nodes", kind="two_nodes", origin=Origin.MEASURED, source=f"listening on {found.address}",
        at=mine.at, facts=found,
    )  # fmt: skip
    findings: list[Finding] = []
    for number, served in enumerate(found.sessions, 1):
        told = run_rules(RULES, _facts(mine.facts, served, found.turned_away), door.policy)
        where = f"session {number}, {served.remote.peer_hostname}" if len(found.sessions) > 1 else None
        findings += [msgspec.structs.replace(f, where=where) for f in told]
    nobody = found.failure or (None if found.sessions else _nobody(wait, found.turned_away))
    if nobody is not None:
        facts = TwoNodeFacts(role="listen", mine=mine.facts, failure=nobody, turned_away=found.turned_away, evidence=("two-nodes",))  # fmt: skip
        findings += run_rules(RULES, facts, door.policy)
    result = {
        "address": found.address,
        "lent": {"dram_bytes": lent.dram_bytes, "vram_bytes": lent.vram_bytes or None},
        "sessions": [_session(mine.facts, served) for served in found.sessions],
        "turned_away": found.turned_away,
        "nodes": {"prefill": {**msgspec.to_builtins(mine.facts), "hostname": mine.facts.peer_hostname}},
    }
    return Draft(
        subject={"headline": f"listening on {found.address}"},
        findings=tuple(findings),
        evidence=(evidence, mine),
        result=result,
        error={"reason": nobody.reason, "remedy": nobody.remedy} if nobody else None,
    )


def _facts(mine: NodeFacts, served: Served, turned_away: dict[str, int]) -> TwoNodeFacts:
    failure = served.failure
    worst = next((p for p in served.phases if p.kind == "nixl" and p.error), None)
    refused = next((p for p in served.phases if p.kind == "nixl" and p.refused), None)
    if failure is None and worst is not None:
        failure = Failure(code="worker_failed", reason=f"This side's worker failed: {worst.error}", remedy="The connecting side's report has its log.")  # fmt: skip
    if failure is None and refused is not None:
        failure = Failure(code="refused", reason=f"The peer's request was refused: {refused.refused}", remedy="Lend more with --max-memory, if this node can.")  # fmt: skip
    return TwoNodeFacts(
        role="listen", mine=mine, remote=served.remote, failure=failure, seen=_seen(mine, served),
        done=len(served.summary.series) if served.summary else 0, turned_away=turned_away, evidence=("two-nodes",),
    )  # fmt: skip


def _seen(mine: NodeFacts, served: Served) -> tuple[OperationSeen, ...]:
    """As the connecting side saw it; the devices are those of the side that posts: this one for WRITE."""
    found = []
    for operation, label in (served.summary.transports if served.summary else {}).items():
        via = served.summary.vias.get(operation, "") if served.summary else ""
        poster = mine if operation == "WRITE" else served.remote
        name, _, how = label.rpartition(", ")
        emulated = "emulation" in label
        found.append(
            OperationSeen(
                operation=operation,
                transport=Transport(name=name, how=how, via=via, emulated=emulated, share=1.0),
                lanes=lanes(via, poster.host, poster.network),
            )
        )
    return tuple(found)


def _session(mine: NodeFacts, served: Served) -> dict[str, Any]:
    return {
        "decode": {**msgspec.to_builtins(served.remote), "hostname": served.remote.peer_hostname},
        "phases": msgspec.to_builtins(served.phases),
        "network": describe_seen(_seen(mine, served)),
        "series": msgspec.to_builtins(served.summary.series) if served.summary else [],
        "failure": msgspec.to_builtins(served.failure),
    }


def _nobody(wait: float, turned_away: dict[str, int]) -> Failure:
    if turned_away.get("wrong_token"):
        return Failure(
            code="wrong_token", reason=f"Nobody with the right token came within {format_seconds(wait)}.",
            remedy="Set the same KVPROBE_TOKEN (or --token-file) on both nodes.",
        )  # fmt: skip
    return Failure(
        code="nobody_came", reason=f"Nobody came within {format_seconds(wait)}.",
        remedy="Start `kvprobe transfer --connect HOST:PORT --model ...` on the other node; --wait waits longer.",
    )  # fmt: skip
