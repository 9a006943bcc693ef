"""The result file of `vllm bench serve`: zeros that are no data, failed requests, several runs in one file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import FormatError
from kvprobe.formats.bench_result import parse_bench_results

BENCH = Path(__file__).parent.parent / "cases" / "bench"
B02 = (BENCH / "B02-nvlink-pd-better" / "pd.json").read_text()
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=4),
    max_leaves=10,
)


def test_fields() -> None:
    run = parse_bench_results(B02, "pd.json")[0]
    assert (run.completed, run.failed, run.request_rate, run.gpus) == (200, 0, 2.0, 2)
    assert (run.input_tokens_per_request, run.output_tokens_per_request) == (8192.0, 256.0)
    assert run.ms("p99", "itl") == pytest.approx(12.5868, abs=1e-4)
    assert run.metadata["mode"] == "1P1D"
    assert len(run.latencies_seconds) == 200 and run.requests == ()


def test_zero_latencies_are_no_data() -> None:
    text = (BENCH / "B12-pd-all-failed-zeros" / "pd.json").read_text()
    run = parse_bench_results(text, "pd.json")[0]
    assert run.completed == 0 and run.failed == 100
    assert {v for k, v in run.numbers.items() if k.endswith("_ms")} == {None}


def test_failed_is_derived_where_old_versions_do_not_write_it() -> None:
    document = json.loads((BENCH / "B04-pd-27-failed" / "pd.json").read_text())
    del document["failed"]
    assert parse_bench_results(json.dumps(document), "x")[0].failed == 27


def test_appended_results_and_rate_inf() -> None:
    second = json.dumps(json.loads(B02) | {"request_rate": "inf"})
    runs = parse_bench_results(f"{B02}\n{second}", "pd.json")
    assert [r.request_rate for r in runs] == [2.0, math.inf]
    assert [r.source for r in runs] == ["pd.json run 1", "pd.json run 2"]


def test_saved_requests_leave_out_failed_ones() -> None:
    document = json.loads((BENCH / "S01-sweep" / "pd" / "rate-1.json").read_text())
    document["errors"][3] = "Bad Gateway"
    document["output_lens"][4] = 0
    run = parse_bench_results(json.dumps(document), "x")[0]
    assert len(run.requests) == 58
    first = run.requests[0]
    assert first.tpot_seconds == pytest.approx(sum(first.itl_seconds) / 23)


@given(JSON)
def test_any_json_is_answered(document: object) -> None:
    with pytest.raises(FormatError):
        parse_bench_results(json.dumps(document), "x.json")


@given(st.dictionaries(st.sampled_from(sorted(json.loads(B02))), JSON, min_size=1, max_size=3))
def test_any_value_of_a_known_key_is_read_or_refused(changes: dict[str, object]) -> None:
    try:
        parse_bench_results(json.dumps(json.loads(B02) | changes), "x.json")
    except FormatError as error:
        assert error.reason.startswith("x.json")
