"""Multi-head latent attention: one latent vector a token, the same on every TP rank; sparse MLA adds an indexer."""

from __future__ import annotations

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.dtypes import FP8
from kvprobe.models.kv_layout.full import standard
from kvprobe.models.kv_layout.types import LayerGroup

MLA_TYPES = {
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_linear",
    "longcat_flash", "pangu_ultra_moe",
}  # fmt: skip
"""Model types for which vLLM 0.33 uses MLA when ``kv_lora_rank`` is set (``is_deepseek_mla``)."""
_DS_MLA_BYTES = 656
"""FlashMLA's FP8 row: 512 latent bytes, four FP32 scales, 64 RoPE values in bfloat16."""
_INDEX_GROUP = 128
_FLASHMLA_WIDTH = 576


def mla(context: Context) -> list[LayerGroup]:
    """All layers latent (DeepSeek-V2/V3, Kimi-K2, GLM-4.7-Flash); sparse ones with an indexer."""
    if not context.fields.has("kv_lora_rank"):
        return _without_latent(context)
    return latent(context, tuple(range(context.layers())))


def longcat(context: Context) -> list[LayerGroup]:
    """LongCat-Flash: two latent caches in each decoder layer."""
    layers = context.fields.count("num_layers", "num_hidden_layers")
    return latent(context, tuple(i for i in range(layers) for _ in range(2)))


def _without_latent(context: Context) -> list[LayerGroup]:
    """DeepSeek classes without ``kv_lora_rank`` expand K and V to full heads."""
    if context.fields.has("qk_nope_head_dim") or context.fields.has("qk_rope_head_dim"):
        nope = context.fields.count("qk_nope_head_dim", default=0, least=0)
        rope = context.fields.count("qk_rope_head_dim", default=0, least=0)
        if nope + rope:
            raise context.refuse(
                "expanded MLA heads without kv_lora_rank have no rule.", "missing_key", "Check config.json."
            )
    return standard()(context)


def latent(context: Context, layers: tuple[int, ...]) -> list[LayerGroup]:
    """The latent group of ``layers``, and the indexer group where ``index_topk`` asks for one."""
    context.share()
    kind = context.fields.model_type
    if kind not in MLA_TYPES:
        raise context.refuse(
            f"kv_lora_rank is set, but the model type {kind or '(none)'} has no MLA rule.", "unknown_mla_type"
        )
    sparse = context.fields.optional("index_topk") is not None and kind in (
        "deepseek_v32", "glm_moe_dsa", "deepseek_v3",
    )  # fmt: skip
    rank = context.fields.count("kv_lora_rank")
    rope = context.fields.count("qk_rope_head_dim", default=0, least=0)
    if context.kv_dtype == "fp8" and context.kv_dtype_from != "option":
        context.notes.append(
            "vLLM's MLA layers ignore compressed-tensors' kv_cache_scheme: the cache keeps the model's dtype."
        )
        context.kv_dtype, context.kv_dtype_from = context.dtype, "model dtype"
    quantized = context.kv_dtype in FP8
    if sparse:
        _sparse_blocks(context)
        if kind == "glm_moe_dsa" and context.blackwell and context.kv_dtype_from == "model dtype":
            context.kv_dtype = "fp8_e4m3"
    else:
        _dense_blocks(context, quantized, rank + rope)
    if context.kv_dtype == "fp8_ds_mla" and not sparse:
        raise context.refuse(
            "no backend of vLLM stores a dense MLA cache as fp8_ds_mla.",
            "no_backend",
            "Use --kv-cache-dtype fp8.",
        )
    if context.kv_dtype == "fp8_ds_mla" or (sparse and context.kv_dtype == "fp8" and not context.blackwell):
        # FLASHMLA_SPARSE reads fp8 as an alias of its own packed rows; fp8_e4m3 goes to FlashInfer instead.
        context.kv_dtype = "fp8_ds_mla"
        return [*_indexers(context, layers, sparse), _packed(context, layers, rank, rope)]
    indexers = _indexers(context, layers, sparse)
    size = (rank + rope) * context.element
    row = context.replicated(
        "mla",
        layers,
        width=rank + rope,
        size=size,
        dtype=context.kv_dtype,
        arithmetic=(
            f"one latent vector, the same on all {context.tp} TP ranks",
            f"a layer and token: ({rank} latent + {rope} RoPE) x {context.element} B = {size:,} B",
        ),
    )
    return [*indexers, row]


