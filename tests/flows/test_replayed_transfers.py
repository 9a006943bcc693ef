"""The recorded two-node and all-ranks runs, replayed: what they showed is what they show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.two_node_runs import finding, kvprobe

SCENARIOS = Path(__file__).parent.parent.parent / "samples/scenarios"


def test_two_namespaces() -> None:
    with kvprobe("--replay", str(SCENARIOS / "two-namespaces-tcp"), KVPROBE_TOKEN="") as running:
        report = running.report()
    assert report["verdict"]["exit_code"] == 0 and report["run"]["replayed_from"]
    assert finding(report, "KVP231")["code"] == "one_host" and finding(report, "KVP232")["code"] == "no_rdma"
    assert "kvp-vb (MTU 1500), software emulation" in finding(report, "KVP232")["title"]
    rungs = {row["rung"]: row for row in report["result"]["ladder"]}
    assert rungs[1]["transport"] == "one TCP stream" and rungs[4]["seconds"] > rungs[1]["seconds"]
    assert rungs[0]["seconds"] is None and rungs[0]["status"] == "unknown"
    assert report["result"]["nodes"]["prefill"]["hostname"] == "node-b"


def test_ranks() -> None:
    with kvprobe("--replay", str(SCENARIOS / "ranks-tp2-tp4-dram"), KVPROBE_TOKEN="") as running:
        report = running.report()
    assert report["verdict"]["exit_code"] == 0 and finding(report, "KVP241")["status"] == "pass"
    result = report["result"]
    assert [r["reads_from"] for r in result["ranks"]] == [[0], [0], [1], [1]]
    # Half of prefill's block each: the same number of descriptors as at equal TP, of half the size.
    assert {(r["bytes"], r["descriptors"]) for r in result["ranks"]} == {(28 * 2**20, 28 * 128)}
    assert result["together_bytes_per_second"] == 4 * 28 * 2**20 / result["whole_median_seconds"]
    assert any("6 processes on 2 cores" in note for note in finding(report, "KVP242")["notes"])


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("scenario", ["two-namespaces-tcp", "ranks-tp2-tp4-dram"])
def test_no_line_is_wider_than_the_terminal(scenario: str, width: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", "transfer", "--replay", str(SCENARIOS / scenario)],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": width},
    )  # fmt: skip
    assert done.returncode == 0 and "ladder between the nodes" in done.stdout or "decode rank" in done.stdout
    # The first two lines hold the model's name and the path of the recording, however long.
    assert [line for line in done.stdout.splitlines()[2:] if len(line) > int(width)] == []
