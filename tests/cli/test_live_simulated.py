"""``kvprobe live`` against the simulator: real HTTP, known delays, every fault."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.simulator.running import ROOT, Deployment, codes, deployment, finding, kvprobe

SHORT = ("--prompt-tokens", "64", "--requests", "2")


def seed_of(log: list[dict[str, Any]]) -> str:
    return str(log[-1]["id"]).split("-")[1]


def own_taxes(place: Deployment, tokens: int, pairs: int) -> list[float]:
    """The tax of each pair by the simulator's own clock."""
    log = place.told()["log"]
    seed = seed_of([e for e in log if e["id"].startswith("kvprobe-")])
    by = {
        (e["role"], e["id"].removeprefix(f"kvprobe-{seed}-")): e["first"] - e["received"]
        for e in log
        if "first" in e
    }
    names = [f"pair-{k}-{tokens}" for k in range(pairs)]
    return [by["prefill", n] + by["decode", n] - by["colocated", f"{n}-alone"] for n in names]


@pytest.mark.parametrize(
    "plan",
    [
        {"prefill": 0.03, "transfer": 0.04, "schedule": 0.02, "step": 0.004},
        {"prefill": 0.01, "transfer": 0.002, "schedule": 0.0, "step": 0.001, "transfer_per_token": 3e-5},
    ],
)
def test_the_measured_tax_is_the_configured_delay(tmp_path: Path, plan: dict[str, float]) -> None:
    """Within 2 ms. On a busy machine single pairs are late, on either side of the wire, so the quietest counts."""
    tokens, pairs = 512, 12
    with deployment(tmp_path, **plan) as place:
        code, report = place.live(
            "--colocated", place.url("colocated"), "--prompt-tokens", str(tokens), "--requests", str(pairs)
        )
        simulated = own_taxes(place, tokens, pairs)
    assert code == 0, report["verdict"]
    (row,) = report["result"]["lengths"]
    transfer = plan["transfer"] + plan.get("transfer_per_token", 0) * tokens
    configured = transfer + plan["schedule"] + plan["step"]
    assert min(abs(s - configured) for s in simulated) < 0.002
    assert min(abs(m - s) for m, s in zip(row["taxes"], simulated, strict=True)) < 0.002
    assert row["tax"]["median"] == pytest.approx(median(row["taxes"]))
    assert row["tax_interval"]["low"] <= row["tax"]["median"] <= row["tax_interval"]["high"]
    (facts,) = [e["facts"] for e in report["evidence"] if e["id"] == "pairs"]
    for pair, tax in zip(facts, row["taxes"], strict=True):
        assert tax == pytest.approx(pair["pd_ttft"] - pair["colocated_ttft"], abs=1e-9)
        parts = pair["prefill_call"] + pair["handover"] + pair["decode_first"]
        assert pair["pd_ttft"] == pytest.approx(parts, abs=1e-9)
    assert row["transfer"]["xfer_seconds"] == pytest.approx(transfer, abs=1e-6)
    assert row["pairs"] == row["tax"]["samples"] == pairs
    assert [r["rung"] for r in report["result"]["ladder"]] == [5, 6]


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"),
    [
        ("params_null", "kv_params_null", 1),
        ("no_connector", "kv_params_null", 1),
        ("missing_keys", "invalid_kv_transfer_params", 1),
        ("localhost", "side_channel_host_loopback", 0),
        ("recompute", "no_kv_transfer_seen", 1),
        ("kv_load_500", "kv_load_failed", 1),
        ("kv_load_event", "kv_load_failed", 1),
        ("stream_cut", "stream_cut", 1),
        ("stream_ends", "stream_cut", 1),
        ("wrong_output", "pd_output_differs", 1),
        ("expired", "late_read_possible_corruption", 1),
        ("dead_side_channel", "side_channel_unreachable", 0),
        ("silent_side_channel", "side_channel_not_zmq", 0),
    ],
)
def test_every_fault_gives_its_finding(tmp_path: Path, fault: str, code: str, exit_code: int) -> None:
    with deployment(tmp_path, faults=[fault]) as place:
        got, report = place.live(*SHORT)
    assert code in codes(report)
    assert got == exit_code
    wrong = [f for f in report["findings"] if f["code"] == code]
    assert all(f["remedy"]["text"] for f in wrong)


