"""`kvprobe compare` as a user runs it: the case collection, and a variant of a case for every other label."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.report import decode

BENCH = Path(__file__).parent.parent / "cases" / "bench"
CASES = sorted(p.parent for p in BENCH.glob("*/expected.json"))
EXIT = {"pd_better": 0, "no_difference": 0, "pd_worse": 1, "mixed": 1}
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
        code = main(["compare", *map(str, arguments), "--format", "json", "--progress", "off"])
        out = capsys.readouterr()
        decode(out.out.encode())
        return code, json.loads(out.out), out.err

    return run


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """A case's file with some keys changed (None removes one)."""

    def write(case: str, side: str, name: str, **changes: Any) -> Path:
        folder = next(BENCH.glob(f"{case}-*"))
        document = json.loads((folder / f"{side}.json").read_text())
        for key, value in changes.items():
            document.pop(key, None) if value is None else document.__setitem__(key, value)
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Path, compare: Run) -> None:
    expected = json.loads((case / "expected.json").read_text())
    logs = [a for name in expected["inputs"].get("extra", []) for a in ("--decode-log", str(case / name))]
    code, document, _ = compare(case / "colocated.json", case / "pd.json", *logs)
    result = document["result"]
    assert result["verdict"] == expected["verdict"]
    assert result["comparable"] == expected["comparable"]
    assert set(result["blocking"]) == set(expected["blocking"])
    assert set(result["warnings"]) == set(expected["warnings"])
    assert code == EXIT.get(expected["verdict"], 3)
    for name, told in expected.get("metrics", {}).items():
        for key, value in told.items():
            found = (
                result["metrics"][name][key]
                if value is not None
                else result["metrics"].get(name, {}).get(key)
            )
            assert found == value if value is None else math.isclose(found, value, rel_tol=0.01, abs_tol=1e-6)
    if "ttft_tax" in expected:
        for key in ("measured_median_delta_ms", "kv_transfer_ms_from_log", "share_explained_by_transfer"):
            assert result["ttft_tax"][key] == pytest.approx(expected["ttft_tax"][key], rel=0.01)
    said = json.dumps(document, ensure_ascii=False).lower()
    assert [w for w in expected["must_mention"] if w.lower() not in said] == []
    assert [w for w in expected["must_not_say"] if w.lower() in said] == []


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"backend": "openai-chat"}, "backend_differs"),
        ({"max_concurrency": 8}, "max_concurrency_differs"),
        ({"request_rate": "inf"}, "request_rate_differs"),
        ({"model_id": "another/model"}, "model_differs"),
        ({"tokenizer_id": "another/tokenizer"}, "tokenizer_differs"),
        ({"burstiness": 0.5}, "burstiness_differs"),
        ({"ramp_up_strategy": "linear"}, "burstiness_differs"),
        ({"total_output_tokens": 20000}, "output_tokens_per_request_differ"),
    ],
)
def test_other_workloads_are_not_comparable(
    changes: dict[str, Any], label: str, compare: Run, variant: Callable[..., Path]
) -> None:
    pd = variant("B01", "pd", "pd.json", **changes)
    code, document, _ = compare(BENCH / "B01-l40s-mixed/colocated.json", pd)
    assert label in document["result"]["blocking"]
    assert (document["result"]["verdict"], code) == ("not_comparable", 3)


def test_the_vllm_backend_is_the_openai_client(compare: Run, variant: Callable[..., Path]) -> None:
    pd = variant("B02", "pd", "pd.json", backend="vllm", endpoint_type="vllm")
    code, document, _ = compare(BENCH / "B02-nvlink-pd-better/colocated.json", pd)
    assert (document["result"]["verdict"], code) == ("pd_better", 0)


def test_gain_with_more_gpus_is_mixed(compare: Run, variant: Callable[..., Path]) -> None:
    colocated = variant("B02", "colocated", "colocated.json", gpus="1")
    code, document, _ = compare(colocated, BENCH / "B02-nvlink-pd-better/pd.json")
    assert document["result"]["warnings"] == ["gpu_count_differs"]
    assert document["result"]["comparable"] and document["result"]["verdict"] == "mixed"
    assert "per gpu" in json.dumps(document).lower() and code == 0


