"""What a listening node grants, and which devices UCX's lanes name."""

from __future__ import annotations

import msgspec
import pytest

from kvprobe.models.host import HostFacts, RdmaPort
from kvprobe.models.lanes import lanes, nominal_rate
from kvprobe.models.two_nodes import NetDevice, Phase, refusal, refused_variable

MIB = 1024**2
GOOD = {
    "kind": "nixl", "memory": "dram", "budget_seconds": 10.0, "env": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": None},
    "sets": [[4, MIB]], "shapes": [[[0, 4, 4096, 256]]], "backend": {"num_threads": "4"},
}  # fmt: skip


def phase(**changes: object) -> Phase:
    told = {**GOOD, **changes}
    told["sets"] = [{"regions": r, "bytes": b} for r, b in told["sets"]]  # type: ignore[attr-defined]
    keys = ("set", "regions", "descriptor_bytes", "pool_blocks")
    told["shapes"] = [[dict(zip(keys, g, strict=True)) for g in s] for s in told["shapes"]]  # type: ignore[attr-defined]
    return msgspec.convert(told, Phase)


def test_a_fitting_request_is_granted() -> None:
    assert refusal(phase(), 4 * MIB) is None and phase().bytes == 4 * MIB


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"sets": [[5, MIB]], "shapes": [[[0, 5, 4096, 256]]]},
            "memory: 5 MiB were asked for, 4 MiB are lent",
        ),
        ({"shapes": [[[0, 4, 4096, 257]]]}, "past the end"),
        ({"shapes": [[[1, 4, 4096, 256]]]}, "does not have"),
        ({"shapes": [[[0, 5, 4096, 256]]]}, "does not have"),
        ({"shapes": [[[0, 4, 4, 262144]]] * 8}, "descriptors"),
        ({"shapes": []}, "no regions"),
        ({"env": {"LD_PRELOAD": "x.so"}}, "only UCX_... and NIXL_..."),
        ({"env": {"NIXL_PLUGIN_DIR": "/tmp"}}, "a library or a program"),
        ({"env": {"UCX_TLS": "tcp\n"}}, "plain text"),
        ({"backend": {"plugin": "1"}}, "not taken"),
        ({"backend": {"num_threads": "1000"}}, "small numbers"),
    ],
)
def test_everything_else_is_refused_with_its_reason(changes: dict[str, object], says: str) -> None:
    assert says in (refusal(phase(**changes), 4 * MIB) or "granted")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "shell"}, {"budget_seconds": -1.0}, {"budget_seconds": 1e9}, {"memory": "disk"}, {"extra": 1},
        {"sets": [[0, MIB]]}, {"sets": [[4, -1]]}, {"shapes": [[[0, 4, 4098, 1]]]}, {"sizes": [5]},
        {"operations": ["DELETE"]}, {"budget_seconds": "10"},
    ],
)  # fmt: skip
def test_malformed_requests_do_not_get_that_far(changes: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        phase(**changes)


@pytest.mark.parametrize("name", ["UCX_LOG_FILE", "UCX_GDB_COMMAND", "UCX_MODULE_DIR", "NIXL_CONFIG_FILE", "UCX_PROTO_INFO_DIR", "UCX_HANDLE_ERRORS", "KVPROBE_TOKEN", "ucx_tls", "UCX_TLS=x"])  # fmt: skip
def test_variables_that_reach_files_and_programs_stay_out(name: str) -> None:
    assert refused_variable(name, "x")


@pytest.mark.parametrize("name", ["UCX_TLS", "UCX_NET_DEVICES", "UCX_IB_GID_INDEX", "UCX_RMA_PPLN_ENABLE", "UCX_MAX_RMA_RAILS"])  # fmt: skip
def test_variables_that_decide_the_transport_go_through(name: str) -> None:
    assert refused_variable(name, "x") is None and refused_variable(name, None) is None


PORT = RdmaPort(device="mlx5_0", port=1, state="ACTIVE", bytes_per_second=50e9, link_layer="Ethernet", gid_types={"3": "RoCE v2"})  # fmt: skip
NET = (NetDevice(name="eth0", up=True, mtu=9000, bytes_per_second=12.5e9, physical=True),)


def test_lanes_carry_what_the_host_says_of_the_device() -> None:
    host = HostFacts(
        rdma=(PORT, msgspec.structs.replace(PORT, device="mlx5_1", link_layer="InfiniBand", gid_types={}))
    )
    found = lanes("50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1", host, NET)
    assert [(lane.device, lane.rdma, lane.link_layer) for lane in found] == [("mlx5_0:1", True, "Ethernet"), ("mlx5_1:1", True, "InfiniBand")]  # fmt: skip
    assert found[0].label == "rc_mlx5/mlx5_0:1 RoCE" and found[0].gid_types == {"3": "RoCE v2"}
    assert nominal_rate(found) == 100e9
    (tcp,) = lanes("tcp/eth0", host, NET)
    assert (tcp.rdma, tcp.local, tcp.mtu, tcp.bytes_per_second) == (False, False, 9000, 12.5e9)


def test_what_is_not_known_stays_unknown() -> None:
    (lane,) = lanes("tcp/veth7", HostFacts(), ())
    assert lane.bytes_per_second is None and nominal_rate((lane,)) is None and nominal_rate(()) is None
    (local,) = lanes("cma/memory", HostFacts(), ())
    assert local.local and lanes("", HostFacts(), ()) == ()