def test_a_healthy_deployment_has_no_other_finding(tmp_path: Path) -> None:
    with deployment(tmp_path) as place:
        code, report = place.live(*SHORT)
        told = place.told()
    assert code == 0
    # The simulator lives on loopback, and says so.
    assert codes(report) == {"side_channel_host_loopback"}
    assert told["side_channel_bytes"] == ""
    assert finding(report, "KVP685")["measured"]["value"] == 1.0


def test_no_metrics_is_unknown_not_fine(tmp_path: Path) -> None:
    with deployment(tmp_path, faults=["no_metrics"]) as place:
        code, report = place.live(*SHORT)
    assert code == 3
    assert finding(report, "KVP685")["status"] == "unknown"
    assert report["result"]["ladder"][0]["seconds"] is None


def test_prompts_are_unique_and_greedy(tmp_path: Path) -> None:
    with deployment(tmp_path) as place:
        _, first = place.live(*SHORT)
        _, second = place.live(*SHORT)
        ids = [e["id"] for e in place.told()["log"]]
    assert first["result"]["lengths"][0]["compared_output"] == 2
    assert len({i.split("-")[1] for i in ids}) == 2, "each run has a seed of its own"


def test_a_busy_server_is_left_alone_unless_told_otherwise(tmp_path: Path) -> None:
    with deployment(tmp_path, running=3) as place:
        code, report = place.live(*SHORT)
        assert place.told()["log"] == [], "no request was sent"
        assert (code, codes(report)) == (3, {"server_busy"})
        code, report = place.live(*SHORT, "--allow-busy")
    assert code == 0
    assert finding(report, "KVP682")["status"] == "warn"


def test_the_token_is_sent_and_never_printed(tmp_path: Path) -> None:
    with deployment(tmp_path, api_key="sesame-open") as place:
        code, report = place.live(*SHORT)
        assert (code, codes(report)) == (3, {"unauthorized"})
        folder = tmp_path / "recorded"
        code, report = place.live(
            *SHORT, "--api-key-env", "TOKEN", "--record", str(folder), env={"TOKEN": "sesame-open"}
        )
    assert code == 0
    assert "sesame" not in json.dumps(report)
    assert all("sesame" not in p.read_text() for p in folder.iterdir())


def test_versions_and_models_must_match(tmp_path: Path) -> None:
    with deployment(tmp_path, versions={"decode": "0.29.0"}) as place:
        code, report = place.live(*SHORT)
    assert code == 1
    assert "vllm_version_mismatch" in codes(report)


def test_the_proxy_is_measured_apart(tmp_path: Path) -> None:
    with deployment(tmp_path, proxy=0.2) as place:
        code, report = place.live(*SHORT, "--proxy", place.url("proxy"))
    assert (code, codes(report)) == (0, {"side_channel_host_loopback", "proxy_slow"})
    (row,) = report["result"]["proxy"]
    assert row["overhead"]["median"] > 0.15
    with deployment(tmp_path, faults=["proxy_drops_params"]) as place:
        code, report = place.live(*SHORT, "--proxy", place.url("proxy"))
    assert code == 1
    assert "proxy_without_kv_params" in codes(report)


def test_four_hops(tmp_path: Path) -> None:
    with deployment(tmp_path) as place:
        code, report = place.live(*SHORT, "--render", place.url("render"))
    assert code == 0
    (row,) = report["result"]["four_hops"]["medians"]
    hops = [row[f"{hop}_seconds"] for hop in ("render", "prefill", "decode", "derender")]
    assert all(seconds > 0 for seconds in hops)
    assert sum(hops) <= row["total_seconds"]
    assert report["result"]["four_hops"]["requests"][0]["text"].startswith(" t")
    with deployment(tmp_path, faults=["scale_out_off"]) as place:
        code, report = place.live(*SHORT, "--render", place.url("render"))
    assert code == 1
    assert "scale_out_disabled" in codes(report)


