"""Whole recorded runs, replayed through the real command line: verdicts, findings, figures, screens.

``scripts/update-golden`` writes expected.json and the screens anew; look at the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvprobe.cli import main
from kvprobe.render import Look, renderer
from kvprobe.report import decode, json_schema

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIOS = ROOT / "samples" / "scenarios"
GOLDEN = ROOT / "tests" / "golden" / "scenarios"
NAMES = sorted(p.parent.name for p in SCENARIOS.glob("*/request.json"))
SCREENS = [n for n in NAMES if json.loads((SCENARIOS / n / "request.json").read_text())["command"] in ("preflight", "transfer", "tune")]  # fmt: skip

# Medians in seconds of an independent script on the same kind of host (2x H200, NV18, NIXL 1.5.1, 2026-11-29):
# ../shared/recordings/h200-x2/vram_bench.jsonl, variants vllm_default, no_cuda_ipc and expandable_segments, layout
# "layer"; contiguous under no_cuda_ipc from block_sweep.jsonl.
REFERENCE: dict[str, dict[tuple[str, str, int], float]] = {
    "h200-x2-nvlink": {
        ("READ", "shuffled", 2048): 0.0116748,
        ("READ", "shuffled", 8192): 0.0504025,
        ("READ", "shuffled", 32768): 0.213906,
        ("WRITE", "shuffled", 8192): 0.0445306,
        ("READ", "contiguous", 512): 0.0002791,
        ("READ", "contiguous", 2048): 0.000627,
        ("READ", "contiguous", 8192): 0.00168,
        ("READ", "contiguous", 32768): 0.0064763,
    },
    "h200-x2-no-cuda-ipc": {
        ("READ", "shuffled", 2048): 0.331716,
        ("READ", "shuffled", 8192): 1.2896619,
        ("READ", "contiguous", 8192): 1.1617177,
    },
    "h200-x2-expandable-segments": {
        ("READ", "shuffled", 2048): 0.3596473,
        ("READ", "shuffled", 8192): 1.2321723,
    },
}
RAW_COPY_SECONDS = 0.0012185
"""One peer copy of the same 448 MiB there (variant REF, peer_contig 0->1)."""


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def replay(name: str, tmp_path: Path, *more: str) -> tuple[int, dict[str, Any], bytes]:
    """Exit code and report of a replayed scenario."""
    request = json.loads((SCENARIOS / name / "request.json").read_text(encoding="utf-8"))
    file = tmp_path / "report.json"
    where = str((SCENARIOS / name).relative_to(ROOT))
    code = main([request["command"], "--replay", where, "-f", "json", "-o", str(file), "--progress", "off", *more])  # fmt: skip
    data = file.read_bytes()
    return code, json.loads(data), data


def summary(code: int, report: dict[str, Any]) -> dict[str, Any]:
    """What expected.json holds: the verdict and every finding that is not a pass."""
    return {
        "command": report["run"]["command"],
        "exit_code": code,
        "verdict": report["verdict"]["status"],
        "findings": [[f["id"], f["status"]] for f in report["findings"] if f["status"] not in ("pass", "skip")],
    }  # fmt: skip


def by_id(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["id"]: f for f in report["findings"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_verdict_on_any_machine(name: str, tmp_path: Path) -> None:
    code, report, _ = replay(name, tmp_path)
    jsonschema.validate(report, json_schema())
    assert report["run"]["replayed_from"] == f"samples/scenarios/{name}"
    file = SCENARIOS / name / "expected.json"
    found = summary(code, report)
    if os.environ.get("KVPROBE_UPDATE_GOLDEN"):
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_says_where_it_is_from(name: str) -> None:
    assert f"`{name}`" in (SCENARIOS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SCREENS)
def test_the_screen(name: str, width: int, tmp_path: Path) -> None:
    _, _, data = replay(name, tmp_path)
    text = renderer("table")(decode(data, name), Look(width=width))
    assert [line for line in text.splitlines() if len(line) > width and not line.lstrip().startswith("$ ")] == []  # fmt: skip
    file = GOLDEN / f"{name}.{width}.txt"
    if os.environ.get("KVPROBE_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "scripts/update-golden writes it anew; look at the diff"


@pytest.mark.parametrize("name", REFERENCE)
def test_the_figures_agree_with_an_independent_script(name: str, tmp_path: Path) -> None:
    _, report, _ = replay(name, tmp_path)
    measured = {(t["op"], t["order"], t["prompt_tokens"]): t["median_seconds"] for t in report["result"]["transfers"]}  # fmt: skip
    for what, seconds in REFERENCE[name].items():
        assert measured[what] == pytest.approx(seconds, rel=0.15), what
    rungs = {row["rung"]: row for row in report["result"]["ladder"]}
    assert rungs[1]["seconds"] == pytest.approx(RAW_COPY_SECONDS, rel=0.15)
    assert rungs[4]["seconds"] == measured["READ", "shuffled", 8192]
    assert rungs[4]["bytes"] == 469762048 and rungs[0]["bandwidth_bytes_per_second"] == pytest.approx(478.116e9)  # fmt: skip


def test_a_healthy_nvlink_pair_is_go(tmp_path: Path) -> None:
    code, report, _ = replay("h200-x2-nvlink", tmp_path)
    found = by_id(report)
    assert code == 0 and found["KVP203"]["status"] == "pass"
    assert found["KVP203"]["measured"] | {"value": 0} == {"value": 0, "unit": "s", "statistic": "median", "samples": 10, "note": None}  # fmt: skip
    assert "cuda_ipc, zero-copy" in found["KVP204"]["title"] and "9 of 9 series" in found["KVP205"]["title"]
    assert found["KVP209"]["measured"]["value"] < 0.02
    assert report["result"]["largest_loss"]["rung"] == 4 and "descriptor" in report["result"]["largest_loss"]["means"]  # fmt: skip
    assert "diagnosis" not in report["result"]


@pytest.mark.parametrize(
    ("name", "cause", "undo"),
    [
        ("h200-x2-no-cuda-ipc", "without UCX_TLS", "unset UCX_TLS"),
        ("h200-x2-expandable-segments", "without PYTORCH_ALLOC_CONF", "unset PYTORCH_ALLOC_CONF"),
    ],
)
def test_the_silent_fault_is_no_go_with_its_cause(name: str, cause: str, undo: str, tmp_path: Path) -> None:
    code, report, _ = replay(name, tmp_path)
    found = by_id(report)
    assert code == 1 and report["verdict"]["status"] == "no_go"
    judged = found["KVP203"]
    assert judged["status"] == "fail" and "rung 4" in judged["title"]
    assert "tcp/lo, software emulation" in judged["title"] and judged["expected"]["max"] == 0.2
    assert found["KVP101"]["status"] == "pass" and "OK" in found["KVP101"]["title"]
    assert found["KVP204"]["status"] == "fail" and "although P2P is OK" in found["KVP204"]["title"]
    assert cause in found["KVP211"]["title"] and found["KVP211"]["remedy"]["commands"] == [undo]
    assert report["result"]["diagnosis"]["explained_by"][0] == cause
    fast = report["result"]["diagnosis"]["experiments"][0]
    assert fast["transport"] == "cuda_ipc, zero-copy" and fast["seconds"] == pytest.approx(0.0116748, rel=0.15)  # fmt: skip
    assert "KVP212" not in found
    assert report["result"]["tax"][2]["transfer_origin"] == "measured"
    assert report["result"]["tax"][3]["transfer_origin"] == "assumed", "32,768 tokens were not measured"


def test_a_stricter_policy_judges_the_same_recording(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('extends = "default"\nname = "ours"\n[thresholds.transfer_8k_seconds]\nwarn_above = 0.01\nfail_above = 0.02\n')  # fmt: skip
    code, report, _ = replay("h200-x2-nvlink", tmp_path, "--policy", str(policy))
    assert code == 1 and by_id(report)["KVP203"]["expected"]["source"].startswith("policy ours: ")


def test_an_option_that_was_not_recorded_is_an_error_and_never_a_guess(tmp_path: Path) -> None:
    code, report, _ = replay("h200-x2-nvlink", tmp_path, "--connector", "push")
    assert code == 3 and "The recording holds no" in report["error"]["reason"]
    assert report["findings"][0]["id"] == "KVP901"
