"""A fact and where it came from: the only thing models and rules may look at."""

from __future__ import annotations

import enum
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Origin(enum.Enum):
    """How a value came to be known. A replayed run keeps the origin and says so in ``run``."""

    MEASURED = "measured"  # timed or counted by kvprobe on this machine
    READ = "read"  # told by an interface: NVML, /proc, a config file, the environment
    PARSED = "parsed"  # taken out of text that another program printed
    ASSUMED = "assumed"  # nobody told; shown as assumed wherever it is used


class Evidence(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One fact: ``facts`` in base units (bytes, seconds, bytes per second), with its provenance."""

    id: str
    """Unique within a report, such as ``nixl-transfer``; findings refer to it."""
    kind: str
    """What sort of fact: ``gpus``, ``p2p``, ``model_config``, ``transfer`` ..."""
    origin: Origin
    source: str
    """A path, a command, an interface (``NVML``), or the reason for an assumption."""
    facts: T
    at: str | None = None
    """UTC time of the observation, ISO 8601; None for timeless inputs such as a file."""
    versions: dict[str, str] = {}
    """Versions of what produced it, such as ``{"nixl": "1.5.1", "ucx": "1.23.0"}``."""


AnyEvidence = Evidence[Any]
