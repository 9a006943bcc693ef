"""Models that mix recurrent layers with attention: which layer is what."""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.models.kv_layout import recurrent
from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.mla import latent
from kvprobe.models.kv_layout.types import LayerGroup

_ATTENTION = {"attention", "full_attention", "*"}
_RECURRENT = {"linear_attention", "mamba", "mamba2", "conv", "M"}
_NEITHER = {"mlp", "moe", "-", "E", "O"}
GDN_ALIGNMENT, KDA_ALIGNMENT = 64, 16


def mamba_only(context: Context) -> list[LayerGroup]:
    """Mamba and Falcon-Mamba: ``intermediate_size`` as written (Falcon-Mamba's ``expand`` disagrees with it)."""
    layers = tuple(range(context.layers()))
    inner = context.fields.optional("intermediate_size", least=1) or (
        context.fields.count("expand") * context.fields.count("hidden_size")
    )
    return [
        recurrent.mamba1(
            context,
            layers,
            inner=inner,
            state=context.fields.count("state_size"),
            kernel=context.fields.count("conv_kernel"),
        )
    ]


def mamba2_only(context: Context) -> list[LayerGroup]:
    """Mamba-2 (Codestral)."""
    fields = context.fields
    layers = tuple(range(context.layers()))
    return [
        recurrent.mamba2(
            context,
            layers,
            inner=fields.count("expand") * fields.count("hidden_size"),
            heads=fields.count("num_heads"),
            head_dim=fields.count("head_dim"),
            groups=fields.count("n_groups"),
            state=fields.count("state_size"),
            kernel=fields.count("conv_kernel"),
        )
    ]


def jamba(context: Context) -> list[LayerGroup]:
    """Jamba: one attention layer a period, Mamba-1 elsewhere."""
    fields, count = context.fields, context.layers()
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", least=0)
    context.share()
    attention = tuple(i for i in range(count) if i % period == offset)
    group = recurrent.mamba1(
        context,
        tuple(i for i in range(count) if i % period != offset),
        inner=fields.count("mamba_expand") * fields.count("hidden_size"),
        state=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv"),
    )
    return _joined(context, attention, group)


def zamba2(context: Context) -> list[LayerGroup]:
    """Zamba2: Mamba-2 in every layer, attention of double width in the hybrid ones too."""
    fields = context.fields
    kinds = _kinds(context, "layers_block_type", context.layers())
    context.share()
    groups = fields.count("mamba_ngroups")
    if groups != 1 and groups % context.tp:
        raise context.refuse(
            f"{groups} Mamba groups cannot be divided over --tp {context.tp}.", "state_not_divisible_by_tp"
        )
    heads = fields.count("n_mamba_heads")
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    group = recurrent.mamba2(
        context,
        tuple(range(len(kinds))),
        inner=inner,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv"),
    )
    size = 2 * fields.count("hidden_size") // context.heads()
    layers = tuple(i for i, kind in enumerate(kinds) if kind == "hybrid")
    return [group, context.attention(layers, kv_heads=context.heads(), head_size=size)]


def falcon_h1(context: Context) -> list[LayerGroup]:
    """Falcon-H1: Mamba-2 and attention side by side in every layer."""
    layers = tuple(range(context.layers()))
    context.share()
    inner = context.fields.optional("mamba_d_ssm", least=1)
    return _joined(context, layers, _mamba2_of(context, layers, inner))


def granite_hybrid(context: Context) -> list[LayerGroup]:
    """Granite 4: ``layer_types`` (or ``layers_block_type``) of mamba and attention."""
    key = "layer_types" if context.fields.has("layer_types") else "layers_block_type"
    kinds = _kinds(context, key, context.layers())
    context.share()
    attention = tuple(i for i, kind in enumerate(kinds) if kind in _ATTENTION)
    mamba = tuple(i for i, kind in enumerate(kinds) if kind in _RECURRENT)
    if not mamba:
        return [
            context.attention(attention, kv_heads=context.kv_heads(), head_size=context.divided_head_dim())
        ]
    group = _mamba2_of(context, mamba, None)
    return _joined(context, attention, group, head_size=context.divided_head_dim)


def _mamba2_of(context: Context, layers: tuple[int, ...], inner: int | None) -> LayerGroup:
    fields = context.fields
    inner = inner or fields.count("mamba_expand") * fields.count("hidden_size")
    heads = fields.count("mamba_n_heads")
    written = fields.raw("mamba_d_head")
    head_dim = inner // heads if written in (None, "auto") else fields.whole(written, "mamba_d_head", 1)
    return recurrent.mamba2(
        context,
        layers,
        inner=inner,
        heads=heads,
        head_dim=head_dim,
        groups=fields.count("mamba_n_groups"),
        state=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv"),
    )


