"""What of a host decides the transport besides its GPUs."""

from __future__ import annotations

import msgspec


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    """One port of one RDMA device, from /sys/class/infiniband."""

    device: str
    port: int
    state: str
    """``ACTIVE``, ``DOWN``, ``INIT`` ...; ``unknown`` if the kernel does not tell."""
    bytes_per_second: float | None = None
    link_layer: str | None = None
    """``InfiniBand``, or ``Ethernet`` for RoCE."""
    gid_types: dict[str, str] = {}
    """GID index -> ``RoCE v2``, ``IB/RoCE v1``; only entries that are set."""
    net_devices: tuple[str, ...] = ()
    numa_node: int | None = None
    pci_bus: str | None = None

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes; None where the kernel does not tell."""

    environment: dict[str, str] = {}
    """Variables that decide the transport; secrets replaced."""
    packages: dict[str, str] = {}
    """Installed distributions that matter -> version; found without importing them."""
    pid_namespace: str | None = None
    """``pid:[4026531836]``; cuda_ipc needs both processes in one (or fabric handles)."""
    kernel: str | None = None
    ptrace_scope: int | None = None
    """Yama: 1 and more keeps UCX's cma from reading a process that did not allow it."""
    cores: int = 0
    """That this process may use (affinity)."""
    cpu_quota: float | None = None
    """Cores' worth of CPU time that the cgroup grants; None: no limit."""
    numa_nodes: dict[str, str] = {}
    """Node -> its CPUs."""
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    memlock_unlimited: bool = False
    home_readable: bool | None = None
    """NIXL looks for $HOME/.nixl.cfg; None: HOME is not set."""
    imex_channels: tuple[str, ...] = ()
    """Channels of multi-node NVLink that this container may use."""
    gpudirect_modules: tuple[str, ...] = ()
    """Of nvidia_peermem, nv_peer_mem and gdrdrv those that are loaded."""
    rdma: tuple[RdmaPort, ...] = ()
    container: str | None = None
    """``docker``, ``podman``, ``kubernetes``, ``lxc``, ``container``; None: no sign of one."""
    hypervisor: str | None = None
    """The machine's maker if the CPU says that it is virtual."""
