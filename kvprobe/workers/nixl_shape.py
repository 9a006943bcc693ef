"""A shape: how the registered regions are cut into blocks, with the descriptor lists prepared for it."""

from __future__ import annotations

import re
from typing import Any

from kvprobe.workers.base import WorkerFailure

Ids = list[list[int]]
"""Block ids, a list per group."""


class Group:
    """``regions`` regions from number ``first`` on, each cut into ``pool_blocks`` blocks of ``descriptor_bytes``.

    With a ``stride`` the blocks are that far apart, and ``descriptor_bytes`` from ``offset`` on is the piece of each
    that moves.
    """

    def __init__(self, spec: dict[str, Any], first: int) -> None:
        self.regions: int = spec["regions"]
        self.descriptor_bytes: int = spec["descriptor_bytes"]
        self.pool_blocks: int = spec["pool_blocks"]
        self.stride: int = spec.get("stride", self.descriptor_bytes)
        self.offset: int = spec.get("offset", 0)
        self.first = first
        if self.descriptor_bytes % 4:
            raise WorkerFailure(f"Blocks of {self.descriptor_bytes} bytes are not a multiple of 4.")

    def rows(self, addresses: list[int], device: int) -> list[tuple[int, int, int, int, int]]:
        """Strided descriptors ``(address, length, device, stride, count)``, one a region."""
        mine = addresses[self.first : self.first + self.regions]
        return [
            (address + self.offset, self.descriptor_bytes, device, self.stride, self.pool_blocks)
            for address in mine
        ]


class Shape:
    """The groups of one block size and layout."""

    def __init__(self, specs: list[dict[str, Any]], first_of_set: list[int]) -> None:
        self.groups = [Group(spec, first_of_set[spec["set"]]) for spec in specs]
        self.local: Any = None
        self.remote: Any = None

    def prepare(
        self, agent: Any, version: str, name: str, addresses: list[int], device: int, segment: str
    ) -> Any:
        """A prepared descriptor list over every block of every region; strided from NIXL 1.5 on, as vLLM 0.33."""
        import numpy as np

        rows = [row for group in self.groups for row in group.rows(addresses, device)]
        if tuple(int(p) for p in re.findall(r"\d+", version)[:2]) >= (1, 5):
            return agent.prep_xfer_dlist(name, np.array(rows, dtype=np.uint64), segment)
        flat = [(a + i * stride, size, dev) for a, size, dev, stride, count in rows for i in range(count)]
        return agent.prep_xfer_dlist(name, np.array(flat, dtype=np.uint64), segment)

    def indices(self, ids: Ids) -> Any:
        """Descriptor indices of block ids, region by region."""
        import numpy as np

        parts, base = [], 0
        for group, blocks in zip(self.groups, ids, strict=True):
            if blocks and not 0 <= min(blocks) <= max(blocks) < group.pool_blocks:
                raise WorkerFailure(
                    f"Block ids {min(blocks)} to {max(blocks)} reach outside a pool of {group.pool_blocks}."
                )
            starts: Any = base + np.arange(group.regions, dtype=np.int32)[:, None] * group.pool_blocks
            parts.append((starts + np.asarray(blocks, dtype=np.int32)[None, :]).ravel())
            base += group.regions * group.pool_blocks
        return np.concatenate(parts).astype(np.int32)

    def bytes(self, blocks: list[int]) -> int:
        """Of ``blocks`` blocks a group."""
        return sum(g.regions * g.descriptor_bytes * n for g, n in zip(self.groups, blocks, strict=True))
