"""What a KV layout is made of: options in, layer groups and cache groups out, refusals as errors with a code."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import KvprobeError


class Refused(KvprobeError):
    """No number: the architecture or an option has no rule here, or vLLM itself refuses. ``reason_code`` names why."""

    def __init__(self, reason: str, reason_code: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason_code = reason_code


class NoKvCache(Refused):
    """The model is an encoder or pools: vLLM keeps no KV cache for it (0 bytes, a right answer)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "no_kv_cache")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model's ``config.json`` and, where there is one, its ``hf_quant_config.json``."""

    name: str
    config: dict[str, Any]
    hf_quant_config: dict[str, Any] | None = None


class LayoutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The ``vllm serve`` options (and the GPU) that shape the cache; the defaults are vLLM's."""

    kv_cache_dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    block_size: int | None = None
    """``--block-size``; None: vLLM chooses."""
    gpu_arch: str | None = None
    """``sm90`` ...; None: Hopper, shown as an assumption."""
    connector: str = "nixl"
    prefix_caching: bool = True
    mtp: bool = False
    """Speculative decoding with the checkpoint's own multi-token-prediction layers, which have caches too."""


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """``per_rank``: the fullest rank (they differ under PP only); ``all_ranks``: the sum, copies included."""

    per_rank: int | float
    all_ranks: int | float


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a recurrent state; ``pieces``: how NIXL cuts it, one descriptor a piece."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    pieces: tuple[int, ...]
    """Bytes of each piece; they sum to ``bytes``."""


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers with caches of one kind and shape, as one rank stores them."""

    kind: str
    """full_attention, sliding_window, chunked_attention, mla, indexer, cross_attention or recurrent_state."""
    layers: tuple[int, ...]
    """Layer numbers, from 0; a number occurs twice where a layer has two such caches."""
    kv_heads_per_rank: int = 0
    head_size: int = 0
    head_size_v: int = 0
    element_bytes: float = 0
    dtype: str = ""
    bytes_per_token_per_layer: int = 0
    """One rank, one layer, one token; 0 for a recurrent state."""
    state_bytes_per_layer: int = 0
    """One rank, one layer, one sequence; 0 for attention."""
    window: int | None = None
    """Tokens that a sliding window or an attention chunk holds."""
    replicated: bool = False
    """Every TP rank stores the same bytes."""
    state: str | None = None
    """mamba1, mamba2, gated_delta_net, kda or short_conv."""
    state_parts: tuple[StatePart, ...] = ()
    keys: tuple[str, ...] = ()
    """The config keys that these numbers came from."""
    arithmetic: tuple[str, ...] = ()
    """The calculation with its numbers, one line a step."""

    @property
    def count(self) -> int:
        return len(self.layers)

    @property
    def grows(self) -> bool:
        """Whether each further token adds bytes for as long as the sequence lives."""
        return self.kind in ("full_attention", "mla", "indexer")


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """Regions with pages of one size."""

    kind: str
    regions: int
    page_bytes: int


class CacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of vLLM's block pool: layers that share block tables and are transferred together."""

    kind: str
    layers: tuple[int, ...]
    block_size_tokens: int
    page_bytes: int
    """One block of one layer on one rank, padding included; the first member's where they differ."""
    regions: int
    """Memory regions from each of which a block's page moves (more than the layers in mixed models)."""
    window: int | None = None
    state_parts: tuple[StatePart, ...] = ()
    kernel_block_tokens: int | None = None
    """Tokens of the blocks into which the attention kernel cuts a larger block; NIXL then moves those."""
    members: tuple[Pages, ...] = ()
    """What moves with a block, by kind and page size; several where one table serves unlike layers."""


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """A value that nobody gave; shown as assumed wherever the layout is shown."""

    what: str
    value: str
    why: str


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the connector moves this cache at all: ok, refused (vLLM says no) or unknown (no rule here)."""

    status: str = "ok"
    reason: str = ""
    reason_code: str = ""
    needs: tuple[str, ...] = ()
    """Settings that vLLM demands for it, such as an environment variable."""
    refuses_requests: bool = False
    """The connector starts and registers the cache, but refuses every request."""


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache of one model under given options, exact for the vLLM version it names."""

    model: str
    architecture: str
    model_dtype: str
    kv_cache_dtype: str
    kv_dtype_from: str
    """``option``, ``model dtype``, or the key of the checkpoint that asked for it."""
    options: LayoutOptions
    block_size_tokens: int
    bytes_per_token: Bytes
    """Every attention layer, while the token is inside its window."""
    growth_bytes_per_token: Bytes
    """Only the layers that keep every token."""
    state_bytes_per_sequence: Bytes
    layer_groups: tuple[LayerGroup, ...]
    cache_groups: tuple[CacheGroup, ...]
    transfer: Transfer
    assumptions: tuple[Assumption, ...] = ()
    keys: dict[str, tuple[str, ...]] = {}
    """Number of the result -> config keys it came from."""
    used: dict[str, Any] = {}
    """Config key -> value, of all keys that were looked at and present."""
    max_tokens: int | None = None
    """The model's own length limit, if the config gives one."""
    recomputed_tokens: int = 0
    """Last prompt tokens that decode computes itself instead of loading them: 1 with recurrent states."""
    other_stages: tuple[tuple[CacheGroup, ...], ...] = ()
    """The cache groups of the other pipeline stages; ``cache_groups`` is the fullest stage's."""
    notes: tuple[str, ...] = ()
    vllm_version: str = "0.33"