def test_missing_tail(compare: Run, variant: Callable[..., Path]) -> None:
    pd = variant("B02", "pd", "pd.json", p99_itl_ms=None)
    code, document, _ = compare(BENCH / "B02-nvlink-pd-better/colocated.json", pd)
    assert document["result"]["blocking"] == ["tail_itl_missing"]
    assert (document["result"]["verdict"], code) == ("no_verdict", 3)
    assert "--metric-percentiles" in json.dumps(document)


def test_a_higher_tail_stands_in_for_p99(compare: Run, variant: Callable[..., Path]) -> None:
    pair = [
        variant("B02", side, f"{side}.json", p99_itl_ms=None, **{"p99.9_itl_ms": tail})
        for side, tail in (("colocated", 130.0), ("pd", 14.0))
    ]
    _, document, _ = compare(*pair)
    assert document["result"]["verdict"] == "pd_better"
    assert "ITL p99.9" in document["findings"][0]["title"]


def test_zero_ttft_is_no_data(compare: Run, variant: Callable[..., Path]) -> None:
    zero = {f"{s}_ttft_ms": 0.0 for s in ("mean", "median", "std", "p99")}
    code, document, _ = compare(
        BENCH / "B02-nvlink-pd-better/colocated.json", variant("B02", "pd", "pd.json", **zero)
    )
    assert document["result"]["blocking"] == ["zero_ttft_with_completed_requests"]
    assert (document["result"]["verdict"], code) == ("invalid_run", 3)
    assert document["result"]["metrics"]["median_ttft_ms"]["pd"] is None


@pytest.mark.parametrize(
    "changes",
    [
        # Four tokens a chunk: gaps four times as long as TPOT.
        {"mean_itl_ms": 42.0, "median_itl_ms": 41.5, "p99_itl_ms": 50.0},
        # A proxy that buffers: all gaps 0 but the flushes.
        {"median_itl_ms": 0.02, "p99_itl_ms": 160.0},
        # One piece: no gaps at all.
        {f"{s}_itl_ms": 0.0 for s in ("mean", "median", "std", "p99")},
    ],
    ids=["chunks", "bursts", "one-piece"],
)
def test_bundled_tokens(changes: dict[str, Any], compare: Run, variant: Callable[..., Path]) -> None:
    pd = variant("B02", "pd", "pd.json", latencies=None, **changes)
    code, document, _ = compare(BENCH / "B02-nvlink-pd-better/colocated.json", pd)
    assert document["result"]["warnings"] == ["itl_bundled"]
    assert (document["result"]["verdict"], code) == ("itl_unusable", 3)


def test_prefills_that_stop_decoding_are_no_bundling(compare: Run) -> None:
    sweep = BENCH / "S01-sweep"
    _, document, _ = compare(sweep / "colocated/rate-3.json", sweep / "pd/rate-3.json")
    assert "itl_bundled" not in document["result"]["warnings"]


def test_worse_without_a_gain(compare: Run, variant: Callable[..., Path]) -> None:
    worse = {"mean_ttft_ms": 420.0, "median_ttft_ms": 415.0, "p99_ttft_ms": 620.0}
    code, document, _ = compare(
        BENCH / "B09-within-noise/colocated.json", variant("B09", "pd", "pd.json", **worse)
    )
    assert (document["result"]["verdict"], code) == ("pd_worse", 1)
    # TTFT more than doubled with the same TPOT, 2.29 times: not the mark of a second prefill.
    assert "double_prefill_suspected" not in document["result"]["warnings"]


def test_a_doubled_ttft_asks_for_the_decode_log(compare: Run) -> None:
    case = BENCH / "B16-double-prefill"
    code, document, _ = compare(case / "colocated.json", case / "pd.json")
    assert document["result"]["warnings"] == ["double_prefill_suspected"]
    assert code == 1 and "--decode-log" in json.dumps(document)


