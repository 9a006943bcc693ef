"""What this node tells the other one about itself: host, network interfaces, and which machine it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from kvprobe import __version__
from kvprobe.evidence import Evidence, Origin
from kvprobe.models.two_nodes import NetDevice, NodeFacts
from kvprobe.probes import host
from kvprobe.system import System

_NET = Path("/sys/class/net")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def look(system: System, gpu: str | None = None) -> Evidence[NodeFacts]:
    """Read from /proc and /sys; nothing is measured."""
    seen = host.look(system)
    facts = NodeFacts(
        peer_hostname=system.hostname(),
        kvprobe=__version__,
        machine=str(system.observe("machine", None, _machine)),
        host=seen.facts,
        network=msgspec.convert(system.observe("network", None, _network), tuple[NetDevice, ...]),
        gpu=gpu,
    )
    return Evidence(
        id="node", kind="node", origin=Origin.READ, source="/proc, /sys", facts=facts, at=seen.at, versions=seen.versions
    )  # fmt: skip


def _machine() -> str:
    """Equal for all containers and namespaces of one running kernel, and of no use for anything else."""
    try:
        return hashlib.sha256(b"kvprobe" + _BOOT_ID.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _network() -> list[dict[str, Any]]:
    found = []
    for place in sorted(_NET.glob("*")):
        physical = (place / "device").exists()
        speed = _number(place / "speed")
        found.append(
            {
                "name": place.name,
                "up": _text(place / "operstate") in ("up", "unknown"),
                "mtu": _number(place / "mtu"),
                "bytes_per_second": speed * 1e6 / 8 if physical and speed and speed > 0 else None,
                "physical": physical,
            }
        )
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdecimal() else None
