"""The network devices that UCX used, from the lanes of its protocol tables: ``50% on rc_mlx5/mlx5_0:1 and ...``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kvprobe.models.host import HostFacts, RdmaPort
from kvprobe.models.two_nodes import NetDevice

_LANE = re.compile(r"([a-z][a-z0-9_]*)/([A-Za-z0-9_.@-]+(?::\d+)?)")
_LOCAL = ("cma", "knem", "xpmem", "sysv", "posix", "self", "cuda_ipc", "cuda_copy", "gdr_copy")


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A transport on a device, with what the host says of the device."""

    transport: str
    device: str
    rdma: bool = False
    local: bool = False
    """Shared memory and its kind: within one host."""
    link_layer: str | None = None
    gid_types: dict[str, str] = {}
    """GID index -> ``RoCE v2`` ...; only with RDMA."""
    bytes_per_second: float | None = None
    """Nominal, one direction; None: not known (virtual devices)."""
    mtu: int | None = None

    @property
    def label(self) -> str:
        kind = {"Ethernet": "RoCE", "InfiniBand": "InfiniBand"}.get(self.link_layer or "", "")
        return " ".join(part for part in (f"{self.transport}/{self.device}", kind) if part)


def lanes(via: str, host: HostFacts, network: Sequence[NetDevice]) -> tuple[Lane, ...]:
    """The lanes that ``via`` names, in order, each once."""
    found = {}
    for transport, device in _LANE.findall(via):
        port = _port(device, host)
        net = next((d for d in network if d.name == device), None)
        found[transport, device] = Lane(
            transport=transport,
            device=device,
            rdma=port is not None,
            local=transport in _LOCAL or device == "lo",
            link_layer=port.link_layer if port else None,
            gid_types=port.gid_types if port else {},
            bytes_per_second=port.bytes_per_second if port else net.bytes_per_second if net else None,
            mtu=net.mtu if net else None,
        )
    return tuple(found.values())


def _port(device: str, host: HostFacts) -> RdmaPort | None:
    name, _, number = device.partition(":")
    return next((p for p in host.rdma if p.device == name and (not number or p.port == int(number))), None)


def nominal_rate(found: Sequence[Lane]) -> float | None:
    """Of all lanes together; None when one of them is not known."""
    rates = [lane.bytes_per_second for lane in found]
    return sum(r for r in rates if r) if rates and all(rates) else None
