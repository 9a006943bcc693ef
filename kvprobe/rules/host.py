"""KVP130 to KVP136: what of the host takes the fast transport away before a byte has moved."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.host_environment import allows_cuda_ipc, expandable_segments
from kvprobe.models.host import HostFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes

_EVIDENCE = ("host",)
_SHM = "host_shm_free_bytes"
_MEMLOCK = "host_memlock_bytes"
_CORES = "host_cores"


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """The host, and whether GPUs take part: some traps concern VRAM only."""

    host: HostFacts
    gpus: bool = True


def allocator(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP130: PyTorch's expandable segments are off, so that UCX can export GPU memory over cuda_ipc."""
    name = expandable_segments(facts.host.environment)
    if name is None or not facts.gpus:
        return
    older = name == "PYTORCH_CUDA_ALLOC_CONF"
    yield Finding(
        id="KVP130",
        name="expandable-segments",
        status=Status.WARN,
        title=f"{name} has expandable segments on: cuda_ipc is silently lost",
        notes=("vLLM refuses to start a KV connector with it." if older else "vLLM's own check looks at the older name only, so it starts.",),
        remedy=Remedy(text="Unset it for both engines.", commands=(f"unset {name}",)),
        links=("https://github.com/ai-dynamo/nixl/issues/1754",),
        evidence=_EVIDENCE,
        code="expandable_segments_with_connector",
    )  # fmt: skip


def transports(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP131: UCX_TLS lets UCX use cuda_ipc."""
    value = facts.host.environment.get("UCX_TLS")
    if not facts.gpus or allows_cuda_ipc(value):
        return
    yield Finding(
        id="KVP131",
        name="ucx-tls",
        status=Status.WARN,
        title=f"UCX_TLS={value} excludes cuda_ipc: GPU memory falls to emulation over tcp",
        remedy=Remedy(
            text="Unset UCX_TLS, or add cuda_ipc and cuda_copy to it.", commands=("unset UCX_TLS",)
        ),
        evidence=_EVIDENCE,
    )


def shared_memory(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP132: /dev/shm has room for what vLLM and UCX put there."""
    free, limit = facts.host.shm_free_bytes, policy.threshold(_SHM)
    if free is None:
        return
    status = limit.status(free)
    yield Finding(
        id="KVP132",
        name="shared-memory",
        status=status,
        title=f"/dev/shm has {format_bytes(free)} free of {format_bytes(facts.host.shm_total_bytes or free)}",
        measured=Quantity(value=free, unit="B"),
        expected=Expected(min=limit.warn_below, unit="B", source=policy.cite(_SHM)),
        remedy=None
        if status is Status.PASS
        else Remedy(text="Start the container with more of it: --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory."),
        evidence=_EVIDENCE,
    )  # fmt: skip


def locked_memory(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP133: with RDMA, this process may lock as much memory as a KV cache needs."""
    host, limit = facts.host, policy.threshold(_MEMLOCK)
    if not any(port.active for port in host.rdma):
        return
    enough = (
        host.memlock_unlimited
        or host.memlock_bytes is None
        or limit.status(host.memlock_bytes) is Status.PASS
    )
    told = (
        "without limit"
        if host.memlock_unlimited or host.memlock_bytes is None
        else format_bytes(host.memlock_bytes)
    )
    yield Finding(
        id="KVP133",
        name="locked-memory",
        status=Status.PASS if enough else Status.WARN,
        title=f"this process may lock memory {told}" if enough else f"this process may lock only {told} of memory: RDMA registers the whole KV cache",
        measured=None if host.memlock_bytes is None else Quantity(value=host.memlock_bytes, unit="B"),
        expected=Expected(min=limit.warn_below, unit="B", source=policy.cite(_MEMLOCK)),
        remedy=None if enough else Remedy(text="Raise it: --ulimit memlock=-1 for docker, LimitMEMLOCK=infinity for systemd."),
        evidence=_EVIDENCE,
        code=None if enough else "memlock_limit",
    )  # fmt: skip


def rdma_ports(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP134: an RDMA device that is there has a port in state ACTIVE."""
    ports = facts.host.rdma
    if not ports:
        return
    up = [p for p in ports if p.active]
    told = ", ".join(f"{p.device}:{p.port} {_kind(p.link_layer)} {p.state}" for p in ports[:8])
    yield Finding(
        id="KVP134",
        name="rdma-ports",
        status=Status.PASS if up else Status.WARN,
        title=f"{len(up)} of {len(ports)} RDMA ports are ACTIVE ({told})",
        measured=Quantity(value=len(up), unit="ports"),
        remedy=None
        if up
        else Remedy(text="Two nodes would talk over TCP: check cables, switch and driver.", commands=("ibv_devinfo", "rdma link")),
        notes=tuple(f"{p.device}:{p.port} has RoCE GIDs {', '.join(f'{i} ({t})' for i, t in p.gid_types.items())}" for p in up if p.gid_types),
        evidence=_EVIDENCE,
    )  # fmt: skip


def _kind(link_layer: str | None) -> str:
    return {"Ethernet": "RoCE", "InfiniBand": "InfiniBand"}.get(link_layer or "", "RDMA")


def home(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP135: HOME can be read, where NIXL looks for its configuration."""
    if facts.host.home_readable is not False:
        return
    yield Finding(
        id="KVP135",
        name="home-readable",
        status=Status.WARN,
        title="HOME names a directory that this user cannot read: NIXL looks for $HOME/.nixl.cfg when it starts",
        remedy=Remedy(
            text="Set HOME to a directory of this user, or NIXL_CONFIG_FILE.", commands=("export HOME=/tmp",)
        ),
        evidence=_EVIDENCE,
    )


def cores(facts: HostView, policy: Policy) -> Iterable[Finding]:
    """KVP136: there are cores enough for two engines, each of whose NIXL agents keeps one busy."""
    host, limit = facts.host, policy.threshold(_CORES)
    usable = host.cores if host.cpu_quota is None else min(float(host.cores), host.cpu_quota)
    if not host.cores:
        return
    status = limit.status(usable)
    quota = f" (cgroup quota; {host.cores} by affinity)" if usable < host.cores else ""
    yield Finding(
        id="KVP136",
        name="cores",
        status=status,
        title=f"{usable:g} cores may be used{quota}; every NIXL agent with a progress thread keeps one busy",
        measured=Quantity(value=usable, unit="cores"),
        expected=Expected(min=limit.warn_below, unit="cores", source=policy.cite(_CORES)),
        remedy=None if status is Status.PASS else Remedy(text="Give the engines more cores; with fewer, transfers lose to the spinning threads."),
        evidence=_EVIDENCE,
    )  # fmt: skip


TRANSPORT_RULES: tuple[Rule[HostView], ...] = (
    Rule("KVP130", "expandable-segments", allocator),
    Rule("KVP131", "ucx-tls", transports),
    Rule("KVP134", "rdma-ports", rdma_ports),
)
"""Those that say something about the ways between GPUs; ``topo`` runs them."""

RULES: tuple[Rule[HostView], ...] = (
    *TRANSPORT_RULES,
    Rule("KVP132", "shared-memory", shared_memory),
    Rule("KVP133", "locked-memory", locked_memory),
    Rule("KVP135", "home-readable", home),
    Rule("KVP136", "cores", cores),
)
