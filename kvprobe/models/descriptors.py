"""What the NIXL pull moves for a prompt: regions x blocks of which size, per decode rank.

A region is one registered piece of memory (a layer's cache); a descriptor is one block of one region.
NIXL joins descriptors that are neighbours on both sides, so a fresh server shows fewer in its log.
"""

from __future__ import annotations

import msgspec

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.types import CacheGroup, KvLayout, Pages, Refused

MAX_PROMPT_TOKENS = 1 << 32


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
    bytes_all_ranks: int
    """What all decode ranks pull together."""
    blocks_per_cache_group: tuple[int, ...] = ()
    longer_than_model: bool = False

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    @property
    def descriptors(self) -> int:
        return sum(group.descriptors for group in self.groups)


def plan(
    layout: KvLayout,
    prompt_tokens: int,
    *,
    block_size: int | None = None,
    packed: bool = False,
    cached_tokens: int = 0,
) -> DescriptorPlan:
    """The plan for ``prompt_tokens`` tokens of which the decode side already holds ``cached_tokens``.

    ``block_size`` asks what another block size would give (one block table only). ``packed``: all layers of a
    block lie together (vLLM's BLHNC layout), so a block is one descriptor. Raises Refused when the connector
    refuses the model or this prompt, UsageError for impossible numbers.
    """
    if not 1 <= prompt_tokens <= MAX_PROMPT_TOKENS or cached_tokens < 0:
        raise UsageError(f"A prompt of {prompt_tokens} tokens with {cached_tokens} cached is not possible.")
    transfer = layout.transfer
    if transfer.status != "ok" or transfer.refuses_requests:
        raise Refused(transfer.reason, transfer.reason_code)
    stages = [layout.cache_groups, *layout.other_stages]
    if block_size is not None and block_size != layout.block_size_tokens:
        stages = [tuple(_resized(layout, g, block_size) for g in stage) for stage in stages]
    moved = [_stage(layout, stage, prompt_tokens, cached_tokens, packed) for stage in stages]
    groups, counts = moved[0]
    return DescriptorPlan(
        prompt_tokens=prompt_tokens,
        block_size_tokens=block_size or layout.block_size_tokens,
        groups=groups,
        bytes_all_ranks=layout.options.tp * sum(g.bytes for stage, _ in moved for g in stage),
        blocks_per_cache_group=counts,
        longer_than_model=layout.max_tokens is not None and prompt_tokens > layout.max_tokens,
    )


def _stage(
    layout: KvLayout, groups: tuple[CacheGroup, ...], prompt_tokens: int, cached_tokens: int, packed: bool
) -> tuple[tuple[TransferGroup, ...], tuple[int, ...]]:
    # Decode recomputes the last token from the state before it, so prefill stops one token earlier.
    tokens = max(1, prompt_tokens - layout.recomputed_tokens)
    counts = tuple(_blocks(layout, group, tokens, cached_tokens) for group in groups)
    found: dict[tuple[str, int, int], int] = {}
    for group, blocks in zip(groups, counts, strict=True):
        cut = max(1, group.block_size_tokens // (group.kernel_block_tokens or group.block_size_tokens))
        for pages in _pages(group, packed):
            key = (pages.kind, pages.page_bytes // cut, blocks * cut)
            found[key] = found.get(key, 0) + pages.regions
    made = (
        TransferGroup(name=name, regions=regions, descriptor_bytes=size, blocks=blocks)
        for (name, size, blocks), regions in found.items()
        if blocks
    )
    return tuple(made), counts


def _blocks(layout: KvLayout, group: CacheGroup, tokens: int, cached_tokens: int) -> int:
    """Blocks of one region that move: whole ones, without those that the window has passed."""
    if group.state_parts:
        return 1
    size = group.block_size_tokens * layout.options.dcp
    held = -(-tokens // size)
    if cached_tokens:
        if len(layout.cache_groups) > 1 or group.window:
            raise Refused(
                f"{layout.model}: prefix hits are counted for models with one kind of cache only.",
                "prefix_hit_with_hybrid",
            )
        held -= min(cached_tokens, tokens) // size
    if group.kind == "sliding_window" and group.window:
        held -= max(0, tokens - group.window + 1) // size
    elif group.kind == "chunked_attention" and group.window:
        held -= tokens // group.window * group.window // size
        if held == 0:
            raise Refused(
                f"{tokens:,} tokens are whole attention chunks of {group.window:,}: no block of that group is left to move, "
                "and vLLM 0.33 fails an assertion.",
                "vllm_assertion",
                "Use another prompt length.",
            )
    return held


def _pages(group: CacheGroup, packed: bool) -> tuple[Pages, ...]:
    if group.state_parts:
        pieces = [(part.name, piece) for part in group.state_parts for piece in part.pieces]
        return tuple(
            Pages(kind=f"{group.kind} {name}", regions=group.regions, page_bytes=size)
            for name, size in pieces
        )
    members = group.members or (Pages(kind=group.kind, regions=group.regions, page_bytes=group.page_bytes),)
    if not packed:
        return members
    return (Pages(kind=group.kind, regions=1, page_bytes=sum(m.regions * m.page_bytes for m in members)),)


def _resized(layout: KvLayout, group: CacheGroup, block_size: int) -> CacheGroup:
    if len(layout.cache_groups) > 1 or block_size < 1:
        raise Refused(
            f"{layout.model}: the block sizes of a mixed cache follow from each other.",
            "block_size_not_supported",
            "Resolve the layout again with that block size.",
        )

    def sized(page: int) -> int:
        return page // group.block_size_tokens * block_size

    return msgspec.structs.replace(
        group,
        block_size_tokens=block_size,
        page_bytes=sized(group.page_bytes),
        members=tuple(msgspec.structs.replace(m, page_bytes=sized(m.page_bytes)) for m in group.members),
    )
