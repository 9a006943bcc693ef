"""Every model of the case collection, each entry computed with vLLM 0.33's own code: exact to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import KvLayout, LayoutOptions, ModelConfig, NoKvCache, Refused, resolve

CASES = sorted((Path(__file__).parent.parent / "cases" / "kv_size").glob("*.json"))


def layout_of(case: dict[str, Any], options: dict[str, Any]) -> KvLayout:
    block = options.get("block_size", "default")
    block = block[0] if isinstance(block, list) else block
    return resolve(
        ModelConfig(name=case["name"], config=case["config"], hf_quant_config=case["hf_quant_config"]),
        LayoutOptions(
            kv_cache_dtype=options["kv_cache_dtype"],
            tp=options["tp"],
            block_size=None if block == "default" else block,
        ),
    )


def test_the_collection_is_here() -> None:
    assert len(CASES) == 78


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path) -> None:
    case = json.loads(path.read_text())
    for entry in case["expected"]:
        try:
            layout = layout_of(case, entry["options"])
        except NoKvCache:
            assert entry["status"] == "no_kv_cache"
        except Refused as refusal:
            assert entry["status"] == "refused" or "unsupported" in case["accept"], entry["options"]
            if "unsupported" not in case.get("accept", []):
                assert refusal.reason_code == entry["reason_code"]
        else:
            assert entry["status"] == "ok", entry["options"]
            check(entry, layout)


def check(entry: dict[str, Any], layout: KvLayout) -> None:
    found = msgspec.to_builtins(layout)
    for key in ("model_dtype", "kv_cache_dtype", "block_size_tokens", "bytes_per_token", "growth_bytes_per_token", "state_bytes_per_sequence"):  # fmt: skip
        assert found[key] == entry[key], (entry["options"], key)
    groups = sorted(g["layers"] for g in entry["cache_groups"])
    assert sorted(len(g.layers) for g in layout.cache_groups) == groups
    transfer = entry["nixl_transfer"]
    assert layout.transfer.status == transfer["status"]
    if "reason_code" in transfer:
        assert layout.transfer.reason_code == transfer["reason_code"]
    for tokens, wanted in transfer.get("prompts", {}).items():
        if "per_rank" not in wanted:
            with pytest.raises(Refused):
                plan(layout, int(tokens))
            continue
        planned = plan(layout, int(tokens))
        assert (planned.bytes, planned.bytes_all_ranks, planned.descriptors) == (
            wanted["per_rank"], wanted["all_ranks"], wanted["descriptors_per_rank"],
        ), (entry["options"], tokens)  # fmt: skip
        assert sorted(planned.blocks_per_cache_group) == sorted(wanted["blocks_per_cache_group"])
        assert planned.longer_than_model == wanted.get("longer_than_model", False)
