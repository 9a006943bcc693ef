"""vLLM's declared caches against the computed ones; the spec figures are vLLM 0.33's for Gemma-3-like layers."""

from __future__ import annotations

import msgspec

from kvprobe.models.kv_layout import KvLayout, ModelConfig, resolve
from kvprobe.models.kv_layout.specs import VllmSpec, VllmSpecs, compare_specs


def layout() -> KvLayout:
    config = {
        "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "hidden_size": 2560, "sliding_window": 1024, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return resolve(ModelConfig(name="m", config=config))


def declared(windowed: int = 5, full: int = 1, block: int = 16) -> VllmSpecs:
    page = block * 2 * 4 * 256 * 2
    specs = [
        VllmSpec(layer=f"w{i}", kind="SlidingWindowSpec", page_bytes=page, block_size=block, window=1024)
        for i in range(windowed)
    ]
    specs += [
        VllmSpec(layer=f"f{i}", kind="FullAttentionSpec", page_bytes=page, block_size=block)
        for i in range(full)
    ]
    return VllmSpecs(version="0.33.0", block_size=block, specs=tuple(specs))


def test_equal() -> None:
    found = compare_specs(layout(), declared())
    assert found.differences == ()
    assert found.vllm["bytes_per_token"] == {"per_rank": 6 * 4096}


def test_another_window_pattern_and_block_size_are_told() -> None:
    found = compare_specs(layout(), declared(windowed=4, full=2, block=32))
    assert len(found.differences) == 3
    assert "vLLM has 2 layers, computed are 1" in " ".join(found.differences)
    assert "block size: vLLM has 32" in found.differences[-1]


def test_states_count_by_sequence() -> None:
    specs = VllmSpecs(
        version="0.33.0",
        block_size=16,
        specs=(VllmSpec(layer="a", kind="MambaSpec", page_bytes=1000, block_size=16),),
    )
    assert compare_specs(None, specs).vllm["state_bytes_per_sequence"] == {"per_rank": 1000}


def test_without_a_layout_there_is_nothing_to_differ_from() -> None:
    found = compare_specs(None, declared())
    assert found.differences == () and found.vllm["layers"] == 6
    assert msgspec.to_builtins(found)["version"] == "0.33.0"
