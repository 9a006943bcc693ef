"""Prediction against truth, and the calibration that closes the gap, on the simulator."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvprobe.cli.common import finish
from kvprobe.flows import Draft
from kvprobe.models.ttft import tax
from kvprobe.policy import Policy
from kvprobe.report import Run, decode, encode
from tests.simulator.running import codes, deployment, finding, kvprobe


def preflight_report(folder: Path, seconds: float, tokens: int = 512) -> Path:
    """A preflight report with one predicted length, as ``kvprobe preflight`` writes it."""
    row = {
        **msgspec.to_builtins(tax(tokens, seconds, vllm_version="0.30.0", bytes=29360128)),
        "transfer_seconds": seconds,
    }
    draft = Draft(
        result={
            "tax": [row],
            "ladder": [{"rung": 4, "name": "NIXL as vLLM stores it", "seconds": seconds, "bytes": 29360128}],
        }
    )
    report = finish(draft, Run(command="preflight"), Policy(name="test"), None, datetime.date(2026, 11, 29))
    file = folder / "preflight.json"
    file.write_bytes(encode(report))
    return file


def test_predicted_and_measured_side_by_side(tmp_path: Path) -> None:
    report_file = preflight_report(tmp_path, 0.05)
    with deployment(tmp_path, transfer=0.05, schedule=0.045, step=0.005) as place:
        _, good = place.live("--prompt-tokens", "512", "--requests", "3", "--report", str(report_file))
    with deployment(tmp_path, transfer=0.4, schedule=0.045, step=0.005) as place:
        _, bad = place.live("--prompt-tokens", "512", "--requests", "3", "--report", str(report_file))
    (row,) = good["result"]["predictions"]
    assert row["predicted_transfer_seconds"] == 0.05
    assert row["measured_transfer_seconds"] == pytest.approx(0.05, abs=1e-6)
    assert row["predicted_seconds"] == pytest.approx(0.05 + 0.04775 + 0.00475 + 0.55e-6 * 512)
    assert row["error_seconds"] == pytest.approx(row["predicted_seconds"] - row["measured_seconds"])
    assert {"prediction_off", "engine_slower_than_nixl"} <= codes(bad)
    assert finding(bad, "KVP694")["status"] == "warn"


@pytest.mark.parametrize(
    "content",
    [b"\x7fELF\x00", b"[]", b"{}", json.dumps({"schema": "kvprobe.report/v1"}).encode(), b"[" * 50_000],
)
@pytest.mark.parametrize("command", ["live", "calibrate"])
def test_a_file_that_is_no_report_is_told(tmp_path: Path, content: bytes, command: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_bytes(content)
    nobody = ["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9", "--report", str(file)]
    code, report = kvprobe(command, *(nobody if command == "live" else [str(file)]))
    assert code == 3
    assert "wrong.json" in report["error"]["reason"]


def test_a_report_of_another_command_is_no_base(tmp_path: Path) -> None:
    file = preflight_report(tmp_path, 0.05)
    code, report = kvprobe("calibrate", str(file))
    assert code == 3
    assert "kvprobe preflight" in report["error"]["reason"]


def live_report(folder: Path, change: dict[str, Any]) -> Path:
    lengths = [{"prompt_tokens": 512, "pairs": 8, "tax": {"median": 0.1}, "transfer": {"xfer_seconds": 0.03}, "colocated_itl": {"median": 0.005}}]  # fmt: skip
    draft = Draft(result={"vllm_version": "0.30.0", "lengths": lengths, **change})
    report = finish(draft, Run(command="live"), Policy(name="test"), None, datetime.date(2026, 11, 29))
    file = folder / "live.json"
    file.write_bytes(encode(report))
    assert decode(file.read_bytes()).run.command == "live"
    return file


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"lengths": None}, 3, "result.lengths"),
        ({"lengths": [{"prompt_tokens": "x"}]}, 3, "result.lengths"),
        ({"lengths": []}, 3, "no prompt length"),
        ({"vllm_version": None}, 2, "vLLM version"),
        ({"vllm_version": "main"}, 2, "'main'"),
    ],
)
def test_a_live_report_that_cannot_be_fitted(
    tmp_path: Path, change: dict[str, Any], code: int, says: str
) -> None:
    got, report = kvprobe("calibrate", str(live_report(tmp_path, change)))
    assert got == code
    assert says in report["error"]["reason"]


def test_a_median_tax_goes_with_a_median_transfer(tmp_path: Path) -> None:
    """The mean of a few transfers holds the slow first one; the tax is a median and does not."""
    row = {"prompt_tokens": 512, "pairs": 6, "tax": {"median": 0.1}, "transfer": {"xfer_seconds": 0.06}, "colocated_itl": {"median": 0.005}}  # fmt: skip
    for more, seconds in (({}, 0.06), ({"xfer": {"median": 0.03}}, 0.03)):
        code, report = kvprobe("calibrate", str(live_report(tmp_path, {"lengths": [row | more]})))
        assert code == 0
        (sample,) = report["result"]["samples"]
        assert sample["transfer_seconds"] == seconds


def test_the_version_can_be_named(tmp_path: Path) -> None:
    file = live_report(tmp_path, {"vllm_version": None})
    code, report = kvprobe("calibrate", str(file), "--vllm-version", "0.33.0")
    assert code == 0
    (constants,) = report["result"]["constants"]
    assert constants["vllm_version"] == "0.33.0"
