"""Which layers keep every token, which a sliding window, and which an attention chunk.

Transformers writes the answer into ``layer_types``; where a config leaves it out, its class computes it, and
vLLM sees the computed list. A plain ``sliding_window`` of a class without such a list holds for every layer
(vLLM's ``CacheConfig.sliding_window``).
"""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.types import LayerGroup

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_SYNONYMS = {
    "full_attention": FULL, "attention": FULL, "global": FULL, "global_attention": FULL, "indexed_attention": FULL,
    "sliding_attention": SLIDING, "sliding_window": SLIDING, "sliding_window_attention": SLIDING, "local": SLIDING,
    "chunked_attention": CHUNKED,
}  # fmt: skip
Kinds = Callable[[Context, int], list[str]]


def window_of(context: Context) -> int | None:
    """``sliding_window``; None for null and 0, which switch it off."""
    if "sliding_window" in context.fields.text and not context.fields.has("sliding_window"):
        return None
    return context.fields.optional("sliding_window") or None


def written_kinds(context: Context, layers: int) -> list[str] | None:
    """``layer_types`` of the config, one a layer; None if it has none. Raises Refused on unknown names."""
    written = context.fields.items("layer_types")
    if written is None:
        return None
    if len(written) != layers:
        raise context.refuse(f"layer_types names {len(written)} layers, there are {layers}.", "bad_value")
    for kind in written:
        if not isinstance(kind, str) or kind not in _SYNONYMS:
            raise context.refuse(
                f"layer_types names the layer kind {str(kind)[:40]!r}, for which {context.architecture} has no rule.",
                "unknown_layer_type",
            )
    return [_SYNONYMS[kind] for kind in written]


def every(period: int, *keys: str, full_first: bool = False) -> Kinds:
    """One full layer in ``period`` (or in the number under a key): the last of each run, or the first."""

    def kinds(context: Context, layers: int) -> list[str]:
        step = context.fields.optional(*keys, least=1) if keys else None
        step = step or period
        at = 0 if full_first else step - 1
        return [FULL if i % step == at else SLIDING for i in range(layers)]

    return kinds


def all_alike(context: Context, layers: int) -> list[str]:
    """Every layer slides when the config has a window, else none."""
    return [SLIDING if window_of(context) else FULL] * layers


def none_slide(context: Context, layers: int) -> list[str]:
    """The class keeps every token, whatever ``sliding_window`` says."""
    return [FULL] * layers


def qwen_gate(context: Context, layers: int) -> list[str]:
    """``use_sliding_window`` switches the number on; then the layers from ``max_window_layers`` slide."""
    if not context.fields.flag("use_sliding_window", False) or window_of(context) is None:
        return [FULL] * layers
    start = context.fields.count("max_window_layers", default=layers, least=0)
    return [SLIDING if i >= start else FULL for i in range(layers)]


def qwen_moe_gate(context: Context, layers: int) -> list[str]:
    """``use_sliding_window`` switches the number on for every layer."""
    return all_alike(context, layers) if context.fields.flag("use_sliding_window", False) else [FULL] * layers


def exaone(context: Context, layers: int) -> list[str]:
    """Every n-th layer is full. Without ``layer_types`` transformers computes it, and fails on what is no number."""
    pattern = context.fields.raw("sliding_window_pattern")
    if window_of(context) is None or isinstance(pattern, str):
        raise context.refuse(
            "transformers cannot compute the absent layer_types of this config, so vLLM does not start.",
            "missing_key",
            "Write layer_types into config.json.",
        )
    return every(4, "sliding_window_pattern")(context, layers)


def smollm3(context: Context, layers: int) -> list[str]:
    """Layers without RoPE slide, if ``use_sliding_window`` is set."""
    if not context.fields.flag("use_sliding_window", False) or window_of(context) is None:
        return [FULL] * layers
    return [FULL if rope else SLIDING for rope in no_rope_layers(context, layers, 4)]


def no_rope_layers(context: Context, layers: int, interval: int) -> list[bool]:
    """``no_rope_layers`` (true: the layer has RoPE), computed from the interval where the list is absent."""
    written = context.fields.items("no_rope_layers")
    if written:
        if len(written) < layers or any(v not in (0, 1) for v in written):
            raise context.fields.wrong("no_rope_layers", written, f"a 0 or 1 for each of {layers} layers")
        return [bool(v) for v in written[:layers]]
    step = context.fields.count("no_rope_layer_interval", default=interval)
    return [(i + 1) % step != 0 for i in range(layers)]


def windowed(
    context: Context,
    kinds: list[str],
    *,
    kv_heads: int | None = None,
    head_size: int | None = None,
    extra: int = 0,
    first: int = 0,
) -> list[LayerGroup]:
    """Groups by kind, of layers that all have the same heads. ``extra``: tokens the class adds to the window."""
    heads = kv_heads or context.kv_heads()
    size = head_size or context.head_dim()
    context.share()
    groups = []
    for kind in dict.fromkeys(kinds):
        layers = tuple(i + first for i, k in enumerate(kinds) if k == kind)
        if kind == FULL:
            groups.append(context.attention(layers, kv_heads=heads, head_size=size))
            continue
        if kind == SLIDING:
            window = window_of(context)
            if window is None:
                raise context.refuse("layers slide, but the config gives no sliding_window.", "missing_key")
            window += extra
        else:
            window = context.fields.count("attention_chunk_size", default=8192)
        groups.append(
            context.attention(
                layers,
                kv_heads=heads,
                head_size=size,
                kind="sliding_window" if kind == SLIDING else "chunked_attention",
                window=window,
            )
        )
    return groups
