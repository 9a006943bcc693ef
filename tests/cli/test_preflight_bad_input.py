"""preflight on machines and inputs that it cannot measure: one sentence, the next step, the exit code, a document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvprobe.cli import main
from kvprobe.report import json_schema
from tests.machines import Entry, answers, edited, finding, probe_of, replay

QWEN = "Qwen/Qwen2.5-7B-Instruct"
NO_CHANGE: dict[str, Any] = {"result": None, "events": [], "error_kind": "raised", "remedy": "", "log": ""}


def nvml_says(error: str) -> Callable[[list[Entry]], None]:
    """NVML cannot start; nothing else was recorded of such a machine, so DRAM is not asked for (--memory vram)."""

    def edit(entries: list[Entry]) -> None:
        answers(entries, "nvml")[0].update(NO_CHANGE | {"error": error})
        entries += [{"kind": "path", "key": p, "value": "absent"} for p in ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg", "/dev/davinci_manager", "/dev/hl0")]  # fmt: skip
        entries += [{"kind": "path", "key": "/dev/kfd", "value": "file" if "AMD" in error else "absent"}]
        entries += [{"kind": "dir", "key": "/sys/class/drm", "value": []}]

    return edit


def gpus(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[list[Entry]], object]:
    """Another set of GPUs, or the same with something else about them."""

    def edit(entries: list[Entry]) -> None:
        seen = answers(entries, "nvml")[0]["result"]
        change(seen["gpus"])
        if len(seen["gpus"]) < 2:
            seen["pairs"] = []

    return edit


def unmeasured(report: dict[str, Any]) -> dict[str, Any]:
    """The document is whole, and the judged quantity is UNKNOWN and has a next step."""
    jsonschema.validate(report, json_schema())
    assert report["verdict"]["status"] == "unknown"
    judged = finding(report, "KVP203")
    assert judged["status"] == "unknown" and judged["measured"] is None and judged["remedy"]["text"]
    return judged


@pytest.mark.parametrize(
    ("edit", "says", "then"),
    [
        (gpus(lambda found: found.pop()), "Only 1 GPU is visible here", "--gpus all"),
        (gpus(lambda found: found.clear()), "shows no GPU", "nvidia.com/gpu"),
        (nvml_says("nvml:12:NVML Shared Library Not Found"), "No NVIDIA driver is installed here", "--memory dram"),
        (nvml_says("nvml:12:AMD"), "from AMD; kvprobe measures NVIDIA GPUs only", "--memory dram"),
        (nvml_says("nvml:18:Driver/library version mismatch"), "different versions", "Reboot"),
        (nvml_says("nvml:4:Insufficient Permissions"), "may not open the NVIDIA devices", "/dev/nvidia"),
    ],
)  # fmt: skip
def test_no_pair_of_gpus(edit: Callable[[list[Entry]], object], says: str, then: str, tmp_path: Path) -> None:
    code, report = replay(edited(tmp_path / "r", edit, memory="vram"))
    missing = finding(report, "KVP210")
    assert code == 3 and says in missing["title"] and then in missing["remedy"]["text"]
    assert "KVP210" in unmeasured(report)["remedy"]["text"]
    assert report["result"]["memory"] is None and "tax" not in report["result"]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"prefill_gpu": 7}, "The prefill GPU 7 is not here; visible are 0, 1."),
        ({"decode_gpu": 2}, "The decode GPU 2 is not here; visible are 0, 1."),
        ({"prefill_gpu": 1}, "both GPU 1; no bytes would cross a link"),
    ],
)
def test_gpus_that_are_not_there(params: dict[str, Any], says: str, tmp_path: Path) -> None:
    code, report = replay(edited(tmp_path / "r", memory="vram", **params))
    assert code == 3 and says in finding(report, "KVP210")["title"]
    unmeasured(report)


def test_a_busy_gpu_is_unknown_however_fast(tmp_path: Path) -> None:
    def busy(found: list[dict[str, Any]]) -> None:
        found[1].update(utilisation=97, memory=[150754820096, 60 * 2**30, 90 * 2**30])

    code, report = replay(edited(tmp_path / "r", gpus(busy)))
    told = finding(report, "KVP206")
    assert code == 3 and finding(report, "KVP203")["status"] == "pass"
    assert "GPU1 is 97% utilised" in told["title"] and "60.0 GiB in use" in told["title"]
    assert "GPU0" not in told["title"] and told["remedy"]["commands"] == ["nvidia-smi"]


def test_too_little_free_memory_measures_what_fits_and_says_so(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        answers(entries, "nvml")[0]["result"]["gpus"][0]["memory"] = [150754820096, 0, 300 * 2**20]
        nixl = next(e for e in entries if probe_of(e) == "nixl")
        nixl["key"]["steps"] = ["read-shuffled-512", "read-shuffled-2048", "read-contiguous-2048", "write-shuffled-2048", "read-contiguous-512"]  # fmt: skip

    code, report = replay(edited(tmp_path / "r", edit))
    judged = unmeasured(report)
    assert code == 3 and "8,192 tokens need 560 MiB per side, 270 MiB are allowed (300 MiB free)" in judged["title"]  # fmt: skip
    assert "--max-memory" in judged["remedy"]["text"]
    assert {t["prompt_tokens"] for t in report["result"]["transfers"]} == {512, 2048}
    rows = {row["prompt_tokens"]: row["transfer_origin"] for row in report["result"]["tax"]}
    assert rows[2048] == "measured" and rows[8192] == "assumed"
    assert report["result"]["ladder"][1]["note"] == "448 MiB are more than the 270 MiB allowed"


@pytest.mark.parametrize(
    ("kind", "error", "remedy"),
    [
        ("died", "decode was killed by SIGKILL.", ""),
        ("timeout", "decode (pid 7) gave no sign of life for 6 s.", ""),
        ("raised", "NIXL cannot be imported (nixl_cu13: No module named 'nixl_cu13').", "Install it where vLLM runs: pip install 'kvprobe[nixl]'."),
    ],
)  # fmt: skip
def test_a_side_that_fails(kind: str, error: str, remedy: str, tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        for outcome in answers(entries, "nixl"):
            peer = outcome["name"] == "prefill"
            kept = [e for e in outcome["events"] if e["event"] in ("setup", "handshake")]
            outcome.update(NO_CHANGE | {"events": kept, "remedy": "" if peer else remedy})
            outcome.update({"error": "The peer closed the connection." if peer else error, "error_kind": "peer" if peer else kind})  # fmt: skip

    code, report = replay(edited(tmp_path / "r", edit))
    ended = finding(report, "KVP205")
    assert code == 3 and error.rstrip(".") in ended["title"] and ended["status"] == "unknown"
    assert ended["remedy"]["text"].startswith(remedy or "Run again")
    assert error in unmeasured(report)["title"]
    assert report["result"]["transfers"] == [] and report["result"]["fit"] == {}
    assert finding(report, "KVP201")["status"] == "pass", "rung 1 was measured all the same"
    assert "KVP211" not in {f["id"] for f in report["findings"]}


def test_half_way_keeps_what_was_measured_and_is_not_a_go(tmp_path: Path) -> None:
    """The judged series is there and fast; the run broke off later. Its bytes were not all compared: UNKNOWN."""

    def edit(entries: list[Entry]) -> None:
        decode = answers(entries, "nixl")[1]
        cut = next(i for i, e in enumerate(decode["events"]) if e.get("step") == "write-shuffled-8192")
        decode.update(NO_CHANGE | {"events": decode["events"][:cut], "error": "decode was killed by SIGKILL.", "error_kind": "died"})  # fmt: skip

    code, report = replay(edited(tmp_path / "r", edit))
    assert code == 3 and finding(report, "KVP203")["status"] == "pass"
    assert finding(report, "KVP205")["status"] == "unknown"
    assert finding(report, "KVP205")["notes"] == ["series measured before: 5"], "the writes are prefill's"


def test_wrong_bytes_are_no_go(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        answers(entries, "nixl")[1].update(NO_CHANGE | {"error": "step read-shuffled-512: 3 wrong words of 7,340,032 after READ."})  # fmt: skip

    code, report = replay(edited(tmp_path / "r", edit))
    assert code == 1 and finding(report, "KVP205")["status"] == "fail"


def test_no_torch_skips_rung_1_and_holds_rung_3_against_nothing(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        answers(entries, "raw_copy")[0]["events"] = [
            {"event": "absent", "package": "torch", "install": "pip install 'kvprobe[gpu]'"}
        ]

    code, report = replay(edited(tmp_path / "r", edit))
    assert code == 0 and "pip install 'kvprobe[gpu]'" in finding(report, "KVP201")["title"]
    assert finding(report, "KVP202")["expected"] is None


def test_rung_2_of_another_ucx_is_shown_and_not_compared(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        for outcome in answers(entries, "raw_ucx"):
            for event in outcome["events"]:
                if event["event"] == "setup":
                    event.update(ucx_version="1.18.0", origin="system /usr/lib/libucp.so.0")

    _, report = replay(edited(tmp_path / "r", edit))
    rungs = {row["rung"]: row for row in report["result"]["ladder"]}
    assert rungs[2]["seconds"] and rungs[2]["loss_seconds"] is None and "no loss" in rungs[2]["note"]
    assert rungs[3]["loss_below_rung"] == 1


def test_both_pairs_of_two_gpus_and_the_worst_one_decides(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        for entry in list(entries):
            if probe_of(entry) in ("raw_copy", "raw_ucx"):
                entries.append(json.loads(json.dumps(entry)) | {"key": entry["key"] | {"gpus": [1, 0]}})
            elif probe_of(entry) == "nixl":
                other = json.loads(json.dumps(entry))
                other["key"]["setup"] = "vram 1->0"
                for event in other["value"][1]["events"]:
                    if event["event"] == "sample" and event["step"] == "read-shuffled-8192":
                        event["total_seconds"] *= 10
                entries.append(other)

    code, report = replay(edited(tmp_path / "r", edit, all_pairs=True, diagnose="off"))
    assert code == 1 and [p["subject"] for p in report["result"]["pairs"]] == ["GPU0 -> GPU1", "GPU1 -> GPU0"]
    assert report["result"]["subject"] == "GPU1 -> GPU0"
    judged = {f["where"]: f["status"] for f in report["findings"] if f["id"] == "KVP203"}
    assert judged == {"GPU0 -> GPU1": "pass", "GPU1 -> GPU0": "fail"}


def called(tmp_path: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "report.json"
    code = main(["preflight", *argv, "-f", "json", "-o", str(out), "--progress", "off"])
    report = json.loads(out.read_bytes())
    jsonschema.validate(report, json_schema())
    return code, report


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ([], 2, "needs --model"),
        (["--model", "/nonexistent/config.json"], 2, "There is no model at"),
        (["--model", QWEN, "--calibration", "/nonexistent"], 2, "--calibration /nonexistent does not exist"),
        (["--model", QWEN, "--decode-log", "/nonexistent"], 2, "--decode-log /nonexistent is not a file"),
        (["--model", QWEN, "--prefill-url", "http://192.0.2.1"], 2, "both --prefill-url and --decode-url"),
        (["--model", QWEN, "--record", "a", "--replay", "b"], 2, "exclude each other"),
        (["--model", QWEN, "--replay", "/nonexistent"], 2, "is not a recording"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_exit_2_and_measures_nothing(argv: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    got, report = called(tmp_path, *argv)
    assert got == code and says in report["error"]["reason"] and report["result"] == {}
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', "num_hidden_layers"),
        ("not json", "is not JSON"),
        ("[1, 2]", ""),
        ('{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": NaN}', ""),
        ("[" * 100000, ""),
        ("\x00\xff\x00binary", ""),
    ],
)
def test_a_config_that_sizes_nothing_is_unknown(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    config = tmp_path / "config.json"
    config.write_text(text, encoding="utf-8")
    code, report = called(tmp_path, "--model", str(config), "--memory", "dram")
    assert code == 3 and report["verdict"]["status"] == "unknown"
    failed = finding(report, "KVP901")
    assert says in failed["title"] and failed["remedy"]["text"] and len(failed["title"]) < 400
    assert "Traceback" not in capsys.readouterr().err


def test_interrupted_between_two_pairs_shows_the_first_and_is_not_a_go(tmp_path: Path) -> None:
    def edit(entries: list[Entry]) -> None:
        for outcome in answers(entries, "nixl"):
            outcome.update({"error": f"{outcome['name']} was interrupted.", "error_kind": "interrupted"})

    code, report = replay(edited(tmp_path / "r", edit, all_pairs=True))
    assert code == 130 and report["run"]["interrupted"] is True
    assert finding(report, "KVP203")["status"] == "pass", "the first pair was measured"
    assert finding(report, "KVP922")["status"] == "unknown" and report["verdict"]["status"] == "unknown"