def test_conversations(tmp_path: Path) -> None:
    with deployment(tmp_path, prefill=0.0, prefill_per_token=0.0002, transfer=0.001) as place:
        code, report = place.live(*SHORT, "--turns", "3")
    assert code == 0
    turns = report["result"]["turns"]
    assert turns["read_back_ttft"]["median"] < turns["plain_ttft"]["median"]
    backs = [c for c in turns["conversations"] if c["read_back"]]
    # What decode holds after a turn: the prompt and all generated tokens but the last.
    first, second, _ = backs[0]["turns"]
    assert second["read_back_tokens"] == first["prompt_tokens"] + 15
    with deployment(tmp_path, faults=["no_readback"]) as place:
        _, report = place.live(*SHORT, "--turns", "2")
    assert "bidirectional_inactive" in codes(report)


def test_load_disturbs_the_colocated_streams_only(tmp_path: Path) -> None:
    with deployment(tmp_path, prefill=0.2, interference=0.15, step=0.003, transfer=0.001) as place:
        code, report = place.live(
            *SHORT, "--colocated", place.url("colocated"), "--load", "2s", "--rate", "2", "--ramp", "1",
            "--ttft-slo", "10s",
        )  # fmt: skip
    ways = {w["way"]: w for w in report["result"]["load"]}
    assert ways["colocated"]["itl_max"] > 0.1 > ways["pd"]["itl_p99"]
    assert ways["pd"]["arrived"] == ways["pd"]["finished"] == ways["pd"]["good"] == 4
    assert code == 0


def test_a_recorded_run_is_replayed_without_a_server(tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    with deployment(tmp_path, transfer=0.003) as place:
        more = ("--record", str(folder), "--load", "1s", "--ramp", "1", "--turns", "2")
        _, first = place.live(*SHORT, *more, "--render", place.url("render"), "--proxy", place.url("proxy"))
    _, again = kvprobe("live", "--replay", str(folder))
    assert again["run"]["replayed_from"] == str(folder)
    assert again["result"] == first["result"]
    assert again["findings"] == first["findings"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_tls(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", str(tmp_path / "ca.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + (tmp_path / "ca.pem").read_text())
    with deployment(tmp_path, certificate=str(pem)) as place:
        code, report = place.live(*SHORT)
        assert (code, codes(report)) == (3, {"tls_failed"})
        code, _ = place.live(*SHORT, "--ca-file", str(tmp_path / "ca.pem"))
        assert code == 0
        code, _ = place.live(*SHORT, "--insecure")
        assert code == 0


def test_calibration_goes_round(tmp_path: Path) -> None:
    with deployment(tmp_path, schedule=0.05, prefill_per_token=1e-6) as place:
        _, report = place.live("--prompt-tokens", "64,512,2048", "--requests", "3")
    live = tmp_path / "live.json"
    live.write_text(json.dumps(report))
    saved = tmp_path / "calibration.json"
    code, report = kvprobe("calibrate", str(live), "--save", str(saved))
    assert code == 0
    (constants,) = report["result"]["constants"]
    assert constants["schedule_seconds"] == pytest.approx(0.05, rel=0.3)
    assert codes(report) == {"calibration_thin"}
    assert json.loads(saved.read_text())["schema"] == "kvprobe.calibration/v1"


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    with deployment(tmp_path, prefill=0.1) as place:
        argv = ["--prefill", place.url("prefill"), "--decode", place.url("decode"), "--load", "0s"]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvprobe", "live", *argv, "--requests", "500", "--prompt-tokens", "64", "-f", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        while sum("pair-" in e["id"] for e in place.told()["log"]) < 8:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["run"]["interrupted"]
    assert report["result"]["stopped"] == "interrupted"
    assert report["result"]["lengths"][0]["pairs"] >= 1


def test_max_time_leaves_the_rest_unknown(tmp_path: Path) -> None:
    with deployment(tmp_path, prefill=0.15) as place:
        code, report = place.live("--prompt-tokens", "64,65,66", "--requests", "500", "--max-time", "4s")
    assert code == 3
    unknown = [f for f in report["findings"] if f["id"] == "KVP690" and f["status"] == "unknown"]
    assert "66 tokens" in unknown[0]["title"]
    assert "--max-time" in unknown[0]["title"]
