"""What must hold for any model: hypothesis draws the shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, Refused, resolve

POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def dense(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(POWERS)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": draw(st.integers(1, 96)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(POWERS) * 8,
        "hidden_size": 8192,
        "head_dim": draw(st.sampled_from([64, 80, 96, 128, 192, 256])),
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
    }
    if draw(st.booleans()):
        config["sliding_window"] = draw(st.integers(16, 8192))
    return config


@st.composite
def mixed(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(2, 64))
    kinds = draw(
        st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers)
    )
    return draw(dense()) | {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "sliding_window": draw(st.integers(16, 8192)),
    }


@st.composite
def latent(draw: st.DrawFn) -> dict[str, Any]:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": draw(st.integers(1, 80)),
        "num_attention_heads": 128,
        "hidden_size": 7168,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "torch_dtype": "bfloat16",
    }
    if draw(st.booleans()):
        config |= {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
        config |= {"index_topk": 2048, "index_head_dim": 128}
    return config


@st.composite
def recurrent(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(4, 64))
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": draw(POWERS),
        "hidden_size": 4096,
        "head_dim": 256,
        "full_attention_interval": draw(st.integers(2, 4)),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": draw(st.sampled_from([16, 32, 48, 64])),
        "mamba_ssm_dtype": "float32",
        "torch_dtype": "bfloat16",
    }


ANY = st.one_of(dense(), mixed(), latent(), recurrent())


def resolved(config: dict[str, Any], **options: Any) -> Any:
    return resolve(ModelConfig(name="drawn", config=config), LayoutOptions(**options))


@given(ANY, st.integers(1, 200_000), st.integers(1, 200_000), POWERS)
def test_more_tokens_never_move_fewer_growing_bytes(
    config: dict[str, Any], one: int, other: int, tp: int
) -> None:
    layout = resolved(config, tp=tp)
    short, long = sorted((one, other))
    few, many = plan(layout, short), plan(layout, long)
    growing = [i for i, g in enumerate(layout.cache_groups) if g.window is None]
    assert all(few.blocks_per_cache_group[i] <= many.blocks_per_cache_group[i] for i in growing)
    if all(g.window is None for g in layout.cache_groups):
        assert few.bytes <= many.bytes


@given(ANY, POWERS)
def test_all_ranks_together_hold_at_least_one_whole_cache(config: dict[str, Any], tp: int) -> None:
    whole, split = resolved(config), resolved(config, tp=tp)
    assert split.bytes_per_token.per_rank * tp == split.bytes_per_token.all_ranks
    assert split.bytes_per_token.all_ranks >= whole.bytes_per_token.per_rank
    assert split.bytes_per_token.per_rank <= whole.bytes_per_token.per_rank
    assert split.state_bytes_per_sequence.all_ranks >= whole.state_bytes_per_sequence.per_rank


@given(st.one_of(dense(), mixed(), recurrent()), POWERS)
def test_fp8_is_half_of_sixteen_bits_and_states_do_not_change(config: dict[str, Any], tp: int) -> None:
    wide, narrow = resolved(config, tp=tp), resolved(config, tp=tp, kv_cache_dtype="fp8")
    assert narrow.bytes_per_token.per_rank * 2 == wide.bytes_per_token.per_rank
    assert narrow.state_bytes_per_sequence == wide.state_bytes_per_sequence


@given(ANY, st.integers(1, 100_000), POWERS)
def test_a_plan_holds_the_prompt_and_whole_pages_only(config: dict[str, Any], tokens: int, tp: int) -> None:
    layout = resolved(config, tp=tp)
    planned = plan(layout, tokens)
    assert planned.bytes == sum(g.regions * g.blocks * g.descriptor_bytes for g in planned.groups)
    assert planned.descriptors == sum(g.regions * g.blocks for g in planned.groups)
    held = (tokens - layout.recomputed_tokens) * layout.growth_bytes_per_token.per_rank
    assert planned.bytes >= held
    for group, blocks in zip(layout.cache_groups, planned.blocks_per_cache_group, strict=True):
        if group.window:
            assert blocks <= -(-group.window // group.block_size_tokens) + 1


@given(recurrent(), POWERS)
def test_a_hybrid_page_holds_a_state(config: dict[str, Any], tp: int) -> None:
    layout = resolved(config, tp=tp)
    state = max(g.state_bytes_per_layer for g in layout.layer_groups)
    assert all(g.page_bytes >= state for g in layout.cache_groups)
    assert layout.block_size_tokens % 64 == 0


@given(ANY)
def test_groups_cover_each_cache_once(config: dict[str, Any]) -> None:
    layout = resolved(config)
    assert sum(len(g.layers) for g in layout.cache_groups) == sum(g.count for g in layout.layer_groups)


@given(st.one_of(dense(), latent()), st.sampled_from([2, 3, 4]))
def test_pipeline_stages_share_the_layers(config: dict[str, Any], pp: int) -> None:
    whole = resolved(config)
    if config["num_hidden_layers"] < pp:
        with pytest.raises(Refused):
            resolved(config, pp=pp)
        return
    split = resolved(config, pp=pp)
    assert split.bytes_per_token.all_ranks == whole.bytes_per_token.all_ranks
    assert split.bytes_per_token.per_rank * pp >= whole.bytes_per_token.per_rank
    if split.transfer.status == "ok":
        assert plan(split, 1000).bytes_all_ranks == plan(whole, 1000).bytes_all_ranks


@given(st.sampled_from([2, 4, 8]))
def test_decode_context_parallel_shards_the_latents(dcp: int) -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61,
        "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    }  # fmt: skip
    whole, split = resolved(config, tp=dcp), resolved(config, tp=dcp, dcp=dcp)
    assert split.bytes_per_token.per_rank * dcp == whole.bytes_per_token.per_rank
    assert split.bytes_per_token.all_ranks == resolved(config).bytes_per_token.per_rank
    assert plan(split, 16 * dcp * 100).bytes * dcp == plan(whole, 16 * dcp * 100).bytes