def nemotron_h(context: Context) -> list[LayerGroup]:
    """Nemotron-H: a pattern of M (Mamba-2), * (attention) and others; the state is float32 by default."""
    fields = context.fields
    key = next(
        (k for k in ("hybrid_override_pattern", "layers_block_type", "layer_types") if fields.has(k)), None
    )
    if key is None:
        raise context.refuse("config.json has no hybrid_override_pattern.", "missing_key")
    kinds = _kinds(context, key)
    context.share()
    heads, head_dim = fields.count("mamba_num_heads"), fields.count("mamba_head_dim")
    group = recurrent.mamba2(
        context,
        tuple(i for i, kind in enumerate(kinds) if kind in _RECURRENT),
        inner=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        groups=fields.count("n_groups", "mamba_n_groups"),
        state=fields.count("ssm_state_size"),
        kernel=fields.count("conv_kernel", "mamba_d_conv"),
        state_dtype=recurrent.state_dtype_of(context, "mamba_ssm_cache_dtype", "float32"),
    )
    return _joined(context, tuple(i for i, kind in enumerate(kinds) if kind in _ATTENTION), group)


def qwen_delta(context: Context) -> list[LayerGroup]:
    """Qwen3-Next, Qwen3.5 and OLMo-Hybrid: gated delta nets, every fourth layer attention."""
    count = context.layers()
    if context.fields.has("layer_types"):
        kinds = _kinds(context, "layer_types", count)
    else:
        step = context.fields.count("full_attention_interval", default=4)
        kinds = ["linear_attention" if (i + 1) % step else "full_attention" for i in range(count)]
    context.share()
    context.alignment = GDN_ALIGNMENT
    dtype = context.dtype
    if context.architecture.startswith("Qwen3_5"):
        dtype = recurrent.state_dtype_of(context, "mamba_ssm_dtype", context.dtype)
    group = recurrent.gated_delta_net(
        context, tuple(i for i, kind in enumerate(kinds) if kind in _RECURRENT), state_dtype=dtype
    )
    return _joined(context, tuple(i for i, kind in enumerate(kinds) if kind in _ATTENTION), group)


def olmo_hybrid(context: Context) -> list[LayerGroup]:
    """OLMo-Hybrid: the same states without Qwen's prefill checkpoints, so no block alignment."""
    groups = qwen_delta(context)
    context.alignment = 1
    return groups


def kimi_linear(context: Context) -> list[LayerGroup]:
    """Kimi-Linear: KDA and MLA layers, listed from 1."""
    count = context.layers()
    full = _numbers(context, "linear_attn_config.full_attn_layers", count)
    layers = _numbers(context, "linear_attn_config.kda_layers", count)
    if sorted((*full, *layers)) != list(range(count)):
        raise context.refuse("linear_attn_config does not name each layer once.", "bad_value")
    context.share()
    group = recurrent.kda(context, layers)
    context.alignment = KDA_ALIGNMENT
    return [group, *latent(context, full)]


def lfm2(context: Context) -> list[LayerGroup]:
    """LFM2: short convolutions and attention, by ``layer_types`` or ``full_attn_idxs``."""
    count = context.layers()
    if context.fields.has("layer_types"):
        kinds = _kinds(context, "layer_types", count)
    else:
        written = context.fields.items("full_attn_idxs")
        full = (
            range(count) if written is None else [context.fields.whole(i, "full_attn_idxs") for i in written]
        )
        kinds = ["full_attention" if i in full else "conv" for i in range(count)]
    context.share()
    attention = tuple(i for i, kind in enumerate(kinds) if kind in _ATTENTION)
    conv = tuple(i for i, kind in enumerate(kinds) if kind == "conv")
    if not conv:
        return [
            context.attention(attention, kv_heads=context.kv_heads(), head_size=context.divided_head_dim())
        ]
    return _joined(
        context, attention, recurrent.short_conv(context, conv), head_size=context.divided_head_dim
    )


def _joined(
    context: Context,
    attention: tuple[int, ...],
    group: LayerGroup,
    head_size: Callable[[], int] | None = None,
) -> list[LayerGroup]:
    if not attention:
        return [group]
    size = (head_size or context.head_dim)()
    return [group, context.attention(attention, kv_heads=context.kv_heads(), head_size=size)]


def _kinds(context: Context, key: str, layers: int | None = None) -> list[str]:
    """The layer kinds under ``key``, a list of names or a text of letters. Raises Refused on unknown ones."""
    value = context.fields.raw(key)
    names = list(value) if isinstance(value, str | list) else None
    if not names or len(names) > 4096:
        raise context.fields.wrong(key, value, "a kind for each layer")
    known = _ATTENTION | _RECURRENT | _NEITHER | {"hybrid"}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise context.refuse(
                f"{key} names the unknown layer kind {str(name)[:40]!r}.", "unknown_layer_type"
            )
    if layers is not None and len(names) != layers:
        raise context.refuse(f"{key} names {len(names)} layers, there are {layers}.", "bad_value")
    return names


def _numbers(context: Context, key: str, count: int) -> tuple[int, ...]:
    written = context.fields.items(key)
    if written is None:
        raise context.refuse(f"config.json has no {key}.", "missing_key")
    found = tuple(context.fields.whole(i, key, 1) - 1 for i in written)
    if any(i >= count for i in found):
        raise context.refuse(f"{key} names a layer beyond {count}.", "bad_value")
    return found
