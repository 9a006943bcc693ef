"""Block sizes, and the groups into which vLLM's block pool puts the layers.

vLLM gives all groups pages of one size: attention layers with smaller pages get more tokens a block, recurrent
states are padded, and the attention block grows until a page holds a state. The rules are those of vLLM 0.33's
``kv_cache_planning`` and ``Platform._align_hybrid_block_size``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.dtypes import FP8
from kvprobe.models.kv_layout.types import CacheGroup, LayerGroup, Pages, Transfer

_MLA_BASE = 128
_FLASHINFER_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
"""Blackwell's default backend; above 64 only with fewer KV heads than query heads (TRT-LLM kernels)."""
DS_LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT=DS"


def arrange(
    context: Context, groups: Sequence[LayerGroup], whole: Sequence[LayerGroup]
) -> tuple[int, tuple[CacheGroup, ...], Transfer]:
    """(block size in tokens, cache groups, whether the connector moves them) of one pipeline stage.

    ``whole``: the groups of the whole model, which decide what the connector takes. Raises Refused.
    """
    states = [g for g in groups if g.state_bytes_per_layer]
    attention = [g for g in groups if not g.state_bytes_per_layer]
    block = context.options.block_size or context.default_block
    if attention and states:
        block = _hybrid_block(context, attention, states, block)
    if _one_table(groups):
        cache = (
            (_uniform(context, attention, block),)
            if attention
            else tuple(_state_alone(g, block) for g in states)
        )
    else:
        cache = _several(context, attention, states, block)
    return block, cache, _transfer(context, whole)


