from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvprobe.finding import Status
from kvprobe.formats.host_environment import allows_cuda_ipc, expandable_segments, without_secrets
from kvprobe.models.host import HostFacts, RdmaPort
from kvprobe.policy import parse_policy
from kvprobe.probes import host
from kvprobe.rules.base import run_rules
from kvprobe.rules.host import RULES, HostView
from kvprobe.system import System

POLICY = parse_policy(
    (Path(__file__).parent.parent.parent / "checks/profiles/default.toml").read_text(), "default"
)


class Tree(System):
    """The live System, with /sys/class/infiniband (and others) in a directory of the test's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _there(self, path: str | Path) -> str:
        text = str(path)
        return (
            str(self.root) + text
            if text.startswith(("/sys/class/infiniband", "/sys/fs/cgroup", "/run", "/.docker"))
            else text
        )

    def list_dir(self, path: str | Path) -> list[str]:
        return super().list_dir(self._there(path))

    def read_text(self, path: str | Path, **options: Any) -> str:
        return super().read_text(self._there(path), **options)

    def path_kind(self, path: str | Path) -> str:
        return super().path_kind(self._there(path))


def rdma_tree(root: Path, state: str = "4: ACTIVE") -> None:
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "gid_attrs/types").mkdir(parents=True)
    (root / "sys/class/infiniband/mlx5_0/device/net/eth2").mkdir(parents=True)
    for name, text in {
        "state": state, "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet",
        "gid_attrs/types/0": "IB/RoCE v1", "gid_attrs/types/3": "RoCE v2",
    }.items():  # fmt: skip
        (port / name).write_text(text + "\n")
    (root / "sys/class/infiniband/mlx5_0/device/numa_node").write_text("-1\n")


def test_this_machine() -> None:
    facts = host.look(System()).facts
    assert facts.cores >= 1
    assert facts.pid_namespace is None or facts.pid_namespace.startswith("pid:[")
    assert facts.memlock_unlimited or facts.memlock_bytes is not None
    assert "nvidia-ml-py" in facts.packages
    assert facts.kernel


def test_rdma_devices(tmp_path: Path) -> None:
    rdma_tree(tmp_path)
    (port,) = host.look(Tree(tmp_path)).facts.rdma
    assert (port.device, port.port, port.state, port.link_layer) == ("mlx5_0", 1, "ACTIVE", "Ethernet")
    assert port.bytes_per_second == 50e9
    assert (port.net_devices, port.numa_node) == (("eth2",), None)


def test_quota_and_container(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").write_text("")
    facts = host.look(Tree(tmp_path)).facts
    assert (facts.cpu_quota, facts.container) == (1.5, "podman")


def test_no_secret_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", "http://root:hunter2@192.0.2.7:2379")
    text = repr(host.look(System()).facts)
    assert "very-secret" not in text and "hunter2" not in text
    assert without_secrets({"HF_TOKEN": "x", "UCX_TLS": "tcp"}) == {"HF_TOKEN": "(set)", "UCX_TLS": "tcp"}


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (None, True), ("", True), ("all", True), ("cuda_ipc,cuda_copy,tcp", True), ("cuda,rc", True), ("tcp,cuda_copy", False),
        ("^cuda_ipc", False), ("^tcp", True), ("^cuda", False), ("rc,sm", False), ("^tcp,cuda_ipc", False),
    ],
)  # fmt: skip
def test_ucx_tls(value: str | None, allowed: bool) -> None:
    assert allows_cuda_ipc(value) is allowed


def test_expandable_segments_under_both_names() -> None:
    assert expandable_segments({}) is None
    assert (
        expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"})
        == "PYTORCH_CUDA_ALLOC_CONF"
    )
    assert expandable_segments({"PYTORCH_ALLOC_CONF": "expandable_segments:false"}) is None
    both = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:False",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    assert expandable_segments(both) is None


def judged(gpus: bool = True, **facts: Any) -> dict[str, Status]:
    values: dict[str, Any] = {
        "cores": 16,
        "shm_total_bytes": 2**33,
        "shm_free_bytes": 2**33,
        "memlock_unlimited": True,
    }
    found = run_rules(RULES, HostView(host=HostFacts(**{**values, **facts}), gpus=gpus), POLICY)
    return {f.id: f.status for f in found}


def test_a_good_host_has_no_complaint() -> None:
    assert set(judged().values()) == {Status.PASS}


def test_each_trap_is_named() -> None:
    up = RdmaPort(device="mlx5_0", port=1, state="ACTIVE")
    down = RdmaPort(device="mlx5_0", port=1, state="DOWN")
    assert judged(environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})["KVP130"] is Status.WARN
    assert judged(environment={"UCX_TLS": "tcp,cuda_copy"})["KVP131"] is Status.WARN
    assert judged(shm_free_bytes=2**26)["KVP132"] is Status.WARN
    assert judged(rdma=(up,), memlock_unlimited=False, memlock_bytes=2**16)["KVP133"] is Status.WARN
    assert judged(rdma=(up,))["KVP133"] is Status.PASS
    assert judged(rdma=(down,))["KVP134"] is Status.WARN
    assert judged(home_readable=False)["KVP135"] is Status.WARN
    assert judged(cpu_quota=1.5)["KVP136"] is Status.WARN


def test_traps_of_gpu_memory_do_not_concern_a_host_without_gpus() -> None:
    env = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "UCX_TLS": "tcp"}
    found = judged(gpus=False, environment=env)
    assert "KVP130" not in found and "KVP131" not in found


def test_every_rule_has_its_page() -> None:
    docs = Path(host.__file__).parent.parent / "docs"
    for rule in RULES:
        assert (docs / f"{rule.id}.md").read_text().startswith(f"# {rule.id} {rule.name}\n")
        assert rule.claim.startswith(f"{rule.id}: ")
