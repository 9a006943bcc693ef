"""What the simulated deployment is told, remembers and counts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 16
LAYERS, BYTES_PER_BLOCK = 28, 32768


@dataclass
class Plan:
    """Delays in seconds, and faults by name (tests/simulator/README.md)."""

    prefill: float = 0.020
    prefill_per_token: float = 0.0
    transfer: float = 0.010
    transfer_per_token: float = 0.0
    schedule: float = 0.005
    step: float = 0.002
    first_contact: float = 0.0
    proxy: float = 0.0
    render: float = 0.004
    interference: float = 0.0
    """A decode step of a colocated server lasts this long while a prefill runs there."""
    faults: tuple[str, ...] = ()
    api_key: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    running: int = 0
    side_channel_host: str = "127.0.0.1"
    max_model_len: int = 32768
    tokens_only: bool = False


class FreeList:
    """KV blocks as vLLM hands them out without prefix caching: from the front, and back to it in reverse order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free = deque(range(1, 1 << 16))

    def take(self, count: int) -> list[int]:
        with self.lock:
            return [self.free.popleft() for _ in range(count)]

    def give(self, blocks: Sequence[int]) -> None:
        with self.lock:
            self.free.extendleft(blocks)


def pieces(remote: Sequence[int], local: Sequence[int]) -> int:
    """Descriptors a layer: NIXL merges neighbours that follow each other on both sides."""
    both = list(zip(remote, local, strict=False))
    return 1 + sum((b[0] - a[0], b[1] - a[1]) != (1, 1) for a, b in zip(both, both[1:], strict=False))


class State:
    """Shared by all roles of one deployment; every request is logged with the simulator's own clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lock = threading.Lock()
        self.log: list[dict[str, Any]] = []
        self.offered: dict[str, tuple[int, tuple[int, ...]]] = {}
        """Request id -> (tokens, prompt) that prefill (or a bidirectional decode) keeps for a reader."""
        self.side_channel_port = 0
        self.side_channel_bytes = b""
        self.contacts = 0
        self.counters: dict[str, dict[str, float]] = {}
        self.prefilling: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self.pools = {role: FreeList() for role in ("prefill", "decode", "colocated")}
        self.active: dict[str, int] = {}
        self.held: dict[str, list[int]] = {}
        """Request id -> blocks of prefill that no decode has read yet."""

    def has(self, fault: str) -> bool:
        return fault in self.plan.faults

    def count(self, role: str, name: str, amount: float = 1.0) -> None:
        with self.lock:
            mine = self.counters.setdefault(role, {})
            mine[name] = mine.get(name, 0.0) + amount

    def busy(self, role: str, change: int) -> None:
        with self.lock:
            self.active[role] = self.active.get(role, 0) + change

    def note(self, **fields: Any) -> dict[str, Any]:
        entry = dict(fields)
        with self.lock:
            self.log.append(entry)
        return entry

    def blocks(self, tokens: int) -> int:
        return -(-tokens // BLOCK)


def metrics_page(state: State, role: str) -> str:
    """The series that vLLM exposes and kvprobe reads; a role without a connector has no nixl series."""
    counted = state.counters.get(role, {})
    labels = 'engine="0",model_name="m"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} {state.plan.running}",
        f"vllm:num_requests_waiting{{{labels}}} 0",
        f'vllm:cache_config_info{{block_size="{BLOCK}",cache_dtype="auto",enable_prefix_caching="False",engine="0"}} 1',
    ]
    for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
        value = counted.get(source, 0.0)
        lines.append(f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {value}')
    if not state.has("no_connector"):
        for name in ("nixl_xfer_time_seconds", "nixl_post_time_seconds", "nixl_bytes_transferred", "nixl_num_descriptors"):  # fmt: skip
            lines.append(f"vllm:{name}_count{{{labels}}} {counted.get('transfers', 0.0)}")
            lines.append(f"vllm:{name}_sum{{{labels}}} {counted.get(name, 0.0)}")
        lines += [
            f"vllm:nixl_num_{name}_total{{{labels}}} {counted.get(name, 0.0)}"
            for name in ("failed_transfers", "kv_expired_reqs", "notifications_after_expiry")
        ]
    return "\n".join(lines) + "\n"
