"""The KV layout of a model on the GPU at hand."""

from __future__ import annotations

from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, resolve


def layout_of(
    config: ModelConfig, *, kv_cache_dtype: str, tp: int, block_size: int | None, capability: str | None
) -> KvLayout:
    """``capability``: of the decode GPU, such as ``9.0``; None: no GPU, an assumption of the layout.

    Raises Refused, which ends a run UNKNOWN with its reason.
    """
    arch = f"sm{capability.replace('.', '')}" if capability else None
    options = LayoutOptions(kv_cache_dtype=kv_cache_dtype, tp=tp, block_size=block_size, gpu_arch=arch)
    return resolve(config, options)
