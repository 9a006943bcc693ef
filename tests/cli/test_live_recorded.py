"""``live`` against the real vLLM 0.30.0 on 2x H200 that the scenarios recorded, and the decode logs of those runs."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvprobe.render import Look, renderer
from kvprobe.report import decode
from tests.simulator.running import kvprobe

ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = ("nvlink", "no-cuda-ipc")
TAX_MS = {
    "nvlink": {512: 34.9, 2048: 58.8, 8192: 88.1, 16384: 129.3},
    "no-cuda-ipc": {512: 114.0, 2048: 336.4, 8192: 1339.7, 16384: 2471.0},
}
METRICS = re.compile(r"Num successful transfers=(\d+).*Avg number of descriptors=([\d.]+)")


@cache
def replayed(way: str) -> dict[str, Any]:
    _, report = kvprobe("live", "--replay", f"samples/scenarios/h200-x2-live-{way}")
    return report


def rows(way: str) -> dict[int, dict[str, Any]]:
    return {row["prompt_tokens"]: row for row in replayed(way)["result"]["lengths"]}


@pytest.mark.parametrize("way", WAYS)
def test_the_tax_of_a_real_deployment(way: str) -> None:
    report = replayed(way)
    assert report["result"]["vllm_version"] == "0.30.0"
    for tokens, row in rows(way).items():
        assert row["tax"]["median"] * 1e3 == pytest.approx(TAX_MS[way][tokens], rel=0.01)
        assert row["pairs"] == row["same_output"] == row["transfer"]["transfers"] == 6
        assert row["transfer"]["bytes"] == tokens * 57_344
    assert report["result"]["fetch"]["share"] == 1.0
    assert [r["rung"] for r in report["result"]["ladder"]] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("way", WAYS)
def test_the_counters_agree_with_the_engines_log(way: str) -> None:
    """24 pairs, a cold request, one both ways, one warm-up a length: 30 transfers, and every descriptor of them."""
    text = gzip.decompress((ROOT / f"samples/logs/h200-{way}-vllm-0.30-decode.log.gz").read_bytes()).decode()
    printed = [(int(n), float(d)) for n, d in METRICS.findall(text)]
    assert sum(n for n, _ in printed) == 30
    counted = sum(row["transfer"]["transfers"] * row["transfer"]["descriptors"] for row in rows(way).values())
    assert counted < sum(n * d for n, d in printed)


def test_a_pair_that_serves_one_at_a_time_finds_its_blocks_in_order() -> None:
    """At 512 tokens 4 of 6 transfers had 896 descriptors and 2 had 28, one a layer: a mean of 606.67."""
    assert rows("nvlink")[512]["transfer"]["descriptors"] == pytest.approx((4 * 896 + 2 * 28) / 6)
    found = {f["id"]: f for f in replayed("nvlink")["findings"]}
    assert (found["KVP699"]["status"], found["KVP699"]["code"]) == ("warn", "blocks_in_order")


def test_the_salt_that_vllm_refused_is_told() -> None:
    refused = [f for f in replayed("nvlink")["findings"] if f["id"] == "KVP686"]
    assert {f["code"] for f in refused} == {"request_refused"}
    assert all("cache_salt" in f["title"] for f in refused)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("way", WAYS)
def test_the_screen_fits(way: str, width: int) -> None:
    report = decode(json.dumps(replayed(way)).encode(), way)
    text = renderer("table")(report, Look(width=width))
    assert [line for line in text.splitlines() if len(line) > width and not line.lstrip().startswith("$ ")] == []  # fmt: skip
