"""`kvprobe estimate`: the published figures, a fit of recorded transfers, a long way, and what must not be promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvprobe.cli import main
from kvprobe.finding import Verdict, VerdictStatus
from kvprobe.models.cost_fit import Point, fit
from kvprobe.report import Report, Run, decode, encode

ROOT = Path(__file__).parent.parent.parent
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}  # fmt: skip
QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    "vocab_size": 152064, "use_sliding_window": False,
}  # fmt: skip
Run_ = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    found = {}
    for name, config in (("llama", LLAMA_70B), ("qwen", QWEN_7B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        found[name] = str(tmp_path / name)
    return found


@pytest.fixture
def estimate(capsys: pytest.CaptureFixture[str]) -> Run_:
    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code = main(["estimate", *arguments, "--format", "json", "--progress", "off"])
        out = capsys.readouterr()
        decode(out.out.encode())
        return code, json.loads(out.out), out.err

    return run


def recorded_report(path: Path, memory: str = "vram", fits: dict[str, Any] | None = None) -> str:
    """A preflight report whose fit comes from the recorded READs of 2x H200 (samples/ttft/rung4.jsonl)."""
    lines = [json.loads(line) for line in (ROOT / "samples/ttft/rung4.jsonl").read_text().splitlines()]
    points = [
        Point(descriptors=r["tel_desc"], bytes=r["bytes"], seconds=r["total_ms"] / 1e3)
        for r in lines
        if r["variant"] == "vllm_default"
    ]
    found = {"READ": {**msgspec.to_builtins(fit(points)), "transport": "cuda_ipc"}} if fits is None else fits
    report = Report(
        run=Run(command="preflight", host="node-a"),
        verdict=Verdict(status=VerdictStatus.GO, exit_code=0),
        result={"memory": memory, "fit": found},
    )
    path.write_bytes(encode(report))
    return str(path)


def finding(document: dict[str, Any], check: str) -> dict[str, Any]:
    return next(f for f in document["findings"] if f["id"] == check)


def test_llama_70b_over_400_gigabit(estimate: Run_, models: dict[str, str]) -> None:
    code, document, _ = estimate(
        "--model", models["llama"], "--prompt-tokens", "10000", "--bandwidth", "400Gb/s"
    )
    row = document["result"]["prompts"][0]
    assert row["bytes"] == 3_276_800_000 and row["descriptors"] == 50_000
    assert row["wire_seconds"] == pytest.approx(0.0655, abs=1e-4)
    # What the descriptors cost is not known: neither 0 nor a GO.
    assert row["descriptor_seconds"] is None and row["transfer_seconds"] is None
    assert finding(document, "KVP671")["status"] == "unknown" and code == 3
    assert document["result"]["tax"] == [] and row["tax_is_lower_bound"]


def test_qwen_7b_over_software_emulation(estimate: Run_, models: dict[str, str]) -> None:
    code, document, _ = estimate("--model", models["qwen"], "--link", "ucx-emulation")
    row = document["result"]["prompts"][0]
    assert row["transfer_seconds"] == pytest.approx(1.3, abs=0.01)
    assert row["tax"]["p50_seconds"] > 1.3
    assert finding(document, "KVP674")["status"] == "fail" and code == 1


def test_a_fit_gives_the_descriptor_term(estimate: Run_, models: dict[str, str], tmp_path: Path) -> None:
    report = recorded_report(tmp_path / "R.json")
    code, document, _ = estimate("--model", models["qwen"], "--fit", report, "--vllm-version", "0.26.0")
    row = document["result"]["prompts"][0]
    # Recorded: 50.4 ms for these 14,336 descriptors.
    assert row["transfer_seconds"] == pytest.approx(0.0504, rel=0.1) and not row["extrapolated"]
    assert document["result"]["tax"][0]["terms"][0]["origin"] == "measured"
    assert finding(document, "KVP671")["status"] == "pass" and code == 0
    # vLLM 0.26.0 on that host added 80 ms.
    assert row["tax"]["p50_seconds"] == pytest.approx(0.080, rel=0.2)


def test_a_fit_says_where_it_was_not_measured(estimate: Run_, models: dict[str, str], tmp_path: Path) -> None:
    report = recorded_report(tmp_path / "R.json")
    _, document, _ = estimate("--model", models["llama"], "--fit", report, "--prompt-tokens", "100000")
    assert finding(document, "KVP671")["code"] == "extrapolated"
    code, document, _ = estimate(
        "--model", models["qwen"], "--fit", recorded_report(tmp_path / "D.json", memory="dram")
    )
    assert finding(document, "KVP671")["code"] == "fit_of_host_memory" and code == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "not a kvprobe.report/v1"),
        ("\x00\x01", "not a kvprobe.report/v1"),
        (None, "no cost fit of READ (it has none)"),
        ({"READ": {"t0_seconds": "x"}}, "is damaged"),
        (
            {"READ": {"t0_seconds": -1.0, "seconds_per_descriptor": 0.0, "seconds_per_descriptor_single_thread": 0.0,
                      "bandwidth_bytes_per_second": None, "residuals": [], "points": []}},
            "no points",
        ),
    ],
)  # fmt: skip
def test_a_wrong_fit_is_named(
    content: Any, words: str, estimate: Run_, models: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "R.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        recorded_report(path, fits=content or {})
    code, document, _ = estimate("--model", models["qwen"], "--fit", str(path))
    assert code == 3 and words in document["error"]["reason"]


def test_wan_relay(estimate: Run_, models: dict[str, str]) -> None:
    way = ("--bandwidth", "100Gb/s", "--rtt", "40ms")
    _, document, _ = estimate("--model", models["qwen"], *way)
    direct = document["result"]["prompts"][0]
    assert finding(document, "KVP673")["status"] == "unknown"
    assert direct["round_trip_seconds"] == pytest.approx(0.040)
    _, document, _ = estimate("--model", models["qwen"], *way, "--window", "64MiB", "--relay")
    relay = document["result"]["prompts"][0]
    # 64 MiB a round trip are 1.68 GB/s, and the bytes take two legs.
    assert document["result"]["link"]["effective_bytes_per_second"] == pytest.approx(64 * 2**20 / 0.040)
    assert relay["wire_seconds"] == pytest.approx(2 * relay["bytes"] / (64 * 2**20 / 0.040))
    assert relay["round_trip_seconds"] == pytest.approx(0.080)
    assert finding(document, "KVP673")["code"] == "window_limits_link"


def test_ranks_share_a_link_or_have_one_each(estimate: Run_, models: dict[str, str]) -> None:
    call = ("--model", models["llama"], "--tp", "8", "--bandwidth", "50GB/s")
    own = estimate(*call)[1]["result"]["prompts"][0]
    shared = estimate(*call, "--shared-link")[1]["result"]["prompts"][0]
    assert shared["wire_seconds"] == pytest.approx(8 * own["wire_seconds"])


def test_dynamo_gets_one_rate_that_gives_the_same_time(
    estimate: Run_, models: dict[str, str], tmp_path: Path
) -> None:
    report = recorded_report(tmp_path / "R.json")
    _, document, _ = estimate("--model", models["qwen"], "--fit", report, "--emit", "dynamo")
    told, row = document["result"]["planner"], document["result"]["prompts"][0]
    assert told["kv_bytes_per_token"] == 57_344
    seconds = 8192 * told["kv_bytes_per_token"] / (told["kv_transfer_bandwidth_gb_s"] * 1e9)
    assert seconds == pytest.approx(row["transfer_seconds"])
    assert 8 < told["kv_transfer_bandwidth_gb_s"] < 11 and told["basis"] == "the whole transfer"


def test_a_lower_bound_breaks_a_target_but_never_keeps_it(estimate: Run_, models: dict[str, str]) -> None:
    call = ("--model", models["llama"], "--bandwidth", "400Gb/s", "--base-ttft", "200ms")
    code, document, _ = estimate(*call, "--ttft-slo", "2s")
    assert finding(document, "KVP602")["status"] == "skip" and code == 3
    code, document, _ = estimate(*call, "--ttft-slo", "250ms")
    assert finding(document, "KVP602")["status"] == "fail" and code == 1


def test_the_link_must_carry_the_rate(estimate: Run_, models: dict[str, str]) -> None:
    call = ("--model", models["llama"], "--bandwidth", "100Gb/s", "--rate")
    assert finding(estimate(*call, "1")[1], "KVP672")["status"] == "pass"
    assert finding(estimate(*call, "4")[1], "KVP672")["code"] == "link_busy"
    code, document, _ = estimate(*call, "6")
    assert finding(document, "KVP672")["code"] == "link_overloaded" and code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--bandwidth", "1GB/s", "--link", "ndr-400g"),
        ("--link", "carrier-pigeon"),
        ("--bandwidth", "0GB/s"),
        ("--bandwidth", "fast"),
        ("--bandwidth", "1GB/s", "--window", "1MiB"),
        ("--bandwidth", "1GB/s", "--prompt-tokens", "0"),
        ("--bandwidth", "1GB/s", "--prompt-tokens", "1000000000"),
    ],
)
def test_usage_errors(
    arguments: tuple[str, ...], models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", "--model", models["qwen"], *arguments, "--format", "json"]) == 2
    assert capsys.readouterr().err


def test_it_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--bandwidth", "1GB/s"]) == 2
    assert "--model" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_fits(
    width: str, models: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    main(
        [
            "estimate",
            "--model",
            models["qwen"],
            "--bandwidth",
            "400Gb/s",
            "--prompt-tokens",
            "8192",
            "--emit",
            "dynamo",
        ]
    )
    out = capsys.readouterr().out
    table = out.split("budget")[0].splitlines()
    assert [line for line in table if len(line) > int(width) and "dynamo" not in line] == []
    assert "unknown" in out and "≥" in out
