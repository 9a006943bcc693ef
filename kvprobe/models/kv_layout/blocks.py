"""Block sizes and the groups of vLLM's block pool."""

from __future__ import annotations

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.types import CacheGroup, LayerGroup, Transfer

DEFAULT_BLOCK = 16


def arrange(context: Context, groups: list[LayerGroup]) -> tuple[int, tuple[CacheGroup, ...], Transfer]:
    """(block size, cache groups, whether the connector moves them)."""
    block = context.options.block_size or DEFAULT_BLOCK
    return block, tuple(_uniform(group, block) for group in groups), Transfer()


def _uniform(group: LayerGroup, block: int) -> CacheGroup:
    return CacheGroup(
        kind=group.kind,
        layers=group.layers,
        block_size_tokens=block,
        page_bytes=block * group.bytes_per_token_per_layer,
        regions=group.count,
    )
