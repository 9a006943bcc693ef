"""Recurrent states: constant bytes per sequence. A convolution part and a state part, as one rank stores them.

Sizes as in vLLM 0.33's ``MambaStateShapeCalculator``; NIXL cuts the convolution of Mamba-2 and of the delta
nets into its three projections, because each is sharded on its own.
"""

from __future__ import annotations

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.dtypes import MODEL_DTYPES
from kvprobe.models.kv_layout.types import LayerGroup

Layers = tuple[int, ...]


def mamba1(context: Context, layers: Layers, *, inner: int, state: int, kernel: int) -> LayerGroup:
    """Mamba-1: ``inner`` channels of the whole model."""
    local = context.split(inner, "Mamba channels")
    conv = local * (kernel - 1)
    return context.state(
        layers,
        "mamba1",
        (
            ("convolution", (local, kernel - 1), context.dtype, (conv,)),
            ("state", (local, state), context.dtype, (local * state,)),
        ),
    )


def mamba2(
    context: Context,
    layers: Layers,
    *,
    inner: int,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    kernel: int,
    state_dtype: str | None = None,
) -> LayerGroup:
    """Mamba-2: groups that TP does not divide are extended, so that each rank has the groups of its heads."""
    tp = context.tp
    extended = groups if groups % tp == 0 else tp
    if extended != groups:
        context.notes.append(f"{groups} Mamba groups are extended to {extended}, one a rank.")
    if extended % tp or (groups % tp and groups > tp):
        raise context.refuse(f"{groups} Mamba groups fit no --tp {tp}.", "state_not_divisible_by_tp")
    width = context.split(inner + 2 * extended * state, "Mamba channels")
    local, local_heads = context.split(inner, "Mamba channels"), context.split(heads, "Mamba heads")
    group_width = extended * state // tp
    taps = kernel - 1
    return context.state(
        layers,
        "mamba2",
        (
            (
                "convolution",
                (width, taps),
                context.dtype,
                (local * taps, group_width * taps, group_width * taps),
            ),
            (
                "state",
                (local_heads, head_dim, state),
                state_dtype or context.dtype,
                (local_heads * head_dim * state,),
            ),
        ),
    )


def gated_delta_net(context: Context, layers: Layers, *, state_dtype: str | None = None) -> LayerGroup:
    """Qwen3-Next's gated delta net and its relatives, from the ``linear_*`` keys."""
    fields = context.fields
    key_heads, value_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    key_dim, value_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    taps = fields.count("linear_conv_kernel_dim") - 1
    local_keys = context.split(key_heads * key_dim, "delta-net key channels")
    local_values = context.split(value_heads * value_dim, "delta-net value channels")
    local_heads = context.split(value_heads, "delta-net value heads")
    return context.state(
        layers,
        "gated_delta_net",
        (
            (
                "convolution",
                (2 * local_keys + local_values, taps),
                context.dtype,
                (local_keys * taps, local_keys * taps, local_values * taps),
            ),
            (
                "state",
                (local_heads, value_dim, key_dim),
                state_dtype or context.dtype,
                (local_heads * value_dim * key_dim,),
            ),
        ),
    )


def kda(context: Context, layers: Layers) -> LayerGroup:
    """Kimi delta attention: the state is float32 always."""
    fields = context.fields
    heads, dim = fields.count("linear_attn_config.num_heads"), fields.count("linear_attn_config.head_dim")
    taps = fields.count("linear_attn_config.short_conv_kernel_size") - 1
    channels = context.split(heads * dim, "KDA channels")
    local = context.split(heads, "KDA heads")
    return context.state(
        layers,
        "kda",
        (
            (
                "convolution",
                (3 * channels, taps),
                context.dtype,
                (channels * taps,) * 3,
            ),
            ("state", (local, dim, dim), "float32", (local * dim * dim,)),
        ),
    )


def short_conv(context: Context, layers: Layers) -> LayerGroup:
    """LFM2's short convolution: no state part."""
    key = "hidden_size" if context.architecture == "Lfm2MoeForCausalLM" else "conv_dim"
    channels = context.split(context.fields.count(key), "convolution channels")
    taps = context.fields.count("conv_L_cache") - 1
    context.refuse_transfer = (
        "NixlConnector moves the states of Mamba-1, Mamba-2 and delta nets, not of short convolutions.",
        "nixl_short_conv_not_supported",
    )
    return context.state(
        layers, "short_conv", (("convolution", (channels, taps), context.dtype, (channels * taps,)),)
    )


def state_dtype_of(context: Context, key: str, default: str) -> str:
    """The dtype name under ``key``; ``default`` for an absent one or ``auto``. Raises Refused on others."""
    name = context.fields.word(key)
    if name is None or name == "auto":
        return default
    if name not in MODEL_DTYPES:
        raise context.fields.wrong(key, name, "float32, float16 or bfloat16")
    return name
