"""KVP230 to KVP234: two nodes met, over which network devices, and what makes their figures worth something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.host import HostFacts
from kvprobe.models.lanes import Lane
from kvprobe.models.two_nodes import Failure, NodeFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_rate

_TOKEN = "export KVPROBE_TOKEN=$(openssl rand -hex 32)"
_COMMANDS = {
    "wrong_token": (_TOKEN,),
    "nobody_listens": ("kvprobe transfer --listen 0.0.0.0",),
    "port_taken": ("ss -ltnp",),
    "no_route": ("ping HOST", "ss -ltn"),
    "protocol_mismatch": ("pip install -U kvprobe",),
}


class OperationSeen(msgspec.Struct, frozen=True, kw_only=True):
    """READ or WRITE as UCX did it; the lanes are those of the side that posts it."""

    operation: str
    transport: Transport
    lanes: tuple[Lane, ...] = ()


class TwoNodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One session, seen from either side."""

    role: str
    """``connect`` or ``listen``."""
    mine: NodeFacts
    remote: NodeFacts | None = None
    failure: Failure | None = None
    done: int = 0
    """Series that were measured."""
    seen: tuple[OperationSeen, ...] = ()
    versions: dict[str, dict[str, str]] = {}
    """Role (``prefill``, ``decode``) -> package -> version."""
    turned_away: dict[str, int] = {}
    evidence: tuple[str, ...] = ()

    @property
    def one_host(self) -> bool:
        return bool(self.remote and self.mine.machine and self.mine.machine == self.remote.machine)


