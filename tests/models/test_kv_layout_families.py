"""The traps that other calculators fall into, one small config each; figures worked out by hand from the rules."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, NoKvCache, Refused, resolve

BASE = {"num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}  # fmt: skip


def layout(architecture: str, hf_quant: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **keys: Any) -> KvLayout:  # fmt: skip
    config = {"architectures": [architecture], **BASE, **keys}
    return resolve(
        ModelConfig(name="m", config=config, hf_quant_config=hf_quant), LayoutOptions(**(options or {}))
    )


def refusal(architecture: str, **keys: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        layout(architecture, **keys)
    return caught.value


def kinds(found: KvLayout) -> dict[str, tuple[int, int | None]]:
    return {g.kind: (g.count, g.window) for g in found.layer_groups}


@pytest.mark.parametrize(
    ("architecture", "keys", "wanted"),
    [
        ("LlamaForCausalLM", {}, {"full_attention": (8, None)}),
        ("LlamaForCausalLM", {"sliding_window": 100}, {"sliding_window": (8, 100)}),
        ("LlamaForCausalLM", {"sliding_window": 0}, {"full_attention": (8, None)}),
        ("LlamaForCausalLM", {"sliding_window": 100, "layer_types": ["full_attention"] * 8}, {"full_attention": (8, None)}),
        ("Qwen2ForCausalLM", {"sliding_window": 100}, {"full_attention": (8, None)}),
        ("Qwen2ForCausalLM", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 0}, {"sliding_window": (8, 100)}),
        ("Qwen3MoeForCausalLM", {"sliding_window": 100, "use_sliding_window": True}, {"sliding_window": (8, 100)}),
        ("Gemma2ForCausalLM", {"model_type": "gemma2", "sliding_window": 64}, {"sliding_window": (4, 64), "full_attention": (4, None)}),
        ("Gemma2ForCausalLM", {"model_type": "gemma2"}, {"sliding_window": (4, 4096), "full_attention": (4, None)}),
        ("Gemma3ForCausalLM", {"sliding_window": 64}, {"sliding_window": (7, 64), "full_attention": (1, None)}),
        ("Gemma3ForCausalLM", {"sliding_window": 64, "sliding_window_pattern": 2}, {"sliding_window": (4, 64), "full_attention": (4, None)}),
        ("Cohere2ForCausalLM", {"sliding_window": 64}, {"sliding_window": (6, 65), "full_attention": (2, None)}),
        ("GptOssForCausalLM", {"sliding_window": 64, "layer_types": ["full_attention"] * 8}, {"sliding_window": (4, 64), "full_attention": (4, None)}),
        ("CwmForCausalLM", {"sliding_window": 64}, {"full_attention": (2, None), "sliding_window": (6, 64)}),
        ("Llama4ForCausalLM", {"attention_chunk_size": 512}, {"chunked_attention": (6, 512), "full_attention": (2, None)}),
        ("Llama4ForCausalLM", {"no_rope_layers": [1, 0] * 4}, {"chunked_attention": (4, 8192), "full_attention": (4, None)}),
        ("Llama4ForCausalLM", {"attention_chunk_size": None}, {"full_attention": (8, None)}),
        ("SmolLM3ForCausalLM", {"sliding_window": 64, "use_sliding_window": True}, {"full_attention": (6, None), "sliding_window": (2, 64)}),
    ],
)  # fmt: skip
def test_which_layers_slide(architecture: str, keys: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert kinds(layout(architecture, **keys)) == wanted


@pytest.mark.parametrize(
    ("architecture", "keys", "heads", "size"),
    [
        ("LlamaForCausalLM", {}, 8, 128),
        ("LlamaForCausalLM", {"head_dim": 96}, 8, 96),
        ("LlamaForCausalLM", {"head_dim": None}, 8, 128),
        ("LlamaForCausalLM", {"num_key_value_heads": None}, 32, 128),
        ("MistralForCausalLM", {"model_type": "mistral", "num_key_value_heads": None, "sliding_window": None}, 32, 128),
        ("GemmaForCausalLM", {"model_type": "gemma"}, 8, 256),
        ("GPT2LMHeadModel", {}, 32, 128),
        ("PhiForCausalLM", {"num_key_value_heads": 32}, 32, 128),
        ("GPTBigCodeForCausalLM", {"multi_query": True}, 1, 128),
        ("GPTBigCodeForCausalLM", {}, 1, 128),
        ("GPTBigCodeForCausalLM", {"multi_query": False}, 32, 128),
        ("FalconForCausalLM", {"multi_query": True, "num_kv_heads": 4}, 1, 128),
        ("FalconForCausalLM", {"multi_query": True, "num_kv_heads": 4, "new_decoder_architecture": True}, 4, 128),
        ("FalconForCausalLM", {"multi_query": False}, 32, 128),
        ("ChatGLMModel", {"multi_query_attention": True, "multi_query_group_num": 2}, 2, 128),
        ("DbrxForCausalLM", {"attn_config": {"kv_n_heads": 4}}, 4, 128),
        ("MiniCPM3ForCausalLM", {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32}, 32, 96),
    ],
)  # fmt: skip
def test_heads_and_sizes(architecture: str, keys: dict[str, Any], heads: int, size: int) -> None:
    (group,) = layout(architecture, **keys).layer_groups
    assert (group.kv_heads_per_rank, group.head_size) == (heads, size)


def test_tp_divides_copies_or_is_refused() -> None:
    sizes = {tp: layout("LlamaForCausalLM", options={"tp": tp}).bytes_per_token for tp in (1, 8, 16)}
    assert sizes[8].per_rank * 8 == sizes[1].per_rank == sizes[8].all_ranks
    assert sizes[16].per_rank == sizes[8].per_rank
    assert sizes[16].all_ranks == 2 * sizes[1].all_ranks
    assert refusal("LlamaForCausalLM", options={"tp": 5}).reason_code == "heads_not_divisible_by_tp"
    found = refusal("LlamaForCausalLM", num_key_value_heads=12, num_attention_heads=96, options={"tp": 8})
    assert found.reason_code == "kv_heads_not_divisible_by_tp"


LATENT = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def test_mla_is_one_latent_row_on_every_rank() -> None:
    one, eight = (layout("DeepseekV3ForCausalLM", options={"tp": tp}, **LATENT) for tp in (1, 8))
    assert one.bytes_per_token.per_rank == eight.bytes_per_token.per_rank == 8 * 576 * 2
    assert eight.bytes_per_token.all_ranks == 8 * one.bytes_per_token.all_ranks
    assert (
        layout("DeepseekV3ForCausalLM", options={"kv_cache_dtype": "fp8"}, **LATENT).block_size_tokens == 64
    )


def test_latents_without_a_listed_type_are_refused() -> None:
    found = refusal("DeepseekV3ForCausalLM", **{**LATENT, "model_type": "something_new"})
    assert found.reason_code == "unknown_mla_type"
    assert "something_new" in found.reason


def test_a_large_fp8_mla_block_moves_as_kernel_blocks_of_64() -> None:
    found = layout("DeepseekV3ForCausalLM", options={"kv_cache_dtype": "fp8", "block_size": 128}, **LATENT)
    assert plan(found, 1024).descriptors == 8 * 1024 // 64
    assert plan(found, 1024).bytes == 8 * 1024 * 576


SPARSE = {**LATENT, "model_type": "glm_moe_dsa", "index_topk": 2048, "index_head_dim": 128}


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, 8),
        ({"index_topk_freq": 4}, 3),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 4),
        ({"index_topk_pattern": "FSFSFSFS"}, 4),
        ({"indexer_types": ["full", "shared"] * 4}, 4),
    ],
)
def test_which_layers_have_an_index(keys: dict[str, Any], layers: int) -> None:
    found = layout("GlmMoeDsaForCausalLM", **SPARSE, **keys)
    assert kinds(found)["indexer"] == (layers, None)
    assert found.bytes_per_token.per_rank == 8 * 1152 + layers * 132


def test_fp8_of_a_sparse_model_depends_on_who_asks() -> None:
    by_hand = layout("GlmMoeDsaForCausalLM", options={"kv_cache_dtype": "fp8"}, **SPARSE)
    assert (by_hand.kv_cache_dtype, by_hand.bytes_per_token.per_rank) == ("fp8_ds_mla", 8 * (656 + 132))
    modelopt = {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    of_file = layout("GlmMoeDsaForCausalLM", **SPARSE, **modelopt)
    assert (of_file.kv_cache_dtype, of_file.bytes_per_token.per_rank) == ("fp8_e4m3", 8 * (576 + 132))
    assert (
        refusal("GlmMoeDsaForCausalLM", options={"block_size": 16}, **SPARSE).reason_code
        == "block_size_not_supported"
    )


MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
}
TENSORS = {"quant_method": "compressed-tensors"}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


@pytest.mark.parametrize(
    ("keys", "hf_quant", "dtype"),
    [
        ({}, None, "bfloat16"),
        ({"torch_dtype": "float32"}, None, "bfloat16"),
        ({"torch_dtype": "float16"}, None, "float16"),
        ({"torch_dtype": None, "dtype": "float16"}, None, "float16"),
        ({}, MODELOPT, "fp8_e4m3"),
        ({}, {"quantization": MODELOPT["quantization"]}, "bfloat16"),
        ({"quantization_config": {"quant_method": "fp8"}}, MODELOPT, "bfloat16"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, None, "bfloat16"),
        ({"quantization_config": {"quant_method": "awq"}}, None, "bfloat16"),
        ({"quantization_config": MODELOPT}, None, "fp8_e4m3"),
        ({"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": FLOAT8}}, None, "fp8_e4m3"),
        (
            {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}},
            None,
            "bfloat16",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "NVFP4"}},
            None,
            "nvfp4",
        ),
        ({"quantization_config": TENSORS}, None, "bfloat16"),
        ({"quantization_config": {**TENSORS, "kv_cache_scheme": FLOAT8}}, None, "fp8"),
    ],
)
def test_the_weights_dtype_is_not_the_caches(
    keys: dict[str, Any], hf_quant: dict[str, Any] | None, dtype: str
) -> None:
    assert layout("LlamaForCausalLM", hf_quant, **keys).kv_cache_dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "bytes_a_layer"),
    [
        ("nvfp4", 1152),
        ("int8_per_token_head", 2112),
        ("fp8_per_token_head", 2112),
        ("int4_per_token_head", 1088),
    ],
)
def test_formats_with_scales_in_the_page(dtype: str, bytes_a_layer: int) -> None:
    found = layout("LlamaForCausalLM", options={"kv_cache_dtype": dtype})
    assert found.bytes_per_token.per_rank == 8 * bytes_a_layer


@pytest.mark.parametrize(
    ("architecture", "keys", "code"),
    [
        ("FooBarForCausalLM", {}, "unknown_architecture"),
        ("T5ForConditionalGeneration", {}, "unknown_architecture"),
        ("BaichuanForCausalLM", {}, "removed_architecture"),
        ("BartForConditionalGeneration", {}, "plugin_architecture"),
        ("DeepseekV4ForCausalLM", {}, "architecture_without_rule"),
        ("PhiForCausalLM", {"model_type": "phi-msft"}, "unknown_model_type"),
        ("LlavaForConditionalGeneration", {"text_config": {"model_type": "novel"}}, "unknown_architecture"),
        ("Exaone4ForCausalLM", {"sliding_window": 64, "sliding_window_pattern": "LLLG"}, "missing_key"),
        ("BloomForCausalLM", {"options": {"kv_cache_dtype": "fp8"}}, "no_backend"),
        ("LlamaForCausalLM", {"options": {"mtp": True}}, "no_mtp_layers"),
        ("LlamaForCausalLM", {"options": {"tp": 8, "dcp": 2}}, "dcp_not_supported"),
        ("LlamaForCausalLM", {"options": {"kv_cache_dtype": "turboquant_k8v4"}}, "kv_dtype_not_supported"),
        ("DeepseekV3ForCausalLM", {**LATENT, "options": {"gpu_arch": "sm80"}}, "gpu_not_supported"),
    ],
)
def test_refusals_name_their_reason(architecture: str, keys: dict[str, Any], code: str) -> None:
    found = refusal(architecture, **keys)
    assert found.reason_code == code
    assert found.reason.startswith("m: ")


def test_an_encoder_has_no_cache_and_that_is_an_answer() -> None:
    with pytest.raises(NoKvCache):
        layout("BertModel")


def test_a_nested_text_config_leaves_out_what_its_class_knows() -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
              "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}}  # fmt: skip
    found = resolve(ModelConfig(name="gemma-3-4b", config=config))
    assert found.bytes_per_token.per_rank == 34 * 2 * 4 * 256 * 2
    assert {a.what: a.value for a in found.assumptions}["num_attention_heads"] == "8"


def test_mtp_layers_are_caches_too() -> None:
    keys = {"num_nextn_predict_layers": 1, "head_dim": 128}
    plain, speculating = (layout("Glm4MoeForCausalLM", options={"mtp": mtp}, **keys) for mtp in (False, True))
    assert plain.bytes_per_token.per_rank * 9 == speculating.bytes_per_token.per_rank * 8


def test_a_chunk_that_ends_with_the_prompt_is_refused_as_vllm_does() -> None:
    found = layout("Llama4ForCausalLM", attention_chunk_size=512)
    assert plan(found, 1023).bytes
    with pytest.raises(Refused, match="assertion"):
        plan(found, 1024)


def test_blackwell_chooses_other_mla_blocks() -> None:
    found = layout("DeepseekV3ForCausalLM", options={"gpu_arch": "sm100", "kv_cache_dtype": "fp8"}, **LATENT)
    assert (found.block_size_tokens, found.bytes_per_token.per_rank) == (32, 8 * 576)
    sparse = layout("GlmMoeDsaForCausalLM", options={"gpu_arch": "sm100"}, **SPARSE)
    assert (sparse.kv_cache_dtype, sparse.bytes_per_token.per_rank) == ("fp8_e4m3", 8 * (576 + 132))


@pytest.mark.parametrize(
    ("options", "descriptors"),
    [
        ({"block_size": 128}, 8),
        ({"block_size": 128, "gpu_arch": "sm100"}, 8),
        ({"block_size": 96, "gpu_arch": "sm100"}, 8 * 3),
        ({"block_size": 128, "gpu_arch": "sm89"}, 8),
        ({"block_size": 128, "gpu_arch": "sm89", "kv_cache_dtype": "fp8"}, 16),
        ({"block_size": 128, "kv_cache_dtype": "fp8"}, 8),
        ({"block_size": 128, "kv_cache_dtype": "fp8_e5m2"}, 16),
    ],
)
def test_blocks_that_the_kernel_cuts_move_in_pieces(options: dict[str, Any], descriptors: int) -> None:
    assert plan(layout("LlamaForCausalLM", options=options), options["block_size"]).descriptors == descriptors


def test_each_group_names_the_keys_that_it_came_from() -> None:
    found = layout("GptOssForCausalLM", sliding_window=64)
    windowed, full = found.layer_groups
    assert {"num_hidden_layers", "num_key_value_heads", "sliding_window"} <= set(windowed.keys)
    assert {"num_hidden_layers", "num_key_value_heads", "num_attention_heads"} <= set(full.keys)
    assert "sliding_window" not in found.keys["growth_bytes_per_token"]
    assert found.used["sliding_window"] == 64
    assert found.keys["kv_cache_dtype"] == ("torch_dtype",)


def test_mla_ignores_the_scheme_of_compressed_tensors() -> None:
    found = layout(
        "DeepseekV3ForCausalLM", **LATENT, quantization_config={**TENSORS, "kv_cache_scheme": FLOAT8}
    )
    assert (found.kv_cache_dtype, found.block_size_tokens) == ("bfloat16", 16)
    assert "kv_cache_scheme" in found.notes[0]


def test_a_stage_of_one_kind_does_not_hide_that_the_model_mixes_kinds() -> None:
    kinds_of = ["full_attention"] * 4 + ["sliding_attention"] * 4
    found = layout("LlamaForCausalLM", sliding_window=64, layer_types=kinds_of, options={"pp": 2})
    assert found.transfer.reason_code == "nixl_pp_with_hybrid"
    assert layout("LlamaForCausalLM", options={"pp": 2}).transfer.status == "ok"
