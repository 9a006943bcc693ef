"""Models whose layers differ in heads or head size, or share the cache of another layer; encoder-decoders."""

from __future__ import annotations

from kvprobe.models.kv_layout import windows
from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.dtypes import FP8
from kvprobe.models.kv_layout.types import LayerGroup


def llama4(context: Context) -> list[LayerGroup]:
    """Llama 4: layers with RoPE attend in chunks, every fourth keeps all tokens."""
    layers = context.layers()
    rope = windows.no_rope_layers(context, layers, 4)
    chunk = context.fields.optional("attention_chunk_size")
    written = context.fields.text.get("attention_chunk_size", "absent")
    if written is None or chunk == 0:
        rope = [False] * layers
    return windows.windowed(context, [windows.CHUNKED if r else windows.FULL for r in rope])


def gemma3n(context: Context) -> list[LayerGroup]:
    """Gemma-3n: the last layers use an earlier layer's cache."""
    layers = context.layers()
    kinds = windows.written_kinds(context, layers) or windows.every(5)(context, layers)
    return windows.windowed(context, kinds[: _own_caches(context, layers, 15)])


def gemma4(context: Context) -> list[LayerGroup]:
    """Gemma 4: full layers have their own head size (and KV heads where K equals V); the last layers share."""
    fields, layers = context.fields, context.layers()
    kinds = windows.written_kinds(context, layers) or windows.every(6)(context, layers)
    kinds[-1] = windows.FULL
    kinds = kinds[: _own_caches(context, layers, 0)]
    window = windows.window_of(context)
    size, kv_heads = context.head_dim(), context.kv_heads()
    context.share()
    groups = []
    for kind in dict.fromkeys(kinds):
        own = tuple(i for i, k in enumerate(kinds) if k == kind)
        if kind == windows.SLIDING:
            if window is None:
                raise context.refuse("layers slide, but the config gives no sliding_window.", "missing_key")
            groups.append(
                context.attention(
                    own, kv_heads=kv_heads, head_size=size, kind="sliding_window", window=window
                )
            )
            continue
        wide = fields.optional("global_head_dim", least=1) or 512
        heads = kv_heads
        if fields.flag("attention_k_eq_v", True):
            heads = fields.optional("num_global_key_value_heads", least=1) or kv_heads
        if wide == 512 and context.gpu_arch == "sm90" and context.kv_dtype in FP8:
            # FA4's FP8 kernel for head size 512 works on tiles of 64 tokens.
            context.default_block = 64
        groups.append(context.attention(own, kv_heads=heads, head_size=wide))
    return groups


def _own_caches(context: Context, layers: int, default: int) -> int:
    shared = context.fields.optional("num_kv_shared_layers")
    shared = default if shared is None else shared
    if shared >= layers:
        raise context.refuse(f"{shared} of {layers} layers share a cache.", "bad_value", "Check config.json.")
    return layers - shared


def mimo_v2(context: Context) -> list[LayerGroup]:
    """MiMo-V2: sliding layers have heads and sizes of their own (``swa_*``), and V is narrower than K."""
    fields, layers = context.fields, context.layers()
    pattern = fields.items("hybrid_layer_pattern")
    if pattern is None or len(pattern) < layers or any(v not in (0, 1) for v in pattern):
        raise context.refuse("hybrid_layer_pattern is no 0 or 1 for each layer.", "missing_key")
    context.share()
    groups = []
    full = tuple(i for i in range(layers) if not pattern[i])
    sliding = tuple(i for i in range(layers) if pattern[i])
    if full:
        size = context.head_dim()
        groups.append(
            context.attention(
                full,
                kv_heads=context.kv_heads(),
                head_size=size,
                head_size_v=fields.optional("v_head_dim", least=1) or size,
            )
        )
    if sliding:
        size = fields.count("swa_head_dim")
        groups.append(
            context.attention(
                sliding,
                kv_heads=fields.count("swa_num_key_value_heads"),
                heads=fields.count("swa_num_attention_heads"),
                head_size=size,
                head_size_v=fields.optional("swa_v_head_dim", least=1) or size,
                kind="sliding_window",
                window=fields.count("sliding_window_size", "sliding_window"),
            )
        )
    return groups


def step3p5(context: Context) -> list[LayerGroup]:
    """Step-3.5: ``layer_types`` may go on for the MTP layers; query heads differ by kind, KV heads do not."""
    layers = context.layers()
    written = context.fields.items("layer_types") or []
    if len(written) < layers or any(
        k not in ("full_attention", "sliding_attention") for k in written[:layers]
    ):
        raise context.refuse("layer_types does not name each layer full or sliding.", "missing_key")
    return windows.windowed(context, [str(kind) for kind in written[:layers]])


def nemotron_nas(context: Context) -> list[LayerGroup]:
    """Nemotron-NAS (DeciLM): each block has its own attention, or none."""
    blocks = context.fields.items("block_configs")
    if not blocks:
        raise context.refuse("config.json has no block_configs.", "missing_key")
    heads = context.heads()
    by_heads: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise context.refuse(f"block {index} of block_configs has no attention.", "bad_value")
        if attention.get("no_op") or attention.get("replace_with_linear"):
            continue
        share = context.fields.whole(attention.get("n_heads_in_group"), "n_heads_in_group", 1)
        if heads % share:
            raise context.refuse(f"{heads} heads make no groups of {share}.", "bad_value")
        by_heads.setdefault(heads // share, []).append(index)
    size = context.head_dim()
    context.share()
    return [context.attention(tuple(own), kv_heads=n, head_size=size) for n, own in by_heads.items()]


def minimax_m3(context: Context) -> list[LayerGroup]:
    """MiniMax-M3: GQA everywhere, and an index cache in the model's dtype on the sparse layers."""
    if context.gpu_arch != "sm90":
        raise context.refuse(f"MiniMax-M3 on {context.gpu_arch} has no rule.", "gpu_not_supported")
    fields, layers = context.fields, context.layers()
    prefix = "sparse_attention_config." if fields.has("sparse_attention_config") else ""
    sparse = fields.items(f"{prefix}sparse_attention_freq")
    context.share()
    group = context.attention(tuple(range(layers)), kv_heads=context.kv_heads(), head_size=context.head_dim())
    context.default_block = 128
    if sparse is None:
        raise context.refuse("config.json has no sparse_attention_freq.", "missing_key")
    width = fields.count(f"{prefix}sparse_index_dim")
    own = tuple(i for i in range(layers) if i < len(sparse) and sparse[i] == 1)
    if not own:
        return [group]
    index = context.replicated(
        "indexer",
        own,
        width=width,
        size=width * 2,
        dtype=context.dtype,
        arithmetic=(f"index key: {width} x 2 B = {width * 2} B a layer and token, on every rank",),
    )
    return [group, index]


def whisper(context: Context) -> list[LayerGroup]:
    """Encoder-decoder: self-attention of the decoder, and cross-attention over the encoder's positions."""
    fields = context.fields
    layers = tuple(range(fields.count("decoder_layers")))
    heads = fields.count("decoder_attention_heads")
    size = fields.count("d_model", "hidden_size") // heads
    context.share()
    own = context.attention(layers, kv_heads=heads, head_size=size, heads=heads)
    cross = context.attention(layers, kv_heads=heads, head_size=size, heads=heads, kind="cross_attention")
    context.notes.append("Cross-attention holds the encoder's positions, not the prompt's tokens.")
    context.refuse_requests = (
        "vLLM refuses every request of an encoder-decoder model that has a KV connector.",
        "encoder_decoder_not_supported",
    )
    return [own, cross]