def _hybrid_block(
    context: Context, attention: Sequence[LayerGroup], states: Sequence[LayerGroup], default: int
) -> int:
    """The smallest aligned block whose attention page holds a layer's state; vLLM overrides --block-size with it."""
    state = max(g.state_bytes_per_layer for g in states)
    row = next(g for g in attention if g.kind != "indexer").bytes_per_token_per_layer
    base = max(default, 16)
    if any(g.kind == "mla" for g in attention):
        base = max(base, _MLA_BASE)
    if context.options.prefix_caching:
        base = math.lcm(base, context.alignment)
    return max(default, base * -(-state // (base * row)))


def _one_table(groups: Sequence[LayerGroup]) -> bool:
    """Whether all layers need the same number of token slots, so that one block table serves them."""
    if all(g.grows for g in groups):
        return True
    first = groups[0]
    return all(g.kind == first.kind and g.window == first.window for g in groups) and (
        not first.state_bytes_per_layer or len({g.state_bytes_per_layer for g in groups}) == 1
    )


def _uniform(context: Context, groups: Sequence[LayerGroup], block: int) -> CacheGroup:
    members = tuple(
        Pages(kind=g.kind, regions=g.count, page_bytes=block * g.bytes_per_token_per_layer) for g in groups
    )
    return CacheGroup(
        kind="+".join(dict.fromkeys(g.kind for g in groups)),
        layers=tuple(layer for g in groups for layer in g.layers),
        block_size_tokens=block,
        page_bytes=members[0].page_bytes,
        regions=sum(m.regions for m in members),
        window=groups[0].window,
        kernel_block_tokens=_kernel_block(context, block),
        members=members,
    )


def _state_alone(group: LayerGroup, block: int) -> CacheGroup:
    return CacheGroup(
        kind=group.kind,
        layers=group.layers,
        block_size_tokens=block,
        page_bytes=group.state_bytes_per_layer,
        regions=group.count,
        state_parts=group.state_parts,
    )


def _several(
    context: Context, attention: Sequence[LayerGroup], states: Sequence[LayerGroup], block: int
) -> tuple[CacheGroup, ...]:
    """Groups of equal pages: buckets by shape, each dealt round-robin into groups of about the smallest's size."""
    page = max((block * g.bytes_per_token_per_layer for g in attention), default=0)
    page = max([page, *(g.state_bytes_per_layer for g in states)])
    buckets = [(g, _stretched(context, g, block, page)) for g in attention] + [(g, block) for g in states]
    counts = [g.count for g, _ in buckets]
    size = min(counts)
    if max(counts) < 1.5 * size:
        size = max(counts)
    made: list[CacheGroup] = []
    for group, tokens in buckets:
        number = -(-group.count // size)
        made += [
            CacheGroup(
                kind=group.kind,
                layers=group.layers[i::number],
                block_size_tokens=tokens,
                page_bytes=page,
                regions=len(group.layers[i::number]),
                window=group.window,
                state_parts=group.state_parts,
                kernel_block_tokens=None if group.state_parts else _kernel_block(context, tokens),
            )
            for i in range(number)
        ]
    return tuple(_with_regions(made))


def _kernel_block(context: Context, block: int) -> int | None:
    """Tokens of the blocks that the attention kernel sees, where it cannot take the whole one."""
    size = context.kernel_block
    if size is None and _uses_flashinfer(context):
        grouped = context.blackwell and context.kv_heads() < context.heads()
        fitting = [n for n in _FLASHINFER_BLOCKS if block % n == 0 and (grouped or n <= 64)]
        size = max(fitting, default=None)
    return size if size and block >= size else None


def _uses_flashinfer(context: Context) -> bool:
    """Where FlashAttention is not the first choice, or does not take the cache's dtype."""
    if context.blackwell or context.kv_dtype == "nvfp4":
        return True
    return context.kv_dtype in FP8 and (context.gpu_arch != "sm90" or context.kv_dtype == "fp8_e5m2")


def _stretched(context: Context, group: LayerGroup, block: int, page: int) -> int:
    """Tokens a block, so that this group's page is as large as the largest."""
    own = block * group.bytes_per_token_per_layer
    if page % own == 0:
        return block * (page // own)
    if group.kind in ("mla", "indexer"):
        raise context.refuse(
            f"pages of {own:,} B and {page:,} B cannot be made equal, and MLA pages cannot be padded.",
            "pages_not_unifiable",
        )
    return block


def _with_regions(groups: list[CacheGroup]) -> list[CacheGroup]:
    """How many regions a block of each group moves.

    NIXL registers the memory of the groups once, and a block id names a page in each region: regions that two
    groups share move with either, so a group can move pages that none of its layers owns.
    """
    attention = [len(g.layers) for g in groups if not g.state_parts]
    states = [len(g.layers) for g in groups if g.state_parts]
    everything = sorted(attention + states, reverse=True)
    if states:
        return [
            msgspec.structs.replace(g, regions=max(states) if g.state_parts else everything[0])
            for g in groups
        ]
    shared = everything[1]
    return [msgspec.structs.replace(g, regions=max(len(g.layers), shared)) for g in groups]


def _transfer(context: Context, groups: Sequence[LayerGroup]) -> Transfer:
    states = [g for g in groups if g.state_bytes_per_layer]
    attention = [g for g in groups if not g.state_bytes_per_layer]
    if context.options.connector != "nixl":
        return Transfer(
            status="unknown",
            reason=f"The transfer rules are those of NixlConnector, not of {context.options.connector}.",
            reason_code="connector_without_rule",
        )
    if not attention:
        return Transfer(
            status="refused",
            reason="NixlConnector needs at least one attention layer.",
            reason_code="nixl_needs_an_attention_layer",
        )
    if context.refuse_transfer:
        reason, code = context.refuse_transfer
        return Transfer(status="refused", reason=reason, reason_code=code)
    if _split_pages(context, attention):
        return Transfer(
            status="refused",
            reason="NixlConnector cannot register this cache: the two layer kinds have pages of different size, and "
            "the larger block is cut into kernel blocks of 64 tokens. Seen on a stub device, unverified on a GPU.",
            reason_code="nixl_cannot_register_this_layout",
        )
    parallel = _parallel_refusal(context, attention, states)
    if parallel:
        return parallel
    needs = (DS_LAYOUT,) if states else ()
    if context.refuse_requests:
        reason, code = context.refuse_requests
        return Transfer(status="ok", reason=reason, reason_code=code, refuses_requests=True)
    return Transfer(status="ok", needs=needs)


def _split_pages(context: Context, attention: Sequence[LayerGroup]) -> bool:
    """Gemma-4 with an FP8 cache and vLLM's own block of 64."""
    wide = any(g.head_size == 512 and g.element_bytes == 1 for g in attention)
    sizes = {g.bytes_per_token_per_layer for g in attention}
    block = context.options.block_size or context.default_block
    return context.architecture.startswith("Gemma4") and wide and len(sizes) > 1 and block >= 64


def _parallel_refusal(
    context: Context, attention: Sequence[LayerGroup], states: Sequence[LayerGroup]
) -> Transfer | None:
    options = context.options
    mixed = bool(states) or not all(g.grows for g in attention)
    if options.pp > 1 and mixed:
        return Transfer(
            status="refused",
            reason=f"NixlConnector's pull mode does not support --pp {options.pp} with several cache kinds.",
            reason_code="nixl_pp_with_hybrid",
        )
    if options.dcp > 1 and (options.dcp != options.tp or not all(g.kind == "mla" for g in attention)):
        return Transfer(
            status="refused",
            reason=f"NixlConnector wants --dcp 1, or --dcp equal to --tp with an MLA model; given {options.dcp}.",
            reason_code="nixl_dcp_not_supported",
        )
    return None
