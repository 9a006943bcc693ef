"""The whole command on the inputs of the case collection, and on a recorded NVML answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
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


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine whose NVML is the stand-in: two H200 (``h200``), or a pair without P2P (``refused``)."""

    def choose(name: str, **env: str) -> None:
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "workers" / "stand_ins"))
        monkeypatch.setenv("STANDIN_NVML", name)
        for variable in ("UCX_TLS", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)

    return choose


def test_live_machine_recorded_and_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, machine: Callable[..., None]
) -> None:
    machine("h200")
    code, document, _ = run(capsys, "--record", str(tmp_path / "good"))
    assert code == 0
    machine("no-driver")
    again_code, again, _ = run(capsys, "--replay", str(tmp_path / "good"))
    assert again_code == 0
    result = document["result"]
    for gpu in (g for d in (document, again) for g in d["result"]["nvml"]["gpus"]):
        assert gpu.pop("uuid").startswith("GPU-")  # the recording replaces them
    assert again["result"] == result
    assert result["matrix"]["r"] == {"GPU0>GPU1": "OK", "GPU1>GPU0": "OK"}
    assert result["matrix"]["p"]["GPU0>GPU1"] == "NS"
    assert result["matrix"]["m"]["GPU0>GPU1"] == "NV18"
    assert result["link"]["bytes_per_second"] == pytest.approx(478.116e9)


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {f["id"]: f["status"] for f in document["findings"]}


def test_a_pair_without_p2p(capsys: pytest.CaptureFixture[str], machine: Callable[..., None]) -> None:
    machine("refused")
    code, document, _ = run(capsys)
    assert code == 1
    assert (statuses(document)["KVP101"], statuses(document)["KVP105"]) == ("fail", "warn")
    assert document["result"]["link"]["path"] == "host"


def test_an_environment_that_takes_cuda_ipc_away(
    capsys: pytest.CaptureFixture[str], machine: Callable[..., None]
) -> None:
    machine("h200", UCX_TLS="^cuda_ipc", PYTORCH_ALLOC_CONF="expandable_segments:True")
    code, document, _ = run(capsys)
    assert code == 0
    assert (statuses(document)["KVP130"], statuses(document)["KVP131"]) == ("warn", "warn")


def test_the_screen_of_a_live_machine(
    capsys: pytest.CaptureFixture[str], machine: Callable[..., None]
) -> None:
    machine("h200")
    assert main(["topo"]) == 0
    out = capsys.readouterr().out
    assert "478 GB/s one direction: 18 NVLinks x 26.562 GB/s" in out
    assert "NVIDIA H200, 140 GiB of 140 GiB free, PCIe 5.0 x16, 18 NVLinks up" in out
