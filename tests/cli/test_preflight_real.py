"""preflight as its user runs it: real processes, real NIXL in host memory, real signals."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from kvprobe.report import json_schema
from tests.machines import ROOT, finding

nixl = [
    pytest.mark.nixl,
    pytest.mark.skipif(
        not any(importlib.util.find_spec(n) for n in ("nixl_cu12", "nixl_cu13", "nixl")),
        reason="no NIXL wheel for this platform",
    ),
]
NVML = ROOT / "tests" / "workers" / "stand_ins"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 64, "torch_dtype": "bfloat16", "max_position_embeddings": 65536,
}  # fmt: skip


def start(tmp_path: Path, *argv: str, env: dict[str, str] | None = None, config: dict[str, Any] | None = None) -> subprocess.Popen[str]:  # fmt: skip
    """`kvprobe preflight` on a small model, its document in report.json; it leads its own process group."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config or CONFIG), encoding="utf-8")
    command = [sys.executable, "-m", "kvprobe", "preflight", "--model", str(file), "-f", "json", "-o", str(tmp_path / "report.json"), "--progress", "on", *argv]  # fmt: skip
    home = {"KVPROBE_STATE_DIR": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}  # fmt: skip
    return subprocess.Popen(command, env={**os.environ, **home, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip


def in_the_middle(tmp_path: Path) -> subprocess.Popen[str]:
    """A run that has measured two series of many and is in its third."""
    more = [x for n in range(1024, 8192, 1024) for x in ("--prompt-tokens", str(n))]
    large = {**CONFIG, "num_hidden_layers": 28, "num_key_value_heads": 4}
    process = start(tmp_path, "--memory", "dram", "--no-ucx", "--max-memory", "400MiB", "--budget", "60s", *more, config=large)  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "NIXL read-contiguous-8192" in line:
            break
    return process


def ended(process: subprocess.Popen[str], tmp_path: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, document, stderr; nothing of its process group is left."""
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    left = [p.pid for p in psutil.process_iter() if _session(p.pid) == process.pid]
    assert left == [], "it left processes behind"
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, json_schema())
    return process.returncode, report, err


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


class TestInHostMemory:
    pytestmark = nixl

    def test_end_to_end(self, tmp_path: Path) -> None:
        code, report, err = ended(start(tmp_path, "--memory", "dram", "--budget", "5s"), tmp_path)
        judged = finding(report, "KVP203")
        assert (
            code in (0, 1) and judged["measured"]["value"] > 0 and judged["measured"]["statistic"] == "median"
        )
        assert report["result"]["memory"] == "dram" and report["run"]["interrupted"] is False
        assert finding(report, "KVP205")["status"] == "pass" and "NIXL read-shuffled-8192" in err
        plans = {p["prompt_tokens"]: p for p in report["result"]["kv"]["plans"]}
        assert plans[8192]["bytes"] == 8192 * 1024 and plans[8192]["descriptors"] == 4 * 512
        for row in report["result"]["transfers"]:
            assert row["verified"] and row["seconds"] and row["bytes"] == plans[row["prompt_tokens"]]["bytes"]
        assert finding(report, "KVP209")["measured"]["samples"] == len(report["result"]["transfers"][1]["overhead_seconds"])  # fmt: skip
        assert [e["origin"] for e in report["evidence"] if e["kind"] == "transfer"] == ["measured"]

    def test_max_memory_and_budget_leave_out_and_say_so(self, tmp_path: Path) -> None:
        argv = ("--memory", "dram", "--no-ucx", "--max-memory", "11MiB", "--budget", "1ms")
        code, report, _ = ended(start(tmp_path, *argv), tmp_path)
        asked = {s["prompt_tokens"] for s in report["result"]["transfers"]}
        assert 32768 not in asked and 512 in asked
        notes = finding(report, "KVP205")["notes"]
        assert notes and all(note.endswith("(time budget)") for note in notes)
        assert code == 3 and "--budget" in finding(report, "KVP203")["remedy"]["text"]

    def test_no_gpu_measures_the_host_path_and_stays_unknown(self, tmp_path: Path) -> None:
        process = start(tmp_path, "--no-ucx", "--budget", "3s", env={"STANDIN_NVML": "no-gpu", "PYTHONPATH": f"{NVML}:{ROOT}"})  # fmt: skip
        code, report, err = ended(process, tmp_path)
        missing = finding(report, "KVP210")
        assert code == 3 and "shows no GPU" in missing["title"] and "Measuring the host-memory path" in err
        assert "says nothing about GPUs" in missing["notes"][0] and report["result"]["memory"] == "dram"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_in_the_middle_shows_what_was_measured(
        self, number: signal.Signals, tmp_path: Path
    ) -> None:
        process = in_the_middle(tmp_path)
        process.send_signal(number)
        code, report, _ = ended(process, tmp_path)
        assert code == 130 and report["run"]["interrupted"] is True
        stopped = finding(report, "KVP205")
        assert stopped["status"] == "unknown" and "was interrupted" in stopped["title"]
        shown = {(t["order"], t["prompt_tokens"]): t["seconds"] for t in report["result"]["transfers"]}
        assert shown["shuffled", 512] and shown["shuffled", 8192]
        assert report["verdict"]["status"] in ("unknown", "no_go"), "no_go only by the speed of this machine"

    @pytest.mark.parametrize(("number", "says"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "no sign of life")])  # fmt: skip
    def test_a_worker_that_is_killed_or_stopped(
        self, number: signal.Signals, says: str, tmp_path: Path
    ) -> None:
        process = in_the_middle(tmp_path)
        workers = sorted(p.pid for p in psutil.Process(process.pid).children())
        assert len(workers) == 2
        os.kill(workers[1], number)
        code, report, _ = ended(process, tmp_path)
        failed = finding(report, "KVP205")
        assert code == 3 or finding(report, "KVP203")["status"] == "fail", "a fail is this machine's speed"
        assert failed["status"] == "unknown" and says in failed["title"] and failed["remedy"]["text"]
        assert report["result"]["transfers"], "what was measured before is shown"
        assert not [pid for pid in workers if psutil.pid_exists(pid)]

    def test_interrupted_in_an_early_rung_starts_no_other(self, tmp_path: Path) -> None:
        process = start(tmp_path, "--memory", "dram", config={**CONFIG, "num_hidden_layers": 80})
        assert process.stderr is not None
        for line in process.stderr:
            if "raw copies" in line:
                break
        while not psutil.Process(process.pid).children():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        code, report, err = ended(process, tmp_path)
        assert code == 130 and report["run"]["interrupted"] is True and "NIXL read" not in err
        assert "interrupted" in finding(report, "KVP203")["title"]
        assert report["result"]["transfers"] == [] and report["verdict"]["status"] == "unknown"


def test_nixl_missing(tmp_path: Path) -> None:
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden by the test')\n", encoding="utf-8")
    process = start(tmp_path, "--memory", "dram", "--no-ucx", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    code, report, _ = ended(process, tmp_path)
    failed = finding(report, "KVP205")
    assert code == 3 and "NIXL cannot be imported" in failed["title"]
    assert "pip install 'kvprobe[nixl]'" in failed["remedy"]["text"]
    assert finding(report, "KVP203")["status"] == "unknown"


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_gpus_but_no_torch(tmp_path: Path) -> None:
    process = start(tmp_path, "--no-ucx", env={"STANDIN_NVML": "h200", "PYTHONPATH": f"{NVML}:{ROOT}"})
    code, report, _ = ended(process, tmp_path)
    failed = finding(report, "KVP205")
    assert code == 3 and "torch is not installed" in failed["title"] and failed["remedy"]["text"]
    assert finding(report, "KVP201")["status"] == "skip" and "torch" in finding(report, "KVP201")["title"]
    assert finding(report, "KVP203")["status"] == "unknown"
