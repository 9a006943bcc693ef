"""The whole command on the inputs of the case collection, and on a recorded NVML answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.report import decode

ROOT = Path(__file__).parent.parent.parent
CASES = sorted(p.parent for p in (ROOT / "tests" / "cases" / "topo").glob("*/expected.json"))
EXIT = {"p2p_ok": 0, "p2p_unavailable": 1}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["topo", *arguments, "--format", "json"])
    out = capsys.readouterr()
    decode(out.out.encode())
    return code, json.loads(out.out), out.err


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((case / "expected.json").read_text())
    files = [a for i in expected["inputs"] for a in ("--file", str(case / i["file"]))]
    pair = expected["pair"]
    code, document, _ = run(capsys, *files, "--prefill", pair["prefill"], "--decode", pair["decode"])
    result, verdict = document["result"], expected["conclusion"]["verdict"]
    assert result["conclusion"]["verdict"] == verdict
    assert code == EXIT.get(verdict, 3)
    assert document["findings"][0]["code"] == verdict
    for letter, cells in expected["matrix"].items():
        of_gpus = {k: v for k, v in result["matrix"].get(letter, {}).items() if k.startswith("GPU")}
        assert of_gpus == cells
    for word in expected["conclusion"]["must_mention"]:
        assert word.lower() in json.dumps(document).replace('\\"', '"').lower()
    if "numa" in expected:
        assert {k: result["numa"][k] for k in expected["numa"]} == {
            k: str(v) for k, v in expected["numa"].items()
        }
    for gpu, cores in expected.get("cpu_affinity", {}).items():
        assert result["cpu_affinity"][gpu] == cores
    for gpu, nics in expected.get("nearest_nics", {}).items():
        assert result["nearest_nics"][gpu] == nics


def test_usage_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document, err = run(capsys, "--file", str(tmp_path / "absent.txt"))
    assert code == 2 and "absent.txt does not exist" in err
    assert document["verdict"]["exit_code"] == 2
    file = tmp_path / "p2p_r.txt"
    file.write_text("\tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n")
    code, _, err = run(capsys, "--file", str(file), "--prefill", "banana")
    assert code == 2 and "'banana' names no GPU" in err


def test_a_binary_file_is_unknown_with_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = run(capsys, "--file", sys.executable)
    assert code == 3
    assert "binary" in document["error"]["reason"] or "larger than" in document["error"]["reason"]


def test_the_label_of_a_file_wins_over_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "paste.txt"
    file.write_text("\tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n")
    assert run(capsys, "--file", str(file))[0] == 3
    assert run(capsys, "--file", f"r={file}")[0] == 0
    assert run(capsys, "--file", f"r={file}", "--connector", "push")[0] == 3


def test_stdin_and_table() -> None:
    text = (ROOT / "samples" / "topo" / "topo-p2p-r.txt").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", "topo", "--file", "r=-"], input=text, capture_output=True, text=True, check=False, cwd=ROOT
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GPU1   [OK]" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("GO")


def nvml_recording(folder: Path, prop: int = 5, read: int = 0, width: int = 16) -> Path:
    """What `kvprobe topo --record` writes on two H200 (answers as the library gave them on 2026-11-29)."""
    link = {"state": 1, "version": 6, "remote_type": 2, "remote_bus": "FFFFFFFF:FF:FF.0", "mbps": 26562}
    gpu = {
        "name": "NVIDIA H200",
        "memory": [150754820096, 0, 150754820096],
        "utilisation": 0,
        "capability": [9, 0],
        "mig": 0,
        "pcie": [5, 5, width, 16],
        "links": [link] * 18,
    }
    answer = {
        "driver": "580.159.04", "cuda": 13000, "nvml": "13.580.159.04",
        "gpus": [{**gpu, "index": i, "uuid": f"GPU-{i}", "bus": f"00000000:00:0{6 + i}.0"} for i in (0, 1)],
        "pairs": [{"a": a, "b": 1 - a, "p2p": {"r": read, "w": 0, "n": 0 if not read else 5, "a": 0, "p": prop}, "ancestor": 30} for a in (0, 1)],
    }  # fmt: skip
    lines = [
        {"kind": "clock", "key": None, "value": "2026-11-29T17:00:00+00:00"},
        {"kind": "hostname", "key": None, "value": "node-a"},
        {"kind": "environ", "key": ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"], "value": {}},
        {
            "kind": "workers",
            "key": {"probe": "nvml"},
            "value": [{"name": "nvml", "result": answer, "returncode": 0}],
        },
    ]
    folder.mkdir()
    (folder / "inputs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    params = {"file": [], "prefill": None, "decode": None, "connector": "pull"}
    (folder / "request.json").write_text(json.dumps({"command": "topo", "params": params}))
    return folder


def test_live_machine_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document, _ = run(capsys, "--replay", str(nvml_recording(tmp_path / "good")))
    result = document["result"]
    assert code == 0
    assert result["matrix"]["r"] == {"GPU0>GPU1": "OK", "GPU1>GPU0": "OK"}
    assert result["matrix"]["p"]["GPU0>GPU1"] == "NS"
    assert result["matrix"]["m"]["GPU0>GPU1"] == "NV18"
    assert result["link"]["bytes_per_second"] == pytest.approx(478.116e9)
    code, document, _ = run(capsys, "--replay", str(nvml_recording(tmp_path / "refused", read=5, width=8)))
    assert code == 1
    assert {f["id"]: f["status"] for f in document["findings"]}["KVP105"] == "warn"
    assert document["result"]["link"]["path"] == "host"


def test_the_screen_of_a_live_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["topo", "--replay", str(nvml_recording(tmp_path / "good"))]) == 0
    out = capsys.readouterr().out
    assert "478 GB/s one direction: 18 NVLinks x 26.562 GB/s" in out
    assert "NVIDIA H200, 140 GiB of 140 GiB free, PCIe 5.0 x16, 18 NVLinks up" in out
