"""The arithmetic of a layout in lines that a person can redo by hand."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.kv_layout.types import CacheGroup, KvLayout, LayerGroup


def explain(layout: KvLayout, plans: Sequence[DescriptorPlan]) -> list[str]:
    """Each step with its numbers: layer groups, sums, block size, and what moves for each prompt."""
    lines = [f"cache dtype: {layout.kv_cache_dtype}, from {layout.kv_dtype_from}"]
    for group in layout.layer_groups:
        lines += _group(group)
    lines += _sums(layout)
    lines += _blocks(layout)
    for plan in plans:
        lines += _plan(layout, plan)
    return lines


def _group(group: LayerGroup) -> list[str]:
    size = group.bytes_per_token_per_layer or group.state_bytes_per_layer
    unit = "sequence" if group.state_bytes_per_layer else "token"
    lines = [f"{_name(group.kind)}, {group.count} layers ({layer_ranges(group.layers)}):"]
    lines += [f"  {step}" for step in group.arithmetic]
    lines.append(f"  {group.count} x {size:,} B = {group.count * size:,} B a {unit} on each rank")
    if group.window:
        lines.append(f"  held for the last {group.window:,} tokens only")
    if group.keys:
        lines.append(f"  from {', '.join(group.keys)}")
    return lines


def _sums(layout: KvLayout) -> list[str]:
    lines = []
    options = layout.options
    for label, pair in (
        ("a token, all caches", layout.bytes_per_token),
        ("a token that stays", layout.growth_bytes_per_token),
        ("a sequence, states", layout.state_bytes_per_sequence),
    ):
        if pair.all_ranks:
            ranks = f"TP {options.tp}" + (f" x PP {options.pp}" if options.pp > 1 else "")
            lines.append(f"{label}: {pair.per_rank:,} B a rank, {pair.all_ranks:,} B on all ranks ({ranks})")
    return lines


def _blocks(layout: KvLayout) -> list[str]:
    asked = layout.options.block_size
    states = [g for g in layout.cache_groups if g.state_parts]
    attention = [g for g in layout.cache_groups if not g.state_parts]
    lines = []
    if states and attention and layout.block_size_tokens not in (asked, 16):
        page, state = attention[0].page_bytes, max(sum(p.bytes for p in g.state_parts) for g in states)
        row = page // attention[0].block_size_tokens
        lines.append(
            f"block: {layout.block_size_tokens:,} tokens, the smallest aligned size whose page holds a state: "
            f"{layout.block_size_tokens:,} x {row:,} B = {page:,} B >= {state:,} B"
        )
    else:
        why = "--block-size" if asked else "vLLM's choice for this cache"
        lines.append(f"block: {layout.block_size_tokens:,} tokens ({why})")
    if len(layout.cache_groups) > 1:
        lines.append("cache groups, each with a block table of its own:")
        lines += [f"  {_cache(group)}" for group in layout.cache_groups]
    return lines


def _cache(group: CacheGroup) -> str:
    what = "states" if group.state_parts else f"blocks of {group.block_size_tokens:,} tokens"
    return f"{_name(group.kind)}: {len(group.layers)} layers, {what}, pages of {group.page_bytes:,} B in {group.regions} regions"


def _plan(layout: KvLayout, plan: DescriptorPlan) -> list[str]:
    lines = [f"prompt of {plan.prompt_tokens:,} tokens, one decode rank:"]
    if layout.recomputed_tokens:
        lines.append("  prefill stops one token earlier; decode computes the last from the states")
    for group, count in zip(layout.cache_groups, plan.blocks_per_cache_group, strict=True):
        if not group.state_parts:
            lines.append(f"  {_name(group.kind)}: {_count(layout, group, plan)} = {count:,} blocks")
    lines += [
        f"  {_name(g.name)}: {g.regions:,} regions x {g.blocks:,} x {g.descriptor_bytes:,} B = {g.bytes:,} B"
        for g in plan.groups
    ]
    lines.append(
        f"  together {plan.descriptors:,} descriptors, {plan.bytes:,} B; all ranks {plan.bytes_all_ranks:,} B"
    )
    return lines


def _count(layout: KvLayout, group: CacheGroup, plan: DescriptorPlan) -> str:
    tokens = max(1, plan.prompt_tokens - layout.recomputed_tokens)
    size = group.block_size_tokens * layout.options.dcp
    text = f"ceil({tokens:,} / {size:,})"
    if group.kind == "sliding_window" and group.window and tokens > group.window:
        text += f" - floor(({tokens:,} - {group.window:,} + 1) / {size:,})"
    if group.kind == "chunked_attention" and group.window and tokens >= group.window:
        text += f" - floor({tokens // group.window * group.window:,} / {size:,})"
    return text


def layer_ranges(layers: Sequence[int]) -> str:
    """``0-3, 5, 7-9``; a layer that has two such caches counts once."""
    numbers = sorted(set(layers))
    parts: list[str] = []
    start = previous = None
    for number in [*numbers, None]:
        if previous is not None and number == previous + 1:
            previous = number
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    text = ", ".join(parts)
    return text if len(parts) <= 12 else f"{', '.join(parts[:10])}, ... {parts[-1]}"


def _name(kind: str) -> str:
    return kind.replace("_", " ").replace("+", " and ")
