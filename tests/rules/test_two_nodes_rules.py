"""What is said of two nodes' network: RDMA left unused, RoCE addresses, versions, one host taken for two."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvprobe.finding import Finding, Status
from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.host import HostFacts, RdmaPort
from kvprobe.models.lanes import lanes
from kvprobe.models.two_nodes import Failure, NodeFacts
from kvprobe.policy import parse_policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.two_nodes import RULES, OperationSeen, TwoNodeFacts

POLICY = parse_policy(
    (Path(__file__).parent.parent.parent / "checks/profiles/default.toml").read_text(), "default"
)
PORT = RdmaPort(device="mlx5_0", port=1, state="ACTIVE", bytes_per_second=50e9, link_layer="Ethernet", gid_types={"0": "IB/RoCE v1", "3": "RoCE v2"})  # fmt: skip
A = NodeFacts(peer_hostname="node-a", kvprobe="1", machine="a", host=HostFacts(rdma=(PORT,)))
B = msgspec.structs.replace(A, peer_hostname="node-b", machine="b")
RDMA = ("zero-copy", "rc_mlx5/mlx5_0:1", "rc_mlx5")
TCP = ("software emulation", "tcp/eth0", "tcp")
CMA = ("zero-copy", "cma/memory", "cma")


def judged(how: tuple[str, str, str] | None = RDMA, mine: NodeFacts = B, remote: NodeFacts | None = A, **more: object) -> dict[str, Finding]:  # fmt: skip
    seen: tuple[OperationSeen, ...] = ()
    if how is not None:
        transport = Transport(how=how[0], via=how[1], name=how[2], emulated="emulation" in how[0], share=1.0)
        seen = (OperationSeen(operation="READ", transport=transport, lanes=lanes(how[1], mine.host, ())),)
    versions = {role: {"NIXL": "1.5.1", "UCX": "1.23.0"} for role in ("prefill", "decode")}
    told = {"role": "connect", "done": 2, "seen": seen, "versions": versions, **more}
    return {f.id: f for f in run_rules(RULES, TwoNodeFacts(mine=mine, remote=remote, **told), POLICY)}  # type: ignore[arg-type]


def test_two_good_nodes() -> None:
    found = judged()
    assert {f.status for f in found.values()} == {Status.PASS} and list(found) == ["KVP230", "KVP231", "KVP232", "KVP233", "KVP234"]  # fmt: skip
    assert "node-a (prefill) and node-b (decode)" in found["KVP230"].title
    assert "rc_mlx5/mlx5_0:1 RoCE (50.0 GB/s)" in found["KVP232"].title
    assert "3 (RoCE v2)" in found["KVP233"].title and "UCX_IB_GID_INDEX=auto" in found["KVP233"].title


def test_rdma_that_is_there_and_not_used_is_a_fault() -> None:
    found = judged(TCP)["KVP232"]
    assert (
        found.status is Status.FAIL and found.code == "rdma_not_used" and "active RDMA ports" in found.title
    )
    assert any("mlx5_0:1" in note for note in found.notes)


def test_without_rdma_on_one_side_tcp_is_a_warning() -> None:
    bare = msgspec.structs.replace(A, host=HostFacts())
    found = judged(TCP, remote=bare)["KVP232"]
    assert found.status is Status.WARN and found.code == "no_rdma"


def test_one_host_is_never_taken_for_a_network() -> None:
    twin = msgspec.structs.replace(A, machine="b")
    found = judged(CMA, remote=twin)
    assert found["KVP231"].code == "one_host" and "cma" in found["KVP231"].title
    assert found["KVP232"].status is Status.PASS
    # A digest that could not be read proves nothing in either direction.
    unread = msgspec.structs.replace(A, machine="")
    assert "KVP231" not in judged(remote=unread)


def test_roce_v1_does_not_cross_a_router() -> None:
    old = msgspec.structs.replace(PORT, gid_types={"0": "IB/RoCE v1"})
    mine = msgspec.structs.replace(B, host=HostFacts(rdma=(old,), environment={"UCX_IB_GID_INDEX": "3"}))
    found = judged(mine=mine)["KVP233"]
    assert (
        found.status is Status.WARN and found.code == "no_rocev2_gid" and "UCX_IB_GID_INDEX=3" in found.title
    )
    infiniband = msgspec.structs.replace(PORT, link_layer="InfiniBand", gid_types={})
    assert "KVP233" not in judged(mine=msgspec.structs.replace(B, host=HostFacts(rdma=(infiniband,))))


def test_unequal_versions_and_an_unseen_transport() -> None:
    mixed = {"prefill": {"NIXL": "1.4.0", "UCX": "1.23.0"}, "decode": {"NIXL": "1.5.1", "UCX": "1.23.0"}}
    found = judged(None, versions=mixed)
    assert found["KVP234"].status is Status.WARN and "NIXL 1.4.0 against 1.5.1" in found["KVP234"].title
    assert found["KVP232"].status is Status.UNKNOWN
    assert "KVP234" not in judged(versions={"decode": {"NIXL": "1.5.1"}})


@pytest.mark.parametrize("done", [0, 3])
def test_a_lost_peer_is_unknown_and_says_what_is_left(done: int) -> None:
    failure = Failure(code="peer_lost", reason="node-a:1 closed the connection.", remedy="Look there.")
    found = judged(None, remote=None, failure=failure, done=done, turned_away={"wrong_token": 2})["KVP230"]
    assert found.status is Status.UNKNOWN and found.code == "peer_lost" and found.remedy is not None
    assert ("3 series were measured" if done else "Nothing was measured") in found.remedy.text
    assert "2 wrong token" in found.notes[0]
