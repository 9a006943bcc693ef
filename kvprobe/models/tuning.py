"""What an operator can set to make a transfer faster: candidates, what each costs elsewhere, and the ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.experiments import suspects
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.transfer import Setup

BLOCK_SIZES = (16, 32, 64, 128, 256)
_MLA = ("mla", "indexer")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A set-up of the two sides and the direction: what one pair of processes measures."""

    name: str
    setup: Setup
    operation: str = "READ"
    settings: tuple[str, ...] = ()
    """Environment and connector settings, copyable."""
    changes: int = 0
    """How much it changes, for ties: 0 is what runs now."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache is cut into descriptors."""

    name: str
    block_size: int
    packed: bool = False
    kv_cache_dtype: str | None = None
    """None: as now."""
    plan: DescriptorPlan
    flags: tuple[str, ...] = ()
    available: bool = True
    why_not: str | None = None
    """Why it cannot be chosen although it was measured."""

    @property
    def slug(self) -> str:
        """``256-packed`` or ``64-fp8``: for ids."""
        return "-".join(
            [str(self.block_size), *(["packed"] if self.packed else []), *filter(None, [self.kv_cache_dtype])]
        )


def ways(
    setup: Setup, environ: Mapping[str, str], operation: str, keep: Sequence[str] = ()
) -> tuple[Way, ...]:
    """What runs now first, then each suspect as a way; the direction and threads among them."""
    now = Way(name=f"{operation} as now", setup=setup, operation=operation)
    tried = [
        Way(
            name=experiment.name,
            setup=experiment.setup,
            operation=experiment.operation,
            settings=experiment.settings,
            # A variable taken away restores the default; anything else is one more setting to keep.
            changes=1 if experiment.kind == "cause" and not experiment.adds else 2,
        )
        for experiment in suspects(setup, environ, operation, keep)
    ]
    return (now, *tried)


def promising_first(tried: Sequence[Way], *, emulated: bool) -> tuple[Way, ...]:
    """The order in which ways deserve the time: first what the kind of slowness speaks for.

    Under emulation another path through memory; with zero-copy the direction and the threads.
    """
    later = ("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "visible")
    path = ("UCX_RMA_PPLN_ENABLE", "kv_buffer_device")

    def place(way: Way) -> int:
        if way.changes == 1:
            return 0
        if any(word in way.name for word in later):
            return 3
        return 1 if any(word in way.name for word in path) == emulated else 2

    return tuple(sorted(tried, key=place))


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that could be cut: block size, packed or not, KV dtype (None: as now)."""

    block_size: int
    plan: DescriptorPlan
    packed: bool = False
    kv_cache_dtype: str | None = None


def cuts(
    layout: KvLayout, planned: Sequence[Planned], vllm_version: str | None, *, allow_dtype: bool = False
) -> tuple[Cut, ...]:
    """One cut per plan; a layout that this vLLM does not have and a dtype that was not allowed are measured only."""
    found = []
    for item in planned:
        now = item.block_size == layout.block_size_tokens
        settings = [] if now else [f"--block-size {item.block_size}"]
        available, why_not, name = True, None, f"blocks of {item.block_size}"
        if item.packed:
            available, setting, why_not = _packed(layout, vllm_version)
            settings.append(setting)
            name += " with all layers packed"
        if item.kv_cache_dtype:
            available, why_not = (
                allow_dtype,
                None if allow_dtype else "changes numerics; --allow-fp8 lets it win",
            )
            settings.append(f"--kv-cache-dtype {item.kv_cache_dtype}")
            name += f", {item.kv_cache_dtype} KV"
        if now and not item.packed and not item.kv_cache_dtype:
            name += " (now)"
        found.append(
            Cut(
                name=name, block_size=item.block_size, packed=item.packed, kv_cache_dtype=item.kv_cache_dtype,
                plan=item.plan, flags=tuple(settings), available=available, why_not=why_not,
            )
        )  # fmt: skip
    return tuple(found)


def _packed(layout: KvLayout, vllm_version: str | None) -> tuple[bool, str, str | None]:
    """Whether this vLLM can lay all layers of a block together for this model, and how it is asked for.

    BLHNC did not lower the descriptor count of a GQA model in 0.30 (samples/ttft, 030-block16-nvlink-blhnc);
    for MLA it gives one region. enable_cross_layers_blocks existed from 0.16 to 0.28.
    """
    numbers = [int(p) for p in (vllm_version or "").split(".")[:2] if p.isdecimal()]
    minor = numbers[1] if len(numbers) == 2 and numbers[0] == 0 else None
    if minor is not None and 16 <= minor <= 28:
        return True, '"kv_connector_extra_config": {"enable_cross_layers_blocks": "True"}', None
    if all(group.kind in _MLA for group in layout.layer_groups):
        return True, "VLLM_KV_CACHE_LAYOUT=BLHNC", None
    why = "vLLM packs layers only for MLA models from 0.29 on (BLHNC changed nothing for a GQA model in 0.30)"
    return False, "VLLM_KV_CACHE_LAYOUT=BLHNC", why
