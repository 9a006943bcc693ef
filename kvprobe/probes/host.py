"""The facts of this host that decide the transport: namespaces, environment, limits, RDMA devices, packages."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

from kvprobe.errors import ProbeError
from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.host_environment import NAMES, PREFIXES, without_secrets
from kvprobe.models.host import HostFacts, RdmaPort
from kvprobe.probes.packages import installed
from kvprobe.system import System

__all__ = ["HostFacts", "RdmaPort", "look"]

_PACKAGES = (
    "vllm", "nixl", "nixl-cu12", "nixl-cu13", "torch", "numpy", "ucxx-cu12", "ucxx-cu13", "libucx-cu12", "libucx-cu13",
    "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "lmcache", "flashinfer-python", "nvidia-ml-py",
)  # fmt: skip
_INFINIBAND = "/sys/class/infiniband"
_RATE = re.compile(r"^([\d.]+) Gb/sec")
_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_GID_LIMIT = 32
_CGROUP_WORDS = {
    "kubepods": "kubernetes",
    "docker": "docker",
    "libpod": "podman",
    "lxc": "lxc",
    "containerd": "container",
}


def look(system: System) -> Evidence[HostFacts]:
    """Everything that can be had without privileges; what the kernel does not tell stays None."""
    environment = _environment(system)
    facts = HostFacts(
        environment=environment,
        packages=installed(system, _PACKAGES),
        rdma=_rdma(system),
        imex_channels=tuple(system.list_dir("/dev/nvidia-caps-imex-channels")),
        gpudirect_modules=tuple(
            m
            for m in ("nvidia_peermem", "nv_peer_mem", "gdrdrv")
            if system.path_kind(f"/sys/module/{m}") == "dir"
        ),
        numa_nodes={
            node: _text(system, f"/sys/devices/system/node/{node}/cpulist") or ""
            for node in system.list_dir("/sys/devices/system/node")
            if re.fullmatch(r"node\d+", node)
        },
        ptrace_scope=_number(system, "/proc/sys/kernel/yama/ptrace_scope"),
        cpu_quota=_quota(_text(system, "/sys/fs/cgroup/cpu.max")),
        container=_container(system, environment),
        **_process(system),
    )
    return Evidence(
        id="host",
        kind="host",
        origin=Origin.READ,
        source="/proc, /sys, environment, package metadata",
        facts=facts,
        at=system.now().isoformat(timespec="seconds"),
        versions=facts.packages,
    )


def _environment(system: System) -> dict[str, str]:
    def seen() -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if k.startswith(PREFIXES) or k in NAMES}
        # Before it can reach a recording.
        return without_secrets(mine)

    return dict(system.observe("environ", "transport", seen))


def _process(system: System) -> dict[str, Any]:
    """What only this process can ask: namespace, limits, affinity, file systems."""

    def seen() -> dict[str, Any]:
        home = os.environ.get("HOME")
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        try:
            shm = os.statvfs("/dev/shm")
            sizes = {
                "shm_total_bytes": shm.f_frsize * shm.f_blocks,
                "shm_free_bytes": shm.f_frsize * shm.f_bavail,
            }
        except OSError:
            sizes = {}
        try:
            namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  Path.readlink would take the target for a path
        except OSError:
            namespace = None
        return {
            "pid_namespace": namespace,
            "kernel": os.uname().release,
            "hypervisor": _hypervisor(),
            "cores": len(os.sched_getaffinity(0)),
            "memlock_bytes": None if soft == resource.RLIM_INFINITY else soft,
            "memlock_unlimited": soft == resource.RLIM_INFINITY,
            "home_readable": None if not home else os.access(home, os.R_OK | os.X_OK),
            **sizes,
        }

    return dict(system.observe("process", None, seen))


def _rdma(system: System) -> tuple[RdmaPort, ...]:
    ports = []
    for device in system.list_dir(_INFINIBAND):
        base = f"{_INFINIBAND}/{device}"
        names = tuple(system.list_dir(f"{base}/device/net"))
        numa = _number(system, f"{base}/device/numa_node")
        for port in system.list_dir(f"{base}/ports"):
            at = f"{base}/ports/{port}"
            rate = _RATE.match(_text(system, f"{at}/rate") or "")
            ports.append(
                RdmaPort(
                    device=device,
                    port=int(port),
                    state=(_text(system, f"{at}/state") or "unknown").split(":")[-1].strip(),
                    bytes_per_second=float(rate[1]) * 1e9 / 8 if rate else None,
                    link_layer=_text(system, f"{at}/link_layer"),
                    gid_types=_gids(system, at),
                    net_devices=names,
                    numa_node=numa if numa is not None and numa >= 0 else None,
                )
            )
    return tuple(ports)


def _gids(system: System, at: str) -> dict[str, str]:
    """Types of the GIDs that are set. The addresses themselves stay out: a report needs the index and the type."""
    found = {}
    for index in system.list_dir(f"{at}/gid_attrs/types")[:_GID_LIMIT]:
        kind = _text(system, f"{at}/gid_attrs/types/{index}")

        def is_set(path: str = f"{at}/gids/{index}") -> bool:
            try:
                return Path(path).read_text().strip() not in ("", _ZERO_GID)
            except OSError:
                return False

        if kind and system.observe("gid", f"{at}/gids/{index}", is_set):
            found[index] = kind
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _container(system: System, environment: dict[str, str]) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if system.path_kind("/run/.containerenv") != "absent":
        return "podman"
    if system.path_kind("/.dockerenv") != "absent":
        return "docker"
    told = _text(system, "/proc/1/cgroup") or ""
    return next((name for word, name in _CGROUP_WORDS.items() if word in told), None)


def _hypervisor() -> str | None:
    """The maker of a virtual machine; None on bare metal."""

    def read(path: str) -> str:
        try:
            return Path(path).read_text(errors="replace").strip()
        except OSError:
            return ""

    if not re.search(r"^flags\s*:.*\bhypervisor\b", read("/proc/cpuinfo"), re.MULTILINE):
        return None
    parts = [read(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return " ".join(part for part in parts if part) or "unknown"


def _quota(text: str | None) -> float | None:
    """cgroup v2 ``cpu.max``: ``200000 100000`` is two cores, ``max 100000`` no limit."""
    parts = (text or "").split()
    if len(parts) != 2 or not all(p.isdecimal() for p in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _text(system: System, path: str) -> str | None:
    try:
        return system.read_text(path).strip()
    except ProbeError:
        return None


def _number(system: System, path: str) -> int | None:
    text = _text(system, path) or ""
    return int(text) if re.fullmatch(r"-?\d+", text) else None
