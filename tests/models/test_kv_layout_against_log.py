"""A decode log against the computed bytes: the figures are those of samples/logs (Qwen2.5-7B on two H200)."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, resolve
from kvprobe.models.kv_layout.against_log import Agreement, Logged, compare
from kvprobe.units import MIB

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3584, "torch_dtype": "bfloat16", "max_position_embeddings": 32768,
}  # fmt: skip


def judged(
    mib: float, *lengths: int, transfers: int = 4, descriptors: float | None = None, **options: Any
) -> Agreement:
    layout = resolve(ModelConfig(name="m", config=QWEN), LayoutOptions(**options))
    entry = Logged(
        line=1, transfers=transfers, bytes_per_transfer=mib * MIB, descriptors_per_transfer=descriptors
    )
    return compare(layout, [entry], lengths)


@pytest.mark.parametrize(
    ("mib", "lengths", "verdict"),
    [
        (448.0, [8192], "agrees"),
        (448.0, [512, 8192], "agrees"),
        (447.5, [8192], "agrees"),
        (224.0, [8192], "explained"),
        (112.0, [8192], "explained"),
        (400.0, [8192], "explained"),
        (896.0, [8192], "unmatched"),
        (1640.625, [8192], "unmatched"),
        (448.0, [], "possible"),
        (3000.0, [], "disagrees"),
        (3000.0, [8192], "disagrees"),
    ],
)
def test_verdict(mib: float, lengths: list[int], verdict: str) -> None:
    assert judged(mib, *lengths).verdict == verdict


def test_the_implied_length_is_the_one_that_was_sent() -> None:
    (line,) = judged(1640.625).lines
    assert line.implied_tokens == pytest.approx(30_000)


def test_twice_the_bytes_name_the_three_reasons() -> None:
    found = judged(896.0, 8192)
    assert "2 times" in found.explanation
    assert "--tp" in found.explanation


def test_a_log_of_another_dtype_has_smaller_descriptors() -> None:
    found = judged(224.0, 8192, descriptors=14336.0)
    assert found.verdict == "disagrees"
    assert "a descriptor" in found.explanation
    assert judged(224.0, 8192, descriptors=14336.0, kv_cache_dtype="fp8").verdict == "agrees"


def test_one_transfer_of_part_of_a_block_is_impossible() -> None:
    assert judged(448.3, transfers=1).verdict == "disagrees"
    assert judged(448.3, transfers=3).verdict == "possible"


def test_intervals_without_transfers_say_nothing() -> None:
    assert judged(0.0, 8192, transfers=0).verdict == "nothing"


def test_a_line_that_agrees_outweighs_other_lengths_but_not_a_contradiction() -> None:
    layout = resolve(ModelConfig(name="m", config=QWEN))
    entries = [
        Logged(line=n, transfers=2, bytes_per_transfer=size * MIB)
        for n, size in enumerate((448, 1640.625, 28), 1)
    ]
    assert compare(layout, entries, [8192]).verdict == "agrees"
    worse = [*entries, Logged(line=9, transfers=1, bytes_per_transfer=9000 * MIB)]
    assert compare(layout, worse, [8192]).verdict == "disagrees"


def test_states_that_move_with_every_prompt_are_no_tokens() -> None:
    config = {
        "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M*M*", "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "hidden_size": 2688, "mamba_num_heads": 64,
        "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "torch_dtype": "bfloat16",
    }  # fmt: skip
    from kvprobe.models.descriptors import plan

    layout = resolve(ModelConfig(name="m", config=config))
    entry = Logged(line=1, transfers=1, bytes_per_transfer=float(plan(layout, 8192).bytes))
    agreement = compare(layout, [entry], [8192])
    assert agreement.verdict == "agrees"
    assert agreement.lines[0].implied_tokens == pytest.approx(4 * layout.block_size_tokens)
    nothing = Logged(line=1, transfers=1, bytes_per_transfer=100.0)
    assert compare(layout, [nothing], []).verdict == "disagrees"
