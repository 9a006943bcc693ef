"""Damaged and hostile configs: a reason, never a number and never a traceback."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import KvprobeError, UsageError
from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, Refused, resolve
from kvprobe.models.kv_layout.families import FAMILIES, WRAPPERS

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def refuse(config: Any, **options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        resolve(ModelConfig(name="m", config=config), LayoutOptions(**options))
    assert caught.value.reason.startswith("m:")
    assert caught.value.reason_code
    return caught.value


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"]
)
@pytest.mark.parametrize("value", [-1, "32", 1.5, math.nan, math.inf, 10**30, True, [], {}, [32], {"a": 1}])
def test_a_number_of_the_wrong_type_or_range(key: str, value: Any) -> None:
    assert key in refuse({**LLAMA, key: value}).reason


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_a_missing_size_at_the_top_level(key: str) -> None:
    config = {k: v for k, v in LLAMA.items() if k != key}
    assert refuse(config).reason_code == "missing_key"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"architectures": None}, "unknown_architecture"),
        ({"architectures": []}, "unknown_architecture"),
        ({"architectures": "LlamaForCausalLM"}, "unknown_architecture"),
        ({"architectures": [7]}, "unknown_architecture"),
        ({"architectures": ["X" * 10_000_000]}, "unknown_architecture"),
        ({"layer_types": ["full_attention"]}, "bad_value"),
        ({"layer_types": ["sideways_attention"] * 32}, "unknown_layer_type"),
        ({"layer_types": [None] * 32}, "unknown_layer_type"),
        ({"layer_types": "full_attention"}, "bad_value"),
        ({"layer_types": ["full_attention"] * 1_000_000}, "bad_value"),
        ({"layer_types": ["sliding_attention"] * 32}, "missing_key"),
        ({"torch_dtype": "int3"}, "bad_value"),
        ({"torch_dtype": {"a": []}}, "bad_value"),
        ({"quantization_config": "fp8"}, "bad_value"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": 8}}, "bad_value"),
        ({"num_hidden_layers": 1_000_000}, "bad_value"),
        ({"num_attention_heads": 4096, "hidden_size": 64}, "bad_value"),
        ({"sliding_window": "wide"}, "bad_value"),
        ({"text_config": {"architectures": ["LlamaForCausalLM"]}}, None),
    ],
)
def test_damage_has_a_code(change: dict[str, Any], code: str | None) -> None:
    config = {**LLAMA, **change}
    if code is None:
        assert resolve(ModelConfig(name="m", config=config)).assumptions
        return
    refusal = refuse(config)
    assert refusal.reason_code == code
    assert len(refusal.reason) < 400


@pytest.mark.parametrize("config", [None, [], "text", 7])
def test_a_config_that_is_no_object(config: Any) -> None:
    assert "JSON object" in refuse(config).reason


@pytest.mark.parametrize("options", [{"tp": 0}, {"tp": -8}, {"pp": 0}, {"dcp": 10**9}, {"block_size": 7}, {"block_size": -16}, {"gpu_arch": "hopper"}, {"kv_cache_dtype": "fp3"}])  # fmt: skip
def test_impossible_options_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        resolve(ModelConfig(name="m", config=LLAMA), LayoutOptions(**options))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=12,
)
_KEYS = """num_hidden_layers num_attention_heads num_key_value_heads hidden_size head_dim sliding_window layer_types
    torch_dtype quantization_config text_config kv_lora_rank qk_rope_head_dim index_topk indexer_types mamba_d_state
    mamba_expand mamba_n_heads mamba_d_head mamba_n_groups mamba_d_conv layers_block_type hybrid_override_pattern
    attn_layer_period attn_layer_offset block_configs hybrid_layer_pattern attn_config no_rope_layers
    attention_chunk_size num_kv_shared_layers linear_attn_config full_attention_interval conv_L_cache n_groups
    linear_num_value_heads sparse_attention_config max_position_embeddings model_type use_sliding_window"""
KEYS = st.sampled_from(_KEYS.split())
_NUMBERS = """num_hidden_layers num_attention_heads num_key_value_heads hidden_size head_dim kv_lora_rank qk_rope_head_dim
    qk_nope_head_dim sliding_window mamba_d_state mamba_expand mamba_n_heads mamba_n_groups mamba_d_conv n_groups
    mamba_num_heads mamba_head_dim ssm_state_size conv_kernel state_size expand num_heads linear_num_key_heads
    linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim intermediate_size
    decoder_layers decoder_attention_heads d_model swa_head_dim swa_num_key_value_heads n_mamba_heads mamba_ngroups
    swa_num_attention_heads conv_L_cache attn_layer_period num_layers"""
NUMBERS = dict.fromkeys(_NUMBERS.split(), 8)


@given(
    st.sampled_from([*FAMILIES, *WRAPPERS]),
    st.dictionaries(KEYS, JSON, max_size=6),
    st.booleans(),
    st.sampled_from(["auto", "fp8", "nvfp4", "fp8_ds_mla", "int8_per_token_head"]),
    st.sampled_from([1, 2, 8]),
)
def test_any_config_gives_a_layout_or_a_reason(
    architecture: str, damage: dict[str, Any], numbers: bool, dtype: str, tp: int
) -> None:
    config = {"architectures": [architecture], **(NUMBERS if numbers else {}), **damage}
    try:
        layout = resolve(ModelConfig(name="m", config=config), LayoutOptions(kv_cache_dtype=dtype, tp=tp))
        assert isinstance(layout, KvLayout)
        plan(layout, 5000)
    except KvprobeError as error:
        assert str(error)
