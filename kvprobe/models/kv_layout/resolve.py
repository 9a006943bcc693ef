"""From a config and options to a layout: gate, dtype, family, blocks, sums."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.architectures import family_of
from kvprobe.models.kv_layout.blocks import arrange
from kvprobe.models.kv_layout.context import LAYERS, Context
from kvprobe.models.kv_layout.draft import with_mtp
from kvprobe.models.kv_layout.dtypes import model_dtype, resolve_kv_dtype
from kvprobe.models.kv_layout.fields import MAX_LAYERS, Fields
from kvprobe.models.kv_layout.types import (
    Assumption,
    Bytes,
    CacheGroup,
    KvLayout,
    LayerGroup,
    LayoutOptions,
    ModelConfig,
)

HOPPER = "sm90"
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SHAPING = {
    "num_hidden_layers", "num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim", "sliding_window",
}  # fmt: skip
"""Class defaults that decide the size: shown as assumed."""


def resolve(model: ModelConfig, options: LayoutOptions | None = None) -> KvLayout:
    """The exact KV layout of ``model`` under ``options``.

    Raises Refused (NoKvCache among them) when there is no rule or vLLM itself refuses, UsageError for
    impossible options. Never a guess.
    """
    options = options or LayoutOptions()
    _check(options)
    fields = Fields(model)
    architecture, family = family_of(fields)
    dtype = model_dtype(fields)
    kv_dtype, kv_dtype_from = resolve_kv_dtype(fields, options.kv_cache_dtype, dtype)
    fields.take()
    context = Context(
        fields=fields,
        options=options,
        architecture=architecture,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_dtype_from=kv_dtype_from,
        gpu_arch=options.gpu_arch or HOPPER,
    )
    heads = fields.optional("num_attention_heads", "n_head", "n_heads", least=1)
    if heads:
        context.check_heads(heads)
    fields.take()
    groups = [g for g in family(context) if g.layers]
    if not groups:
        raise context.refuse("no layer of this config keeps a cache.", "bad_value", "Check config.json.")
    if options.mtp:
        groups = with_mtp(context, groups)
    groups.sort(key=lambda g: g.layers[0])
    stages = _stages(context, groups)
    _check_dcp(context, groups)
    fullest = max(stages, key=lambda s: (_sum(context, s), sum(g.state_bytes_per_layer * g.count for g in s)))
    block_size, cache_groups, transfer = arrange(context, fullest, groups)
    others = tuple(_arranged(context, stage, groups) for stage in stages if stage is not fullest)
    has_states = any(g.state_bytes_per_layer for g in groups)
    return KvLayout(
        model=model.name,
        architecture=str(fields.top["architectures"][0]),
        model_dtype=dtype,
        kv_cache_dtype=context.kv_dtype_label or context.kv_dtype,
        kv_dtype_from=context.kv_dtype_from,
        options=options,
        block_size_tokens=block_size,
        bytes_per_token=_bytes(context, stages, fullest, lambda g: not g.state_bytes_per_layer),
        growth_bytes_per_token=_bytes(context, stages, fullest, lambda g: g.grows),
        state_bytes_per_sequence=_bytes(context, stages, fullest, lambda g: g.state_bytes_per_layer > 0),
        layer_groups=tuple(groups),
        cache_groups=cache_groups,
        transfer=transfer,
        assumptions=(*_assumed(context), *context.assumptions),
        keys=_keys(context, groups),
        used=fields.used,
        max_tokens=_max_tokens(fields),
        recomputed_tokens=1 if has_states else 0,
        other_stages=others,
        notes=tuple(context.notes),
    )


def _stages(context: Context, groups: list[LayerGroup]) -> list[list[LayerGroup]]:
    """The layers of each pipeline stage, split as vLLM does: what is left over goes to the middle stages."""
    pp = context.options.pp
    if pp == 1:
        return [groups]
    count = context.fields.optional(*LAYERS, least=1) or max(max(g.layers) for g in groups) + 1
    if pp > count:
        raise context.refuse(f"{count} layers cannot be split over --pp {pp}.", "pp_larger_than_layers")
    sizes = [count // pp] * pp
    for i in range(2, count % pp + 2):
        sizes[-i] += 1
    stages, start = [], 0
    sizes[-1] += MAX_LAYERS  # draft layers follow the model's last stage
    for size in sizes:
        kept = []
        for group in groups:
            layers = tuple(i for i in group.layers if start <= i < start + size)
            if layers:
                kept.append(msgspec.structs.replace(group, layers=layers))
        stages.append(kept)
        start += size
    return stages


def _check_dcp(context: Context, groups: list[LayerGroup]) -> None:
    """Decode context parallel shards the tokens of full attention and MLA over ranks that hold copies."""
    dcp, tp = context.options.dcp, context.tp
    if dcp == 1:
        return
    if tp % dcp:
        raise context.refuse(f"--dcp {dcp} does not divide --tp {tp}.", "dcp_not_supported")
    for group in groups:
        if group.kind not in ("full_attention", "mla"):
            raise context.refuse(
                f"--dcp {dcp} together with a {group.kind.replace('_', ' ')} cache has no rule.",
                "dcp_not_supported",
            )
        if group.kind == "full_attention":
            copies = tp // max(1, context.kv_heads())
            if dcp > copies:
                raise context.refuse(
                    f"--dcp {dcp} needs {dcp} copies of each KV head, --tp {tp} makes {copies}.",
                    "dcp_not_supported",
                )


def _arranged(context: Context, stage: list[LayerGroup], whole: list[LayerGroup]) -> tuple[CacheGroup, ...]:
    return arrange(context, stage, whole)[1] if stage else ()


def _sum(context: Context, groups: Sequence[LayerGroup]) -> int:
    return sum(g.count * g.bytes_per_token_per_layer for g in groups)


def _bytes(
    context: Context,
    stages: list[list[LayerGroup]],
    fullest: list[LayerGroup],
    wanted: Callable[[LayerGroup], bool],
) -> Bytes:
    dcp = context.options.dcp

    def size(stage: list[LayerGroup]) -> int | float:
        total = sum(
            g.count * (g.bytes_per_token_per_layer + g.state_bytes_per_layer) for g in stage if wanted(g)
        )
        return total // dcp if total % dcp == 0 else total / dcp

    return Bytes(per_rank=size(fullest), all_ranks=context.tp * sum(size(s) for s in stages))


def _keys(context: Context, groups: Sequence[LayerGroup]) -> dict[str, tuple[str, ...]]:
    def of(wanted: Callable[[LayerGroup], bool]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for g in groups if wanted(g) for key in g.keys))

    dtype = [key for key in context.fields.used if key.endswith("dtype") or "quant" in key]
    found = {
        "bytes_per_token": of(lambda g: not g.state_bytes_per_layer),
        "growth_bytes_per_token": of(lambda g: g.grows),
        "state_bytes_per_sequence": of(lambda g: g.state_bytes_per_layer > 0),
        "kv_cache_dtype": tuple(dtype),
    }
    return {name: keys for name, keys in found.items() if keys}


def _assumed(context: Context) -> list[Assumption]:
    found = []
    if context.options.gpu_arch is None:
        why = "no GPU was given; attention backend and block size depend on it"
        found.append(Assumption(what="gpu_arch", value=f"{HOPPER} (Hopper)", why=why))
    elif context.gpu_arch != HOPPER:
        why = "the rules for this GPU were read from vLLM's source, not run on one"
        found.append(Assumption(what="gpu_arch", value=context.gpu_arch, why=why))
    fields = context.fields
    if not any(key.endswith("dtype") for key in fields.used):
        why = "config.json names no dtype; vLLM would read the weights' and use bfloat16 for float32"
        found.append(Assumption(what="dtype", value=context.dtype, why=why))
    why = f"config.json leaves it out; the default of transformers' class for {fields.model_type}"
    found += [
        Assumption(what=key, value=str(value), why=why)
        for key, value in fields.defaulted.items()
        if key in _SHAPING
    ]
    return found


def _max_tokens(fields: Fields) -> int | None:
    declared = fields.text.get("model_max_length")
    if isinstance(declared, int) and declared > 0:
        return declared
    found = [v for key in _LENGTHS if isinstance(v := fields.text.get(key), int) and v > 0]
    return min(found) if found else fields.class_default("max_position_embeddings")


def _check(options: LayoutOptions) -> None:
    for name in ("tp", "pp", "dcp", "block_size"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 1 << 20:
            raise UsageError(
                f"--{name.replace('_', '-')} {value} is not possible.", "Give a whole number from 1."
            )
    if options.block_size is not None and options.block_size % 16:
        raise UsageError(
            f"--block-size {options.block_size} is no multiple of 16.", "vLLM's kernels need one."
        )
    if options.gpu_arch is not None and not re.fullmatch(r"sm\d{2,3}", options.gpu_arch):
        raise UsageError(
            f"--gpu-arch {options.gpu_arch!r} is not of the form sm90.", "Hopper is sm90, Blackwell sm100."
        )
