"""From a config and options to a layout: gate, dtype, family, blocks, sums."""

from __future__ import annotations

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.architectures import family_of
from kvprobe.models.kv_layout.blocks import arrange
from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.dtypes import model_dtype, resolve_kv_dtype
from kvprobe.models.kv_layout.fields import Fields
from kvprobe.models.kv_layout.types import (
    Assumption,
    Bytes,
    KvLayout,
    LayerGroup,
    LayoutOptions,
    ModelConfig,
)

HOPPER = "sm90"


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
    if options.gpu_arch is None:
        context.assumptions.append(
            Assumption(
                what="gpu_arch", value=HOPPER, why="no GPU was given; backend and block size depend on it"
            )
        )
    groups = family(context)
    block_size, cache_groups, transfer = arrange(context, groups)
    return KvLayout(
        model=model.name,
        architecture=architecture,
        model_dtype=dtype,
        kv_cache_dtype=context.kv_dtype,
        options=options,
        block_size_tokens=block_size,
        bytes_per_token=_sum(context, [g for g in groups if not g.state_bytes_per_layer]),
        growth_bytes_per_token=_sum(context, [g for g in groups if g.grows]),
        state_bytes_per_sequence=_sum(context, [g for g in groups if g.state_bytes_per_layer]),
        layer_groups=tuple(groups),
        cache_groups=cache_groups,
        transfer=transfer,
        assumptions=tuple(context.assumptions),
        keys={g.kind: g.keys for g in groups},
        used=fields.used,
        max_tokens=fields.optional(
            "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"
        ),
        notes=tuple(context.notes),
    )


def _sum(context: Context, groups: list[LayerGroup]) -> Bytes:
    per_rank = sum(g.count * (g.bytes_per_token_per_layer + g.state_bytes_per_layer) for g in groups)
    return Bytes(per_rank=per_rank, all_ranks=per_rank * context.options.tp)


def _check(options: LayoutOptions) -> None:
    for name in ("tp", "pp", "dcp", "block_size"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 1 << 20:
            raise UsageError(
                f"--{name.replace('_', '-')} {value} is not possible.", "Give a whole number from 1."
            )
