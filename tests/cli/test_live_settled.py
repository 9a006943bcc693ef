"""What a fresh, idle deployment shows, and how ``live`` brings it into the state that traffic leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulator.running import deployment, finding
from tests.simulator.state import LAYERS

QUICK = {"prefill": 0.001, "transfer": 0.001, "schedule": 0.0}
SCATTERED = 512 // 16 * LAYERS


def descriptors(report: dict[str, Any]) -> list[float]:
    (row,) = report["result"]["lengths"]
    found: list[float] = row["descriptors"]
    return found


def test_one_request_at_a_time_finds_blocks_in_order(tmp_path: Path) -> None:
    """The simulated free list merges as vLLM's did on 2x H200: some transfers have one piece a layer."""
    with deployment(tmp_path, step=0.001, **QUICK) as place:
        _, report = place.live("--prompt-tokens", "512", "--requests", "24", "--no-settle")
        asked = place.told()["log"]
    assert descriptors(report) == [], "without --settle the counters are read once a length"
    mean = report["result"]["lengths"][0]["transfer"]["descriptors"]
    assert LAYERS <= mean < SCATTERED
    assert not [e for e in asked if "settle" in e["id"]]


def test_overlapping_streams_scatter_them_first(tmp_path: Path) -> None:
    with deployment(tmp_path, step=0.01, **QUICK) as place:
        code, report = place.live("--prompt-tokens", "512", "--requests", "6")
        log = place.told()["log"]
    assert code == 0
    found = descriptors(report)
    assert len(found) == 6
    assert sum(found) / 6 > 0.8 * SCATTERED
    (row,) = report["result"]["lengths"]
    assert row["xfer"]["samples"] == row["beside"]["samples"] == 6
    assert row["transfer_seconds"] == row["xfer"]["median"]
    (rung, _) = report["result"]["ladder"]
    assert (rung["statistic"], rung["seconds"]) == ("median", row["transfer_seconds"])
    first = min(k for k, e in enumerate(log) if "pair-" in e["id"])
    before = [e["id"] for e in log[:first]]
    assert sum("-settle-" in i for i in before) == 32
    assert [sum(f"-{name}-512" in i for i in before) for name in ("warm-up", "warm-up-2")] == [3, 3]


def test_a_decode_server_that_refuses_them_is_told(tmp_path: Path) -> None:
    with deployment(tmp_path, faults=["no_overlap"]) as place:
        code, report = place.live("--prompt-tokens", "64", "--requests", "2")
    assert code == 1
    wrong = finding(report, "KVP686")
    assert (wrong["status"], wrong["where"]) == ("fail", "decode, settle")
    assert "too many requests" in wrong["title"]
    assert report["result"]["lengths"][0]["pairs"] == 2, "the rest is measured all the same"
