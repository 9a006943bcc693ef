"""What two nodes tell each other, and which requests a listening node grants. Bytes and seconds."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvprobe.models.host import HostFacts

PROTOCOL = 1
"""Of the conversation between two kvprobes; both sides must speak the same."""
DEFAULT_PORT = 18777
MAX_PIECES = 8_000_000
"""Descriptors that a peer may make this node prepare: about 2 GB of lists."""
LONGEST_SECONDS = 3600.0

# Loading a library, writing a file or starting a program is not for a peer to decide.
_ENV_NAME = re.compile(r"(?:UCX|NIXL)_[A-Z0-9_]+")
_ENV_REFUSED = re.compile(
    r"DIR|FILE|PATH|DEST|GDB|DEBUGGER|MAIL|HANDLE_ERRORS|PLUGIN|CONFIG|LOG_|VFS|DUMP|PROFILE|STATS|MODULE|PROTO_INFO|TELEMETRY|ETCD|MEMTRACK"
)
_ENV_VALUE = re.compile(r"[\x20-\x7e]{0,256}")
_BACKEND = frozenset({"num_threads", "num_workers"})


class NetDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface, from /sys/class/net."""

    name: str
    up: bool
    mtu: int | None = None
    bytes_per_second: float | None = None
    """Of a physical device; virtual ones report a made-up speed."""
    physical: bool = False


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two nodes."""

    peer_hostname: str
    kvprobe: str
    machine: str
    """A digest of the kernel's boot id: equal on both sides means one host."""
    host: HostFacts
    network: tuple[NetDevice, ...] = ()
    gpu: str | None = None
    """The GPU of this side; None: host memory only."""


class RegionSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    regions: Annotated[int, Meta(ge=1, le=100_000)]
    bytes: Annotated[int, Meta(ge=4, le=1 << 42)]


class ShapeGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    set: Annotated[int, Meta(ge=0)]
    regions: Annotated[int, Meta(ge=1, le=100_000)]
    descriptor_bytes: Annotated[int, Meta(ge=4, le=1 << 40, multiple_of=4)]
    pool_blocks: Annotated[int, Meta(ge=1, le=1 << 32)]


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement that the connecting side asks of the listening one."""

    kind: Literal["stream", "ucx", "nixl"]
    memory: Literal["dram", "vram", "staged"] = "dram"
    budget_seconds: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
    transfer_timeout_seconds: Annotated[float, Meta(gt=0, le=300)] = 15.0
    env: dict[str, str | None] = {}
    sets: Annotated[tuple[RegionSet, ...], Meta(max_length=64)] = ()
    shapes: Annotated[tuple[tuple[ShapeGroup, ...], ...], Meta(max_length=256)] = ()
    backend: dict[str, str] = {}
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=4, le=1 << 42, multiple_of=4)], ...], Meta(max_length=16)
    ] = ()
    samples: Annotated[int, Meta(ge=1, le=1000)] = 5
    operations: tuple[Literal["READ", "WRITE"], ...] = ("READ",)

    @property
    def bytes(self) -> int:
        """What this phase makes a side allocate; a stream passes through a small buffer."""
        piece = max(self.sizes, default=0) if self.kind == "ucx" else 0
        return sum(s.regions * s.bytes for s in self.sets) + piece


def refusal(phase: Phase, limit_bytes: int) -> str | None:
    """Why a node that lends ``limit_bytes`` does not grant the phase; None: it does."""
    wrong = next((why for n, v in phase.env.items() if (why := refused_variable(n, v))), None)
    if wrong:
        return wrong
    strange = sorted(set(phase.backend) - _BACKEND)
    if strange:
        return f"the backend parameter {strange[0][:40]!r} is not taken from a peer"
    if any(not re.fullmatch(r"[0-9]{1,2}", value) for value in phase.backend.values()):
        return "backend parameters must be small numbers"
    if phase.bytes > limit_bytes:
        return (
            f"memory: {phase.bytes / 2**20:,.0f} MiB were asked for, {limit_bytes / 2**20:,.0f} MiB are lent"
        )
    if phase.kind == "nixl" and not (phase.sets and phase.shapes):
        return "the request names no regions"
    for shape in phase.shapes:
        for group in shape:
            if group.set >= len(phase.sets) or group.regions > phase.sets[group.set].regions:
                return "a shape uses regions that the request does not have"
            if group.descriptor_bytes * group.pool_blocks > phase.sets[group.set].bytes:
                return "a shape reaches past the end of its regions"
    if sum(g.regions * g.pool_blocks for shape in phase.shapes for g in shape) > MAX_PIECES:
        return f"more than {MAX_PIECES:,} descriptors were asked for"
    return None


def refused_variable(name: str, value: str | None) -> str | None:
    """Why an environment variable is not taken from a peer; None: it is."""
    if not _ENV_NAME.fullmatch(name):
        return f"the variable {name[:60]!r} is not taken from a peer: only UCX_... and NIXL_... are"
    if _ENV_REFUSED.search(name):
        return (
            f"the variable {name[:60]} is not taken from a peer: it may name a file, a library or a program"
        )
    if value is not None and not _ENV_VALUE.fullmatch(value):
        return f"the value of {name[:60]} is too long or not plain text"
    return None


class SeriesTold(msgspec.Struct, frozen=True, kw_only=True):
    """One series of the connecting side's measurement, as the listening side reports it."""

    id: Annotated[str, Meta(max_length=80)]
    bytes: Annotated[int, Meta(ge=0)]
    median_seconds: float | None = None
    samples: Annotated[int, Meta(ge=0)] = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the connecting side tells the listening one at the end."""

    transports: dict[Literal["READ", "WRITE"], Annotated[str, Meta(max_length=200)]] = {}
    """Operation -> the transport observed."""
    vias: dict[Literal["READ", "WRITE"], Annotated[str, Meta(max_length=400)]] = {}
    """Operation -> UCX's own words for the lanes."""
    series: Annotated[tuple[SeriesTold, ...], Meta(max_length=256)] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the nodes did not come together, or lost each other."""

    code: str
    reason: str
    remedy: str = ""


class PhaseRun(msgspec.Struct, frozen=True, kw_only=True):
    """One phase that the listening side was asked for."""

    kind: str
    bytes: int
    memory: str
    refused: str | None = None
    error: str | None = None
    """How this side's worker ended; None: in order."""
    via: dict[str, str] = {}
    """Operation -> lanes, from this side's own protocol tables."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a listening node."""

    remote: NodeFacts
    phases: tuple[PhaseRun, ...] = ()
    summary: Summary | None = None
    failure: Failure | None = None


class Listened(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that happened at a listening node."""

    address: str
    sessions: tuple[Served, ...] = ()
    turned_away: dict[str, int] = {}
    """Code -> connections that were not served: ``wrong_token``, ``not_kvprobe``, ``peer_silent`` ..."""
    failure: Failure | None = None
