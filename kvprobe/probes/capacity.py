"""How many cores and how much memory this process may use."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import psutil

from kvprobe.evidence import Evidence, Origin
from kvprobe.system import System

_SPINNING_CORES = 4


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Of this process: its CPU affinity, and the memory that can be had without swapping."""

    cores: int
    memory_available_bytes: int

    @property
    def progress_thread(self) -> bool:
        """Whether NIXL may keep its progress threads in host memory, as vLLM has them.

        Each one spins a core; with fewer cores than spinners it costs 3 to 4 times the bandwidth.
        """
        return self.cores >= _SPINNING_CORES


def look(system: System) -> Evidence[Capacity]:
    """Cores by affinity (a container's cpuset counts), available memory by the kernel's estimate."""

    def seen() -> dict[str, Any]:
        return {
            "cores": len(os.sched_getaffinity(0)),
            "memory_available_bytes": psutil.virtual_memory().available,
        }

    facts = msgspec.convert(system.observe("capacity", None, seen), Capacity)
    return Evidence(
        id="capacity", kind="capacity", origin=Origin.READ, source="/proc/meminfo, CPU affinity", facts=facts
    )
