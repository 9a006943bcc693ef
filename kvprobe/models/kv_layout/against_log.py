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
_FACTORS = (2, 4, 8, 16)
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
    """agrees, explained (less than a given length), possible (whole blocks of another length) or disagrees."""
    explanation: str


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """``verdict``: disagrees if a line does; else agrees, explained, unmatched (no line has a given length),
    possible (no length was given) or nothing (no line with transfers)."""

    verdict: str
    explanation: str
    lines: tuple[Comparison, ...]

    def count(self, verdict: str) -> int:
        return sum(line.verdict == verdict for line in self.lines)


def compare(layout: KvLayout, logged: Sequence[Logged], prompt_tokens: Sequence[int]) -> Agreement:
    """Hold each line with transfers against the layout and, where lengths were given, against those."""
    lines = tuple(_line(layout, entry, prompt_tokens) for entry in logged if entry.transfers > 0)
    seen = {line.verdict for line in lines}
    if not lines:
        return Agreement(verdict="nothing", explanation="no completed transfer", lines=())
    for verdict in ("disagrees", "agrees", "explained"):
        if verdict in seen:
            told = next(line.explanation for line in lines if line.verdict == verdict)
            return Agreement(verdict=verdict, explanation=told, lines=lines)
    if not prompt_tokens:
        return Agreement(verdict="possible", explanation="whole blocks of this layout", lines=lines)
    return Agreement(verdict="unmatched", explanation=_common_factor(lines), lines=lines)


def _common_factor(lines: Sequence[Comparison]) -> str:
    """One factor over all lines is more than a coincidence of lengths."""
    for factor in _FACTORS:
        if all(line.ratio is not None and abs(line.ratio / factor - 1) < _SAME for line in lines):
            return (
                f"each line has {factor} times the computed bytes: the log is from a smaller --tp, its cache has wider "
                "values, or the prompts were that much longer"
            )
    return "no line has one of the given lengths"


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
    verdict, why = _impossible(layout, entry, implied, block) or _against(entry, computed, implied, block)
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


def _against(entry: Logged, computed: int | None, implied: float | None, block: int) -> tuple[str, str]:
    tokens = (
        f"as many as a prompt of {implied:,.0f} tokens"
        if implied is not None
        else "whole blocks or not is unknown"
    )
    if computed is None:
        return "possible", tokens
    logged = entry.bytes_per_transfer
    if abs(logged - computed) <= _ROUNDING_BYTES:
        return "agrees", "to the log's rounding"
    if abs(logged - computed) < block:
        return "agrees", "within one block: the prompts' lengths vary"
    if logged > computed:
        return "possible", tokens
    for factor in _FACTORS:
        if abs(logged * factor / computed - 1) < _SAME:
            return "explained", (
                f"1/{factor} of a cold prompt of that length: the rank pulls from {factor} prefill ranks, prefix hits, or "
                "shorter prompts"
            )
    saved = (computed - logged) / computed
    return (
        "explained",
        f"{saved:.1%} less than a cold prompt of that length: prefix hits on decode, or shorter prompts",
    )


def _impossible(layout: KvLayout, entry: Logged, implied: float | None, block: int) -> tuple[str, str] | None:
    """Why this layout cannot have moved these bytes, or None."""
    if implied is None or not block:
        return None
    if implied < 0:
        return "disagrees", "less than the states that move with every prompt"
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
            "another block size, --tp or dtype, or a vLLM up to 0.25, which registers K and V apart"
        )
    whole = implied / layout.block_size_tokens
    if entry.transfers == 1 and abs(whole - round(whole)) * block > 2 * _ROUNDING_BYTES:
        return "disagrees", f"{whole:,.2f} blocks of {block:,} B, and only whole blocks move"
    return None
