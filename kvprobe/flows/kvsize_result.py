"""The ``result`` of ``kvprobe kvsize``: keys as in the cases' README, base units, one entry a prompt length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.kv_layout import KvLayout, LayerGroup, LayoutOptions, ModelConfig, NoKvCache, Refused
from kvprobe.models.kv_layout.against_log import Agreement
from kvprobe.models.kv_layout.explain import explain, layer_ranges
from kvprobe.models.kv_layout.specs import SpecComparison

_NOTHING = {"per_rank": 0, "all_ranks": 0}


class PlannedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt length with its plan, or why there is none."""

    tokens: int
    plan: DescriptorPlan | None = None
    refusal: Refused | None = None


def refused_result(
    model: ModelConfig, options: LayoutOptions, refusal: Refused, comparison: SpecComparison | None = None
) -> dict[str, Any]:
    """No numbers; an encoder's zero bytes are a number."""
    found: dict[str, Any] = {
        "status": "no_kv_cache" if isinstance(refusal, NoKvCache) else "refused",
        "reason": refusal.reason,
        "reason_code": refusal.reason_code,
        "model": model.name,
        "options": msgspec.to_builtins(options),
    }
    if isinstance(refusal, NoKvCache):
        found |= dict.fromkeys(
            ("bytes_per_token", "growth_bytes_per_token", "state_bytes_per_sequence"), _NOTHING
        )
    if comparison is not None:
        found["cross_check"] = msgspec.to_builtins(comparison)
    return found


def result_of(
    layout: KvLayout,
    prompts: Sequence[PlannedPrompt],
    agreement: Agreement | None,
    comparison: SpecComparison | None,
    *,
    explained: bool,
) -> dict[str, Any]:
    """The whole answer. ``explain`` and the second opinions are there when they were asked for."""
    transfer = layout.transfer
    found: dict[str, Any] = {
        "status": "ok",
        "reason": None,
        "model": layout.model,
        "architecture": layout.architecture,
        "model_dtype": layout.model_dtype,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "kv_cache_dtype_from": layout.kv_dtype_from,
        "block_size_tokens": layout.block_size_tokens,
        "bytes_per_token": msgspec.to_builtins(layout.bytes_per_token),
        "growth_bytes_per_token": msgspec.to_builtins(layout.growth_bytes_per_token),
        "state_bytes_per_sequence": msgspec.to_builtins(layout.state_bytes_per_sequence),
        "max_tokens": layout.max_tokens,
        "layer_groups": [_group(group) for group in layout.layer_groups],
        "cache_groups": [
            {
                "kind": group.kind,
                "layers": len(group.layers),
                "block_size_tokens": group.block_size_tokens,
                "page_bytes": group.page_bytes,
                "regions": group.regions,
            }
            for group in layout.cache_groups
        ],
        "nixl_transfer": {
            "status": transfer.status,
            "reason": transfer.reason or None,
            "reason_code": transfer.reason_code or None,
            "needs": list(transfer.needs),
            "prompts": {str(p.tokens): _prompt(p) for p in prompts} if transfer.status == "ok" else {},
        },
        "options": msgspec.to_builtins(layout.options),
        "assumptions": msgspec.to_builtins(layout.assumptions),
        "notes": list(layout.notes),
        "config_keys": {name: list(keys) for name, keys in layout.keys.items()},
        "rules": f"vLLM {layout.vllm_version}",
    }
    if explained:
        found["explain"] = explain(layout, [p.plan for p in prompts if p.plan])
    if agreement is not None:
        found["check_against_log"] = msgspec.to_builtins(agreement)
    if comparison is not None:
        found["cross_check"] = msgspec.to_builtins(comparison)
    return found


def _group(group: LayerGroup) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": group.kind,
        "layers": group.count,
        "layer_index": layer_ranges(group.layers),
        "dtype": group.dtype,
        "config_keys": list(group.keys),
    }
    if group.state_bytes_per_layer:
        return found | {
            "state": group.state,
            "state_shapes_per_rank": [list(part.shape) for part in group.state_parts],
            "state_dtypes": [part.dtype for part in group.state_parts],
            "state_bytes_per_layer_per_rank": group.state_bytes_per_layer,
            "state_bytes_per_rank": group.state_bytes_per_layer * group.count,
        }
    return found | {
        "kv_heads_per_rank": group.kv_heads_per_rank,
        "head_size": group.head_size,
        "head_size_v": group.head_size_v,
        "window": group.window,
        "replicated": group.replicated,
        "bytes_per_token_per_layer_per_rank": group.bytes_per_token_per_layer,
        "bytes_per_token_per_rank": group.bytes_per_token_per_layer * group.count,
    }


def _prompt(prompt: PlannedPrompt) -> dict[str, Any]:
    plan = prompt.plan
    if plan is None:
        assert prompt.refusal is not None
        return {
            "status": "refused",
            "reason": prompt.refusal.reason,
            "reason_code": prompt.refusal.reason_code,
        }
    return {
        "status": "ok",
        "per_rank": plan.bytes,
        "all_ranks": plan.bytes_all_ranks,
        "descriptors_per_rank": plan.descriptors,
        "blocks_per_cache_group": list(plan.blocks_per_cache_group),
        "groups": msgspec.to_builtins(plan.groups),
        "longer_than_model": plan.longer_than_model,
    }
