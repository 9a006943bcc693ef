"""The caches that an installed vLLM declares, held against the computed ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvprobe.models.kv_layout.types import KvLayout


class VllmSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's ``KVCacheSpec``: bytes of its page without padding, and the tokens it covers."""

    layer: str
    kind: str
    """Name of the spec class, such as FullAttentionSpec."""
    page_bytes: int
    block_size: int
    window: int | None = None


class VllmSpecs(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker brings back."""

    version: str
    block_size: int
    specs: tuple[VllmSpec, ...]


class SpecComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides. ``error`` instead when vLLM could not be asked."""

    version: str = ""
    differences: tuple[str, ...] = ()
    vllm: dict[str, Any] = {}
    """layers, block_size_tokens, bytes_per_token and state_bytes of one rank, as vLLM declares them."""
    error: str | None = None
    remedy: str = ""


def compare_specs(layout: KvLayout | None, found: VllmSpecs) -> SpecComparison:
    """Differences in layers, bytes and block size; none where there is no layout to compare with."""
    states = [s for s in found.specs if s.kind == "MambaSpec"]
    attention = [s for s in found.specs if s.kind != "MambaSpec"]
    mine = Counter[tuple[str, int, int | None]]()
    for group in layout.layer_groups if layout else ():
        size = group.state_bytes_per_layer or group.bytes_per_token_per_layer
        mine["state" if group.state_bytes_per_layer else "token", size, group.window] += group.count
    theirs = Counter[tuple[str, int, int | None]](("state", s.page_bytes, None) for s in states)
    theirs.update(("token", s.page_bytes // s.block_size, s.window) for s in attention)
    differences = [
        f"{key[1]:,} B a {'sequence' if key[0] == 'state' else 'token'}{_window(key[2])}: "
        f"vLLM has {theirs[key]} layers, computed are {mine[key]}"
        for key in sorted({*mine, *theirs}, key=repr)
        if layout and mine[key] != theirs[key]
    ]
    if layout and attention and found.block_size != layout.block_size_tokens:
        differences.append(
            f"block size: vLLM has {found.block_size:,}, computed is {layout.block_size_tokens:,}"
        )
    return SpecComparison(
        version=found.version,
        differences=tuple(differences),
        vllm={
            "layers": len(found.specs),
            "block_size_tokens": found.block_size,
            "bytes_per_token": {"per_rank": sum(s.page_bytes // s.block_size for s in attention)},
            "state_bytes_per_sequence": {"per_rank": sum(s.page_bytes for s in states)},
        },
    )


def _window(window: int | None) -> str:
    return f" within {window:,} tokens" if window else ""
