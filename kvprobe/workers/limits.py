"""Limits of this process that make UCX fail with an error that does not name them."""

from __future__ import annotations

import os
import resource

_SHM_LEAST_BYTES = 4 * 1024 * 1024


def locked_memory_hint(size_bytes: int) -> str | None:
    """What to do if this process may not lock so much memory, as RDMA registration needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= size_bytes:
        return None
    return f"This process may lock only {soft // 1024:,} KiB of memory (ulimit -l); RDMA needs all of it: --ulimit memlock=-1 for docker, LimitMEMLOCK=infinity for systemd."


def shared_memory_hint() -> str | None:
    """What to do if /dev/shm is full, where UCX's shared-memory transports put their queues."""
    try:
        place = os.statvfs("/dev/shm")
    except OSError:
        return "There is no /dev/shm here, which UCX's shared-memory transports need."
    free = place.f_bavail * place.f_frsize
    if free >= _SHM_LEAST_BYTES:
        return None
    return f"/dev/shm has only {free // 1024:,} KiB free: remove what lies there, or start the container with --shm-size=8g or --ipc=host."
