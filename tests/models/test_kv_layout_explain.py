"""The printed arithmetic: each figure can be redone from the line it stands in."""

from __future__ import annotations

import re

from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, resolve
from kvprobe.models.kv_layout.explain import explain, layer_ranges

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_size": 2880, "sliding_window": 128, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_products_in_the_lines_are_right() -> None:
    layout = resolve(ModelConfig(name="m", config=GPT_OSS), LayoutOptions(tp=2))
    lines = explain(layout, [plan(layout, 8192)])
    checked = 0
    for line in lines:
        match = re.search(r"^  ([\d,]+) x ([\d,]+) B = ([\d,]+) B", line)
        if match:
            a, b, c = (int(text.replace(",", "")) for text in match.groups())
            assert a * b == c, line
            checked += 1
        match = re.search(r"([\d,]+) regions x ([\d,]+) x ([\d,]+) B = ([\d,]+) B", line)
        if match:
            a, b, c, d = (int(text.replace(",", "")) for text in match.groups())
            assert a * b * c == d, line
            checked += 1
    assert checked >= 4
    assert any("floor((8,192 - 128 + 1) / 16) = 8 blocks" in line for line in lines)
    assert any("sliding_window" in line and "from" in line for line in lines)


def test_layer_ranges() -> None:
    assert layer_ranges([0, 1, 2, 3, 5, 7, 8]) == "0-3, 5, 7-8"
    assert layer_ranges([0, 0, 1, 1]) == "0-1"
    assert layer_ranges(range(0, 64, 2)).count(",") == 10