@pytest.mark.parametrize(
    ("slo", "verdict", "code"),
    [("3s", "pd_better", 0), ("2s", "mixed", 1), ("500ms", "mixed", 1)],
)
def test_the_ttft_target_decides(
    slo: str, verdict: str, code: int, compare: Run, variant: Callable[..., Path]
) -> None:
    # Without the goodput in the files, so that only the given target counts.
    pair = [variant("B01", side, f"{side}.json", request_goodput=None) for side in ("colocated", "pd")]
    found, document, _ = compare(*pair, "--ttft-slo", slo)
    assert (document["result"]["verdict"], found) == (verdict, code)
    assert document["result"]["slo"]["pd"]["ttft"]["met"] == (verdict == "pd_better")


def test_without_any_target_a_second_of_tax_is_a_warning(compare: Run, variant: Callable[..., Path]) -> None:
    pair = [variant("B01", side, f"{side}.json", request_goodput=None) for side in ("colocated", "pd")]
    code, document, _ = compare(*pair)
    assert (document["result"]["verdict"], code) == ("mixed", 0)
    code, _, _ = compare(*pair, "--fail-on", "warn")
    assert code == 1


def test_a_percentile_that_is_not_saved_is_unknown(compare: Run) -> None:
    case = BENCH / "B02-nvlink-pd-better"
    code, document, _ = compare(
        case / "colocated.json", case / "pd.json", "--ttft-slo", "2s", "--slo-percentile", "95"
    )
    assert code == 3 and document["result"]["slo"]["pd"]["ttft"] == {
        "seconds": None, "met": None, "samples": 200,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        ('{"time_to_first_token": {"unit": "ms", "avg": 300.0, "p99": 500.0}, "request_count": {"avg": 100}}', "GenAI-Perf"),
        ('{"benchmarks": [{"metrics": {}}], "metadata": {}}', "GuideLLM"),
        ('{"backend": "sglang", "completed": 100, "duration": 9.0, "total_output_tokens_retokenized": 1}', "SGLang"),
        ("============ Serving Benchmark Result ============\nSuccessful requests: 100\n", "console output"),
        ('{"completed": 100}', "missing"),
        ("not json", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("\x00\xff\x13" * 50, "not JSON"),
        ("[1, 2]", "not a JSON object"),
    ],
)  # fmt: skip
def test_foreign_results(content: str, tool: str, compare: Run, tmp_path: Path) -> None:
    path = tmp_path / "pd.json"
    path.write_text(content)
    code, document, _ = compare(BENCH / "B02-nvlink-pd-better/colocated.json", path)
    assert document["result"]["blocking"] == ["foreign_result_format"]
    assert (document["result"]["verdict"], code) == ("not_comparable", 3)
    assert not document["result"]["comparable"] and tool.lower() in json.dumps(document).lower()


@pytest.mark.parametrize(
    "changes",
    [
        {"median_ttft_ms": float("nan")},
        {"median_ttft_ms": "fast"},
        {"completed": -3},
        {"completed": 2.5},
        {"latencies": [1, "x"]},
        {"ttfts": [0.1], "itls": [[0.1], [0.2]], "input_lens": [1], "output_lens": [2]},
        {"request_rate": [1]},
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], compare: Run, variant: Callable[..., Path]) -> None:
    path = variant("B02", "pd", "pd.json", **changes)
    code, document, _ = compare(BENCH / "B02-nvlink-pd-better/colocated.json", path)
    assert code == 3 and document["result"]["verdict"] == "not_comparable"
    title = next(f["title"] for f in document["findings"] if f["id"] == "KVP631")
    assert next(iter(changes)) in title