def met(facts: TwoNodeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP230: the two nodes met, proved to know the token, and ended their session in order."""
    strangers = ", ".join(
        f"{count} {code.replace('_', ' ')}" for code, count in sorted(facts.turned_away.items())
    )
    notes = (f"callers turned away: {strangers}",) if strangers else ()
    if facts.failure is not None:
        failure = facts.failure
        told = f"{failure.remedy} " if failure.remedy else ""
        yield Finding(
            id="KVP230",
            name="two-node-session",
            status=Status.UNKNOWN,
            title=failure.reason.rstrip("."),
            remedy=Remedy(
                text=told
                + (f"{facts.done} series were measured before." if facts.done else "Nothing was measured."),
                commands=_COMMANDS.get(failure.code, ()),
            ),
            notes=notes,
            evidence=facts.evidence,
            code=failure.code,
        )
        return
    assert facts.remote is not None
    holder, puller = (facts.remote, facts.mine) if facts.role == "connect" else (facts.mine, facts.remote)
    yield Finding(
        id="KVP230",
        name="two-node-session",
        status=Status.PASS,
        title=f"{holder.peer_hostname} (prefill) and {puller.peer_hostname} (decode) met and measured {facts.done} series",
        notes=notes,
        evidence=facts.evidence,
    )


def one_host(facts: TwoNodeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP231: the two nodes are two hosts, so that a network lies between them."""
    if facts.remote is None:
        return
    if not facts.one_host:
        if facts.mine.machine and facts.remote.machine:
            yield Finding(
                id="KVP231", name="two-hosts", status=Status.PASS, title="the two sides run on two hosts", evidence=facts.evidence
            )  # fmt: skip
        return
    local = sorted(
        {lane.transport for op in facts.seen for lane in op.lanes if lane.local and lane.transport != "tcp"}
    )
    how = f" (UCX used {', '.join(local)})" if local else ""
    yield Finding(
        id="KVP231",
        name="two-hosts",
        status=Status.WARN,
        title=f"both sides run on one host{how}: these figures say nothing about a network",
        expected=Expected(value="two hosts", source="boot ids of the two kernels"),
        remedy=Remedy(
            text="Run the two sides on two nodes. On one host UCX may go through shared memory (cma works even across network "
            "namespaces); with --env UCX_TLS=tcp it takes the network stack."
        ),
        evidence=facts.evidence,
        code="one_host",
    )


def network(facts: TwoNodeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP232: the bytes went by RDMA where both nodes have it; the report names transport and devices."""
    if facts.remote is None or not facts.done:
        return
    if not facts.seen:
        yield Finding(
            id="KVP232",
            name="network-transport",
            status=Status.UNKNOWN,
            title="transport between the nodes not observed: the workers printed no UCX protocol table",
            remedy=Remedy(text="UCX prints it when its workers end in order; unset UCX_PROTO_INFO and UCX_LOG_FILE on both nodes."),
            evidence=facts.evidence,
        )  # fmt: skip
        return
    able = _active(facts.mine.host) and _active(facts.remote.host) and not facts.one_host
    judged = [(op, _verdict(op, able=able, one_host=facts.one_host)) for op in facts.seen]
    worst = max((status for _, status in judged), key=lambda status: status.rank)
    broken = worst is Status.FAIL
    told = "; ".join(
        f"{op.operation} went over {', '.join(_lane(lane) for lane in op.lanes) or op.transport.via}, {op.transport.how}"
        for op in facts.seen
    )
    bad = next((op for op, status in judged if status is worst), facts.seen[0])
    yield Finding(
        id="KVP232",
        name="network-transport",
        status=worst,
        title=f"{told}, although both nodes have active RDMA ports" if broken else told,
        measured=Quantity(value=bad.transport.label),
        expected=None if worst is Status.PASS else Expected(
            value="zero-copy over RDMA", source="active ports on both nodes" if broken else "nodes made for P/D"
        ),
        remedy=None if worst is Status.PASS else Remedy(
            text=(
                "Find what keeps UCX from the RDMA devices: UCX_TLS, UCX_NET_DEVICES, locked memory, missing /dev/infiniband in the container."
                if broken
                else "Over TCP every byte is copied by the CPUs on both sides; without RDMA expect the prefill's KV cache to dominate the TTFT."
            ),
            commands=("ucx_info -d | grep -E 'Transport|Device'", "ls /dev/infiniband", "ulimit -l") if broken else (),
        ),
        notes=_settings(facts),
        evidence=facts.evidence,
        code={Status.FAIL: "rdma_not_used", Status.WARN: "no_rdma"}.get(worst),
    )  # fmt: skip


def _verdict(op: OperationSeen, *, able: bool, one_host: bool) -> Status:
    """One operation: RDMA is right, shared memory is right within one host, anything else is the CPUs' work."""
    rdma = any(lane.rdma for lane in op.lanes)
    shared = one_host and op.lanes and not any(lane.transport == "tcp" for lane in op.lanes)
    if not op.transport.emulated and (rdma or shared):
        return Status.PASS
    return Status.FAIL if able and not rdma else Status.WARN


def gids(facts: TwoNodeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP233: over RoCE, the ports have RoCE v2 addresses, which routers pass."""
    used = {lane.device: lane for op in facts.seen for lane in op.lanes if lane.link_layer == "Ethernet"}
    for device, lane in sorted(used.items()):
        told = ", ".join(f"{index} ({kind})" for index, kind in lane.gid_types.items()) or "none"
        fine = any("v2" in kind for kind in lane.gid_types.values())
        index = facts.mine.host.environment.get("UCX_IB_GID_INDEX", "auto")
        yield Finding(
            id="KVP233",
            name="roce-gid",
            status=Status.PASS if fine else Status.WARN,
            title=f"{device} has {'RoCE v2 GIDs' if fine else 'no RoCE v2 GID'}: {told}; UCX_IB_GID_INDEX={index}",
            remedy=None
            if fine
            else Remedy(text="RoCE v1 does not cross a router: give the interface an IP address, so that a RoCE v2 GID exists.", commands=("show_gids", "ip -brief address")),
            evidence=facts.evidence,
            code=None if fine else "no_rocev2_gid",
        )  # fmt: skip


def same_versions(facts: TwoNodeFacts, policy: Policy) -> Iterable[Finding]:
    """KVP234: both nodes run the same NIXL and UCX."""
    mine, theirs = facts.versions.get("decode", {}), facts.versions.get("prefill", {})
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return
    differ = [f"{name} {theirs[name]} against {mine[name]}" for name in both if mine[name] != theirs[name]]
    yield Finding(
        id="KVP234",
        name="same-versions",
        status=Status.WARN if differ else Status.PASS,
        title=f"prefill and decode run different versions: {', '.join(differ)}"
        if differ
        else f"both nodes run {', '.join(f'{name} {mine[name]}' for name in both)}",
        remedy=Remedy(text="Install the same NIXL wheel on both nodes; vLLM compares only itself, not NIXL.")
        if differ
        else None,
        evidence=facts.evidence,
        code="versions_differ" if differ else None,
    )


def _lane(lane: Lane) -> str:
    more = [format_rate(lane.bytes_per_second)] if lane.bytes_per_second else []
    more += [f"MTU {lane.mtu}"] if lane.mtu and not lane.local else []
    return f"{lane.label} ({', '.join(more)})" if more else lane.label


def _settings(facts: TwoNodeFacts) -> tuple[str, ...]:
    assert facts.remote is not None
    found = []
    mine, theirs = ("decode", "prefill") if facts.role == "connect" else ("prefill", "decode")
    for role, node in ((mine, facts.mine), (theirs, facts.remote)):
        ports = ", ".join(
            f"{p.device}:{p.port} {p.link_layer or ''}".strip() for p in node.host.rdma if p.active
        )
        env = ", ".join(f"{k}={v}" for k, v in sorted(node.host.environment.items()) if k.startswith("UCX_"))
        found.append(
            f"{role}, {node.peer_hostname}: {ports or 'no active RDMA port'}; {env or 'no UCX variable in its environment'}"
        )
    return tuple(found)


def _active(host: HostFacts) -> bool:
    return any(port.active for port in host.rdma)


def describe_seen(seen: Sequence[OperationSeen]) -> list[dict[str, object]]:
    """Transports and lanes for a report's ``result``."""
    return [
        {"operation": op.operation, "label": op.transport.label, "emulated": op.transport.emulated, "lanes": msgspec.to_builtins(op.lanes)}
        for op in seen
    ]  # fmt: skip


RULES: tuple[Rule[TwoNodeFacts], ...] = (
    Rule("KVP230", "two-node-session", met),
    Rule("KVP231", "two-hosts", one_host),
    Rule("KVP232", "network-transport", network),
    Rule("KVP233", "roce-gid", gids),
    Rule("KVP234", "same-versions", same_versions),
)
