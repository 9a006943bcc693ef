"""Full attention: MHA, GQA and MQA, where every layer keeps K and V of every token."""

from __future__ import annotations

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.types import LayerGroup


def dense(context: Context) -> list[LayerGroup]:
    """All layers alike, heads and sizes from the usual keys."""
    layers = tuple(range(context.layers()))
    kv_heads, head_size = context.kv_heads(), context.head_dim()
    return [context.attention(layers, kv_heads=kv_heads, head_size=head_size)]
