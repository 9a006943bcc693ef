"""Exact KV cache sizes: config -> layers, heads, dtypes, blocks, as vLLM 0.33 stores them; or a refusal."""

from kvprobe.models.kv_layout.resolve import resolve
from kvprobe.models.kv_layout.types import (
    Assumption,
    Bytes,
    CacheGroup,
    KvLayout,
    LayerGroup,
    LayoutOptions,
    ModelConfig,
    NoKvCache,
    Refused,
    StatePart,
    Transfer,
)

__all__ = [
    "Assumption", "Bytes", "CacheGroup", "KvLayout", "LayerGroup", "LayoutOptions", "ModelConfig", "NoKvCache",
    "Refused", "StatePart", "Transfer", "resolve",
]  # fmt: skip
