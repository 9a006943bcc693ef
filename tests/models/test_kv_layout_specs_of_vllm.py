"""More architectures: each layer's KVCacheSpec and the cache groups of vLLM 0.33's own classes.

``kv_size_specs.json`` was recorded from vLLM 0.33.0 and transformers 5.20.2: the model built on torch's meta device,
the platform answering as an H200 (no GPU, no weights), ``get_kv_cache_spec`` of every layer, ``get_kv_cache_groups``.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, resolve

RECORDED = json.loads((Path(__file__).parent.parent / "cases" / "kv_size_specs.json").read_text())


def test_the_recording_is_here() -> None:
    assert len(RECORDED) >= 50


@pytest.mark.parametrize("entry", RECORDED, ids=lambda e: f"{e['name']}-{e['kv_cache_dtype']}-tp{e['tp']}")
def test_equal_to_vllm(entry: dict[str, Any]) -> None:
    model = ModelConfig(name=entry["name"], config=entry["config"], hf_quant_config=entry["hf_quant_config"])
    layout = resolve(model, LayoutOptions(kv_cache_dtype=entry["kv_cache_dtype"], tp=entry["tp"]))
    found = Counter[tuple[str, int, int | None]]()
    for group in layout.layer_groups:
        state = group.state_bytes_per_layer
        found["state" if state else "token", state or group.bytes_per_token_per_layer, group.window] += (
            group.count
        )
    assert found == {(c["unit"], c["bytes"], c["window"]): c["layers"] for c in entry["caches"]}
    assert layout.block_size_tokens == entry["block_size"]
    assert sorted([len(g.layers), g.block_size_tokens] for g in layout.cache_groups) == entry["groups"]
