"""Descriptor plans: what moves for a prompt."""

from __future__ import annotations

import pytest

from kvprobe.errors import UsageError
from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, resolve
from kvprobe.units import MIB

QWEN25_7B = ModelConfig(
    name="Qwen2.5-7B",
    config={
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    },
)


def test_qwen25_7b_moves_448_mib_in_14336_descriptors() -> None:
    found = plan(resolve(QWEN25_7B), 8192)
    (group,) = found.groups
    assert (group.regions, group.blocks, group.descriptor_bytes) == (28, 512, 32768)
    assert (found.descriptors, found.bytes, found.block_size_tokens) == (14336, 448 * MIB, 16)


def test_a_larger_block_and_a_packed_layout_give_fewer_descriptors_of_the_same_bytes() -> None:
    layout = resolve(QWEN25_7B)
    assert plan(layout, 8192, block_size=64).descriptors == 28 * 128
    assert plan(layout, 8192, block_size=64).bytes == 448 * MIB
    packed = plan(layout, 8192, packed=True)
    assert (packed.descriptors, packed.bytes) == (512, 448 * MIB)


def test_whole_blocks_move_and_cached_blocks_do_not() -> None:
    layout = resolve(QWEN25_7B)
    assert plan(layout, 1000).descriptors == 28 * 63
    assert plan(layout, 1000, cached_tokens=100).descriptors == 28 * (63 - 6)


def test_all_ranks_is_the_sum_over_tensor_parallel_ranks() -> None:
    found = plan(resolve(QWEN25_7B, LayoutOptions(tp=2)), 8192)
    assert (found.bytes, found.bytes_all_ranks) == (224 * MIB, 448 * MIB)


@pytest.mark.parametrize(("tokens", "cached"), [(0, 0), (-5, 0), (10, -1)])
def test_impossible_prompts_are_usage_errors(tokens: int, cached: int) -> None:
    with pytest.raises(UsageError):
        plan(resolve(QWEN25_7B), tokens, cached_tokens=cached)


def test_another_block_size_of_a_kernel_with_a_block_of_its_own() -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 2,
        "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    }  # fmt: skip
    layout = resolve(ModelConfig(name="m", config=config), LayoutOptions(kv_cache_dtype="fp8"))
    assert [plan(layout, 1024, block_size=size).descriptors for size in (16, 64, 128)] == [128, 32, 32]
