"""Does a decode log agree with the computed bytes? "Avg MB per transfer" against whole blocks of this layout.

One sample of the log is one completed transfer of one decode rank from one prefill rank. So it holds the rank's
bytes of one prompt, less what a prefix hit saved, or a share of them where the rank pulls from several peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout.types import KvLayout, Refused
from kvprobe.units import MIB

_ROUNDING_BYTES = 0.0005 * MIB
"""The log prints three decimals of a MiB."""
_SHARES = (2, 4, 8, 16)
_SAME = 1e-3


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """One "KV Transfer metrics" line."""

    line: int
    transfers: int
    bytes_per_transfer: float
    """Mean over the interval."""
    descriptors_per_transfer: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says about the layout."""

    line: int
    transfers: int
    logged_bytes: float
    computed_bytes: int | None
    """Per rank for the nearest given prompt length; None when no length was given."""
    prompt_tokens: int | None
    ratio: float | None
    implied_tokens: float | None
    """Prompt tokens (less prefix hits) that the logged bytes are, if the layout is right."""
    verdict: str
    """agrees, explained, disagrees or possible (no prompt length to hold it against)."""
    explanation: str


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over all lines: the worst one."""

    verdict: str
    lines: tuple[Comparison, ...]


def compare(layout: KvLayout, logged: Sequence[Logged], prompt_tokens: Sequence[int]) -> Agreement:
    """Hold each line with transfers against the layout. ``verdict`` is ``nothing`` when no line has any."""
    rank = {"agrees": 0, "explained": 1, "possible": 2, "disagrees": 3}
    lines = tuple(_line(layout, entry, prompt_tokens) for entry in logged if entry.transfers > 0)
    verdict = max((c.verdict for c in lines), key=rank.__getitem__, default="nothing")
    return Agreement(verdict=verdict, lines=lines)


def _line(layout: KvLayout, entry: Logged, prompt_tokens: Sequence[int]) -> Comparison:
    fixed, block, tokens = _step(layout)
    implied = (entry.bytes_per_transfer - fixed) / block * tokens if block else None
    computed: int | None = None
    nearest: int | None = None
    for length in prompt_tokens:
        try:
            size = plan(layout, length).bytes
        except Refused:
            continue
        if computed is None or abs(size - entry.bytes_per_transfer) < abs(
            computed - entry.bytes_per_transfer
        ):
            computed, nearest = size, length
    if computed is None:
        verdict, why = _alone(layout, entry, implied, block)
    else:
        verdict, why = _against(layout, entry, computed, block)
    return Comparison(
        line=entry.line,
        transfers=entry.transfers,
        logged_bytes=entry.bytes_per_transfer,
        computed_bytes=computed,
        prompt_tokens=nearest,
        ratio=entry.bytes_per_transfer / computed if computed else None,
        implied_tokens=implied,
        verdict=verdict,
        explanation=why,
    )


def _step(layout: KvLayout) -> tuple[int, int, int]:
    """(bytes of a prompt apart from growing blocks, bytes of one growing block, its tokens) of one rank."""
    growing = [g for g in layout.cache_groups if not g.state_parts and not g.window]
    if not growing:
        return 0, 0, 1
    tokens = max(g.block_size_tokens * layout.options.dcp for g in growing)
    window = max((g.window or 0 for g in layout.cache_groups), default=0)
    start = (window // tokens + 3) * tokens + layout.recomputed_tokens
    low, high = plan(layout, start).bytes, plan(layout, start + tokens).bytes
    block = high - low
    return low - block * (-(-(start - layout.recomputed_tokens) // tokens)), block, tokens


def _against(layout: KvLayout, entry: Logged, computed: int, block: int) -> tuple[str, str]:
    logged, slack = entry.bytes_per_transfer, _ROUNDING_BYTES
    if abs(logged - computed) <= slack:
        return "agrees", "to the log's rounding"
    if abs(logged - computed) < max(block, slack):
        return "agrees", "within one block: the prompts' lengths vary"
    ratio = logged / computed
    for share in _SHARES:
        if abs(ratio * share - 1) < _SAME:
            return "explained", (
                f"one {share}th of the computed bytes: the rank pulls from {share} prefill ranks, or the log is "
                f"from {share} times this --tp" + (", or its cache is FP8" if share == 2 else "")
            )
        if abs(ratio / share - 1) < _SAME:
            return "disagrees", (
                f"{share} times the computed bytes: the log is from a smaller --tp"
                + (
                    ", or its cache holds 2-byte values where this layout has 1-byte ones"
                    if share == 2
                    else ""
                )
            )
    if ratio < 1:
        saved = (computed - logged) / computed
        return "explained", (
            f"{saved:.1%} less than a cold prompt of that length: prefix-cache hits on the decode side, or shorter prompts"
        )
    return "disagrees", f"{ratio:.3f} times the computed bytes: longer prompts, another model, dtype or --tp"


def _alone(layout: KvLayout, entry: Logged, implied: float | None, block: int) -> tuple[str, str]:
    if implied is None or not block:
        return "possible", "give --prompt-tokens to hold it against a length"
    if implied < 0:
        return "disagrees", "less than the state that moves with every prompt"
    limit = layout.max_tokens
    if limit is not None and implied > limit * 1.01 + layout.block_size_tokens:
        return "disagrees", f"{implied:,.0f} tokens would be needed, and the model takes {limit:,}"
    smallest = min(g.page_bytes for g in layout.cache_groups if not g.state_parts)
    descriptors = entry.descriptors_per_transfer
    if (
        descriptors
        and not layout.recomputed_tokens
        and entry.bytes_per_transfer / descriptors < smallest * 0.99
    ):
        return "disagrees", (
            f"{entry.bytes_per_transfer / descriptors:,.0f} B a descriptor, and this layout has none below {smallest:,} B: "
            "another block size, --tp or vLLM version (K and V apart up to 0.25)"
        )
    whole = implied / layout.block_size_tokens
    if entry.transfers == 1 and abs(whole - round(whole)) * block > 2 * _ROUNDING_BYTES:
        return "disagrees", f"{whole:,.2f} blocks, and only whole blocks move"
    return "possible", f"{implied:,.0f} tokens a transfer; give --prompt-tokens to hold it against a length"