def test_sweep_is_decided_by_what_each_side_carries(compare: Run) -> None:
    sweep = BENCH / "S01-sweep"
    code, document, _ = compare(sweep / "colocated", sweep / "pd", "--ttft-slo", "1s", "--itl-slo", "50ms")
    result = document["result"]
    assert (result["verdict"], result["comparable"], code) == ("pd_better", True, 0)
    assert result["capacity"]["colocated"]["carries"]["request_rate"] == 0.5
    assert result["capacity"]["colocated"]["because"] == "ITL p99"
    assert result["capacity"]["pd"]["carries"]["request_rate"] == 2.0
    assert [p["request_rate"] for p in result["points"]] == [0.5, 1.0, 2.0, 3.0]
    assert all(p["goodput"]["pd"]["source"] == "requests" for p in result["points"])


def test_sweep_names_loads_without_a_partner(compare: Run, tmp_path: Path) -> None:
    sweep = BENCH / "S01-sweep"
    for name in ("rate-1.json", "rate-2.json"):
        (tmp_path / name).write_text((sweep / "pd" / name).read_text())
    code, document, _ = compare(sweep / "colocated", tmp_path)
    missing = [f for f in document["findings"] if f["code"] == "load_missing"]
    assert len(missing) == 2 and {f["status"] for f in missing} == {"skip"} and code == 0


def test_sweep_that_fills_its_own_cache(compare: Run, tmp_path: Path) -> None:
    for side in ("colocated", "pd"):
        folder = tmp_path / side
        folder.mkdir()
        for number, rate in enumerate((0.5, 1.0, 2.0)):
            document = json.loads((BENCH / "S01-sweep" / side / f"rate-{rate:g}.json").read_text())
            factor = 0.5**number if side == "pd" else 1.0
            document["median_ttft_ms"] *= factor
            document["ttfts"] = [t * factor for t in document["ttfts"]]
            (folder / f"{rate}.json").write_text(json.dumps(document))
    code, document, _ = compare(tmp_path / "colocated", tmp_path / "pd")
    assert (document["result"]["verdict"], code) == ("suspect_prefix_cache", 3)
    assert not document["result"]["comparable"]


def test_repeated_runs_are_pooled(compare: Run, tmp_path: Path) -> None:
    for side, medians in (("colocated", (181.0, 200.0, 190.0)), ("pd", (186.0, 250.0, 260.0))):
        document = json.loads((BENCH / "B09-within-noise" / f"{side}.json").read_text())
        lines = [json.dumps(document | {"median_ttft_ms": m, "duration": 101 + m / 1000}) for m in medians]
        (tmp_path / f"{side}.json").write_text("\n".join(lines))
    _, document, _ = compare(tmp_path / "colocated.json", tmp_path / "pd.json")
    told = document["result"]
    assert told["sides"]["pd"]["runs"] == 3 and told["sides"]["pd"]["completed"] == 300
    assert told["metrics"]["median_ttft_ms"]["pd"] == 250.0
    # 181 to 200 and 186 to 260 overlap: 250 against 190 is within what runs scatter.
    assert told["verdict"] == "no_difference"


def test_more_than_two_results(compare: Run) -> None:
    case = BENCH / "B02-nvlink-pd-better"
    code, document, _ = compare(case / "colocated.json", case / "pd.json", case / "colocated.json")
    assert [c["verdict"] for c in document["result"]["comparisons"]] == ["pd_better", "not_comparable"]
    assert code == 3


def test_usage_errors(compare: Run, tmp_path: Path) -> None:
    assert compare("one.json")[0] == 2
    code, document, err = compare(tmp_path / "absent.json", tmp_path / "b.json")
    assert code == 2 and "absent.json does not exist" in err and document["error"]
    assert compare(tmp_path, tmp_path)[0] == 3


def test_record_and_replay(compare: Run, tmp_path: Path) -> None:
    sweep = BENCH / "S01-sweep"
    live = compare(sweep / "colocated", sweep / "pd", "--record", tmp_path / "r", "--itl-slo", "50ms")
    again = compare("--replay", tmp_path / "r")
    assert live[0] == again[0] and live[1]["result"] == again[1]["result"]
    assert again[1]["run"]["replayed_from"]
