"""Full and windowed attention with one geometry: MHA, GQA and MQA, K and V of every layer alike."""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.models.kv_layout import windows
from kvprobe.models.kv_layout.context import HEADS, Context
from kvprobe.models.kv_layout.types import LayerGroup, NoKvCache

Family = Callable[[Context], list[LayerGroup]]


def standard(
    kinds: windows.Kinds = windows.all_alike,
    *,
    reads_layer_types: bool = True,
    mixes: bool = True,
    extra: int = 0,
    kv_heads: Callable[[Context], int] = Context.kv_heads,
    head_size: Callable[[Context], int] = Context.head_dim,
) -> Family:
    """A family whose layers differ in the window alone.

    ``kinds`` answers where ``layer_types`` is absent. ``reads_layer_types`` False: the class decides by itself.
    ``mixes`` False: the class has no window of a layer, so a mixed list keeps every token (vLLM's
    ``CacheConfig.sliding_window`` counts only where all layers slide).
    """

    def family(context: Context) -> list[LayerGroup]:
        layers = context.layers()
        found = windows.written_kinds(context, layers) if reads_layer_types else None
        found = found if found is not None else kinds(context, layers)
        if not mixes and len(set(found)) > 1:
            found = [windows.FULL] * layers
        return windows.windowed(
            context, found, kv_heads=kv_heads(context), head_size=head_size(context), extra=extra
        )

    return family


def gated(kinds: windows.Kinds, *, strict: bool) -> Family:
    """Qwen: ``use_sliding_window`` false drops the window even when ``layer_types`` would use it.

    vLLM's classes take a window on all layers or on none; the ``strict`` ones stop on a mixture.
    """

    def family(context: Context) -> list[LayerGroup]:
        layers = context.layers()
        on = context.fields.flag("use_sliding_window", False)
        written = windows.written_kinds(context, layers)
        found = written if written is not None and on else kinds(context, layers)
        if len(set(found)) > 1:
            if strict and context.fields.count("max_window_layers", default=layers, least=0) != layers:
                raise context.refuse(
                    "vLLM's Qwen classes do not take a sliding window on some layers only.", "mixed_windows"
                )
            found = [windows.FULL] * layers
        return windows.windowed(context, found)

    return family


def one_kv_head(context: Context) -> int:
    """Step3's multi-matrix factorization attention: a single KV head, copied to every rank."""
    return 1


def falcon_kv_heads(context: Context) -> int:
    """One head with ``multi_query``, unless the new decoder architecture counts ``num_kv_heads``."""
    if context.fields.flag("new_decoder_architecture", False):
        return context.fields.optional("num_kv_heads", "n_head_kv", least=1) or context.heads()
    return 1 if context.fields.flag("multi_query", True) else context.heads()


def falcon(context: Context) -> list[LayerGroup]:
    """Falcon; with rotary embeddings the class never hands the cache options to its attention layers."""
    quantized = context.kv_dtype != context.dtype
    if quantized and context.fields.flag("alibi", False):
        raise _alibi(context)
    if quantized:
        context.notes.append(
            f"The class FalconForCausalLM does not apply --kv-cache-dtype: the cache stays {context.dtype}."
        )
        asked, context.kv_dtype = context.kv_dtype, context.dtype
        context.kv_dtype_label = f"{context.dtype} (requested {asked}, not applied by this model class)"
    layers = tuple(range(context.layers()))
    kv_heads = falcon_kv_heads(context)
    size = context.divided_head_dim()
    return [context.attention(layers, kv_heads=kv_heads, head_size=size)]


def bloom(context: Context) -> list[LayerGroup]:
    """Bloom: every head is a KV head; ALiBi has no backend with an FP8 cache."""
    if context.kv_dtype != context.dtype:
        raise _alibi(context)
    layers = tuple(range(context.layers()))
    return [context.attention(layers, kv_heads=context.heads(), head_size=context.divided_head_dim())]


def _alibi(context: Context) -> Exception:
    return context.refuse(
        f"no attention backend of vLLM combines ALiBi with a {context.kv_dtype} cache.",
        "no_backend",
        "Use --kv-cache-dtype auto.",
    )


def bigcode_kv_heads(context: Context) -> int:
    """One head unless ``multi_query`` is false."""
    return 1 if context.fields.flag("multi_query", True) else context.heads()


def chatglm_kv_heads(context: Context) -> int:
    """``multi_query_group_num`` if ``multi_query_attention``."""
    if context.fields.flag("multi_query_attention", False):
        return context.fields.count("multi_query_group_num")
    return context.heads()


def dbrx_kv_heads(context: Context) -> int:
    """``attn_config.kv_n_heads``."""
    return context.fields.count("attn_config.kv_n_heads", default=1)


def minicpm3_head_size(context: Context) -> int:
    """MiniCPM3 stores expanded heads of the no-position and the RoPE part; V is padded to K's width."""
    return context.fields.count("qk_nope_head_dim") + context.fields.count("qk_rope_head_dim")


def encoder_only(context: Context) -> list[LayerGroup]:
    """Encoders compute all tokens at once and keep nothing."""
    heads = context.fields.optional(*HEADS, least=1)
    if heads:
        context.check_heads(heads)
    raise NoKvCache(f"{context.name}: {context.architecture} is an encoder; vLLM keeps no KV cache for it.")