def _packed(context: Context, layers: tuple[int, ...], rank: int, rope: int) -> LayerGroup:
    if (rank, rope) != (512, 64):
        raise context.refuse(
            f"fp8_ds_mla is defined for 512 + 64 values a token, not for {rank} + {rope}.",
            "kv_dtype_not_supported",
        )
    return context.replicated(
        "mla",
        layers,
        width=rank + rope,
        size=_DS_MLA_BYTES,
        dtype="fp8_ds_mla",
        arithmetic=(f"a layer and token: 512 FP8 + 4 FP32 scales + 64 bfloat16 = {_DS_MLA_BYTES} B",),
    )


def _dense_blocks(context: Context, quantized: bool, width: int) -> None:
    """bfloat16: FLASH_ATTN_MLA, any multiple of 16. FP8: FLASHMLA, blocks of 64; TRITON_MLA for all else."""
    asked = context.options.block_size
    if context.gpu_arch == "sm90":
        if quantized and width == _FLASHMLA_WIDTH and (asked is None or asked % 64 == 0):
            context.default_block = context.kernel_block = 64
    elif context.blackwell:
        if asked is not None and asked % 32:
            raise context.refuse(
                f"FLASHINFER_MLA takes no --block-size {asked}.", "block_size_not_supported", "Use 32 or 64."
            )
        context.default_block = 32
        context.kernel_block = 64 if asked is not None and asked % 64 == 0 else 32
    else:
        raise context.refuse(
            f"the block size of MLA on {context.gpu_arch} has no rule.",
            "gpu_not_supported",
            "Give --gpu-arch sm90 or sm100.",
        )


def _sparse_blocks(context: Context) -> None:
    if context.gpu_arch != "sm90" and not context.blackwell:
        raise context.refuse(f"sparse MLA on {context.gpu_arch} has no rule.", "gpu_not_supported")
    context.default_block = context.kernel_block = 64
    asked = context.options.block_size
    if asked is not None and asked % 64:
        raise context.refuse(
            f"no sparse MLA backend takes --block-size {asked}.",
            "block_size_not_supported",
            "Use 64, or leave it out.",
        )


def _indexers(context: Context, layers: tuple[int, ...], sparse: bool) -> list[LayerGroup]:
    if not sparse:
        return []
    kept = context.fields.take()
    width = context.fields.count("index_head_dim", default=128)
    full = _index_layers(context, layers)
    size = width + 4 * -(-width // _INDEX_GROUP)
    group = context.replicated(
        "indexer",
        full,
        width=size,
        size=size,
        dtype="fp8_e4m3",
        arithmetic=(
            f"index key: {width} FP8 bytes + 4 B scale per {_INDEX_GROUP} = {size} B a layer and token, on every rank",
        ),
    )
    context.fields.keep(kept)
    return [group] if full else []


def _index_layers(context: Context, layers: tuple[int, ...]) -> tuple[int, ...]:
    """Layers with an index of their own; the others use a neighbour's."""
    fields = context.fields
    names = fields.items("indexer_types")
    pattern = fields.raw("index_topk_pattern") if names is None else None
    if names is None and pattern is not None:
        if not isinstance(pattern, str | list):
            raise fields.wrong("index_topk_pattern", pattern, "a text or a list")
        names = list(pattern)
    if names is not None:
        known = {"full": True, "F": True, "shared": False, "S": False}
        if len(names) < len(layers) or any(not isinstance(n, str) or n not in known for n in names):
            raise fields.wrong("indexer_types", names, f"full or shared for each of {len(layers)} layers")
        return tuple(i for i in layers if known[names[i]])
    step = max(fields.count("index_topk_freq", default=1, least=0), 1)
    offset = fields.count("index_skip_topk_offset", default=2, least=0)
    return tuple(i for i in layers if max(i - offset + 1, 0) % step == 0)
