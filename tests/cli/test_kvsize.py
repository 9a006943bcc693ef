"""The whole command: result keys, exit codes, table, errors, recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.report import decode

ROOT = Path(__file__).parent.parent.parent
CASES = ROOT / "tests" / "cases" / "kv_size"
SAMPLES = ROOT / "samples" / "configs"
LOG = ROOT / "samples" / "logs" / "h200-nvlink-decode.log.gz"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["kvsize", *arguments, "--format", "json"])
    out = capsys.readouterr()
    decode(out.out.encode())
    return code, json.loads(out.out), out.err


def model(tmp_path: Path, name: str) -> str:
    case = json.loads((CASES / f"{name}.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(case["config"]))
    return str(tmp_path)


def test_the_result_has_the_keys_of_the_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = run(
        capsys, "--model", model(tmp_path, "Qwen3.5-27B"), "--tp", "2", "--prompt-tokens", "8192"
    )
    result = document["result"]
    assert code == 0
    assert result["status"] == "ok"
    assert result["block_size_tokens"] == 832
    assert result["bytes_per_token"] == {"per_rank": 32768, "all_ranks": 65536}
    prompt = result["nixl_transfer"]["prompts"]["8192"]
    assert prompt["per_rank"] == sum(
        g["regions"] * g["blocks"] * g["descriptor_bytes"] for g in prompt["groups"]
    )
    assert result["config_keys"]["state_bytes_per_sequence"][0].startswith("text_config.")
    assert result["assumptions"][0]["what"] == "gpu_arch"
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in result["nixl_transfer"]["needs"]


@pytest.mark.parametrize(
    ("name", "options", "code", "status", "finding"),
    [
        ("Qwen3-8B", [], 0, "ok", None),
        ("bert-base", [], 0, "no_kv_cache", "no_kv_cache"),
        ("unknown-arch", [], 3, "refused", "unknown_architecture"),
        ("Bamba-9B", [], 3, "refused", "removed_architecture"),
        ("Qwen2.5-7B-Instruct", ["--tp", "8"], 3, "refused", "heads_not_divisible_by_tp"),
        ("DeepSeek-V3.2", ["--block-size", "16"], 3, "refused", "block_size_not_supported"),
    ],
)
def test_status_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str], code: int, status: str, finding: str | None
) -> None:  # fmt: skip
    got, document, _ = run(capsys, "--model", model(tmp_path, name), *options)
    assert (got, document["result"]["status"]) == (code, status)
    first = document["findings"][0]
    assert (first["id"], first["code"]) == ("KVP110", finding)
    if code == 3:
        assert "bytes_per_token" not in document["result"]


def test_a_cache_that_nixl_cannot_move_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = run(capsys, "--model", model(tmp_path, "LFM2.5-VL-1.6B"))
    found = {f["id"]: f for f in document["findings"]}
    assert code == 0
    assert (found["KVP111"]["status"], found["KVP111"]["code"]) == ("warn", "nixl_short_conv_not_supported")
    assert document["result"]["nixl_transfer"]["prompts"] == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "/no/such/model"],
        ["--model", "Qwen/Qwen9-0B"],
        ["--model", "gpt-oss-20b", "--kv-cache-dtype", "fp3"],
        ["--model", "gpt-oss-20b", "--tp", "0"],
        ["--model", "gpt-oss-20b", "--prompt-tokens", "0"],
        ["--model", "gpt-oss-20b", "--prompt-tokens", "99999999999999"],
        ["--model", "gpt-oss-20b", "--check-against-log", "/no/such/log"],
        ["--model", "gpt-oss-20b", "--cross-check", "--pp", "2"],
    ],
)
def test_impossible_calls_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = run(capsys, *arguments)
    assert code == 2
    assert document["error"]["reason"]
    assert "Traceback" not in err


def test_the_recorded_log_agrees_with_the_model_it_was_recorded_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        "--model",
        "Qwen/Qwen2.5-7B-Instruct",
        "--check-against-log",
        str(LOG),
        "--prompt-tokens",
        "8192",
    ]
    code, document, _ = run(capsys, *arguments)
    check = document["result"]["check_against_log"]
    assert (code, check["verdict"]) == (0, "agrees")
    assert {line["implied_tokens"] for line in check["lines"]} >= {512, 2048, 8192, 16384, 30000}
    code, document, _ = run(capsys, *arguments, "--block-size", "64")
    assert (code, document["result"]["check_against_log"]["verdict"]) == (1, "disagrees")


def test_a_log_without_transfers_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quiet.log").write_text("INFO nothing moved\n")
    code, document, _ = run(
        capsys, "--model", "gpt-oss-20b", "--check-against-log", str(tmp_path / "quiet.log")
    )
    assert code == 3
    assert document["findings"][-1]["id"] == "KVP114"


def test_cross_check_without_vllm_is_unknown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = run(capsys, "--model", "gpt-oss-20b", "--cross-check")
    found = document["findings"][-1]
    assert (code, found["id"], found["status"]) == (3, "KVP115", "unknown")
    assert "vLLM" in found["title"]
    assert document["result"]["bytes_per_token"]["per_rank"] == 49152


def test_the_table_shows_sizes_arithmetic_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["kvsize", "--model", str(SAMPLES / "gpt-oss-20b"), "--explain", "--prompt-tokens", "8192"]) == 0
    )
    out = capsys.readouterr().out
    for words in ("sliding window of 128", "a token, for as long as it lives", "24,576 B", "195 MiB", "floor((8,192 - 128 + 1) / 16)", "sm90 (Hopper)", "GO"):  # fmt: skip
        assert words in out, words
    assert out.rstrip().splitlines()[-1].startswith("GO")


def test_a_recorded_run_replays_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model(tmp_path, "GLM-5")
    code, live, _ = run(capsys, "--model", folder, "--record", str(tmp_path / "record"))
    (tmp_path / "config.json").unlink()
    replayed_code, replayed, _ = run(capsys, "--model", folder, "--replay", str(tmp_path / "record"))
    assert (code, live["result"]) == (replayed_code, replayed["result"])


def test_every_sample_config_has_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    folders = sorted(p.parent for p in SAMPLES.glob("*/config.json"))
    assert folders
    for folder in folders:
        code, document, _ = run(capsys, "--model", str(folder))
        assert (code, document["result"]["status"]) == (0, "ok"), folder


def test_no_heavy_module_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from kvprobe.cli import main; main(['kvsize','--model',sys.argv[1],'--format','json']); "
        "bad = {'torch','vllm','transformers','numpy','httpx','jinja2','huggingface_hub'} & set(sys.modules); "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model(tmp_path, "Qwen3-8B")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
