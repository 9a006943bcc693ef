"""What the NIXL pull moves for a prompt: regions x blocks of which size, per decode rank.

A region is one registered piece of memory (a layer's cache); a descriptor is one block of one region.
NIXL joins descriptors that are neighbours on both sides, so a fresh server shows fewer in its log.
"""

from __future__ import annotations

import msgspec

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.types import CacheGroup, KvLayout, Refused


class TransferGroup(msgspec.Struct, frozen=True, kw_only=True):
    """From each of ``regions`` memory regions ``blocks`` blocks of ``descriptor_bytes`` bytes are moved."""

    name: str
    regions: int
    descriptor_bytes: int
    blocks: int

    @property
    def descriptors(self) -> int:
        return self.regions * self.blocks

    @property
    def bytes(self) -> int:
        return self.descriptors * self.descriptor_bytes


class DescriptorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that one decode rank pulls for one prompt, before NIXL merges neighbours."""

    prompt_tokens: int
    block_size_tokens: int
    groups: tuple[TransferGroup, ...]
    ranks: int = 1
    """Decode ranks that each pull as much."""
    blocks_per_cache_group: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    @property
    def descriptors(self) -> int:
        return sum(group.descriptors for group in self.groups)

    @property
    def bytes_all_ranks(self) -> int:
        return self.bytes * self.ranks


def plan(
    layout: KvLayout,
    prompt_tokens: int,
    *,
    block_size: int | None = None,
    packed: bool = False,
    cached_tokens: int = 0,
) -> DescriptorPlan:
    """The plan for ``prompt_tokens`` tokens of which the decode side already holds ``cached_tokens``.

    ``block_size`` asks what another block size would give (uniform caches only). ``packed``: all layers of a
    block lie together (vLLM's BLHNC layout), so a block is one descriptor. Raises Refused when the connector
    refuses the model, UsageError for impossible numbers.
    """
    if prompt_tokens < 1 or cached_tokens < 0:
        raise UsageError(f"A prompt of {prompt_tokens} tokens with {cached_tokens} cached is not possible.")
    if layout.transfer.status == "refused":
        raise Refused(layout.transfer.reason, layout.transfer.reason_code)
    groups = tuple(layout.cache_groups)
    if block_size is not None and block_size != layout.block_size_tokens:
        groups = tuple(_resized(layout, group, block_size) for group in groups)
    moved: list[TransferGroup] = []
    counts: list[int] = []
    for group in groups:
        blocks = -(-prompt_tokens // group.block_size_tokens)
        blocks -= min(cached_tokens, prompt_tokens) // group.block_size_tokens
        counts.append(blocks)
        moved.append(_group(group, blocks, packed))
    return DescriptorPlan(
        prompt_tokens=prompt_tokens,
        block_size_tokens=block_size or layout.block_size_tokens,
        groups=tuple(moved),
        ranks=layout.options.tp,
        blocks_per_cache_group=tuple(counts),
    )


def _group(group: CacheGroup, blocks: int, packed: bool) -> TransferGroup:
    if packed:
        return TransferGroup(
            name=group.kind, regions=1, descriptor_bytes=group.page_bytes * group.regions, blocks=blocks
        )
    return TransferGroup(
        name=group.kind, regions=group.regions, descriptor_bytes=group.page_bytes, blocks=blocks
    )


def _resized(layout: KvLayout, group: CacheGroup, block_size: int) -> CacheGroup:
    if len(layout.cache_groups) > 1 or group.page_bytes * block_size % group.block_size_tokens:
        raise Refused(
            f"{layout.model}: the block sizes of a mixed cache follow from each other.",
            "block_size_not_supported",
            "Resolve the layout again with that block size.",
        )
    page = group.page_bytes * block_size // group.block_size_tokens
    return msgspec.structs.replace(group, block_size_tokens=block_size, page_bytes=page)
