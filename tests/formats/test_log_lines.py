"""Prefixes of vLLM, NIXL, UCX and of the collectors around them."""

from __future__ import annotations

import json

import pytest

from kvprobe.formats.log_lines import Head, elapsed, parse_head, plain, seconds_of, unwrap

VLLM = "(EngineCore_DP0 pid=72) WARNING 12-07 22:15:40 [scheduler.py:1190] text"


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (VLLM, Head(process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("(APIServer pid=1) " + VLLM, Head(process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("(VllmWorker TP0 pid=71) INFO 09-17 11:00:00 [a.py:1] x", Head(process="VllmWorker TP0", pid=71, level="INFO", timestamp="09-17 11:00:00")),
        ("INFO 07-15 14:59:23 [nixl_connector.py:526] x", Head(level="INFO", timestamp="07-15 14:59:23")),
        ("decode-1   | " + VLLM, Head(source="decode-1", process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("[pod/decode-0/modelserver] " + VLLM, Head(source="decode-0/modelserver", process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("Nov 05 11:00:00 node-a vllm-decode[2211]: " + VLLM, Head(source="node-a vllm-decode", process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("decode-6c9f7d-xk2lp vllm " + VLLM, Head(source="decode-6c9f7d-xk2lp vllm", process="EngineCore_DP0", pid=72, level="WARNING", timestamp="12-07 22:15:40")),
        ("E0827 04:11:40.220101     301 nixl_agent.cpp:1402] genNotif", Head(timestamp="08-27 04:11:40")),
        ("[1781291420.830118] [decode-0:37   :0]  ib_md.c:307  UCX  ERROR x", Head(timestamp="2026-06-12 19:10:20Z")),
        ("2026-11-05T11:00:00.123456789Z stdout F plain", Head(timestamp="2026-11-05 11:00:00")),
        ("Traceback (most recent call last):", Head()),
    ],
)  # fmt: skip
def test_head(line: str, want: Head) -> None:
    assert parse_head(line) == want


def test_json_lines_of_vllm_and_of_collectors() -> None:
    own = {
        "asctime": "2026-11-29 16:48:57,693",
        "levelname": "ERROR",
        "message": "NIXL is not available",
        "process": 7,
        "vllm_process_name": "EngineCore",
    }
    text = unwrap(json.dumps(own))
    assert text == "2026-11-29 16:48:57,693 (EngineCore pid=7) ERROR NIXL is not available"
    assert parse_head(text).timestamp == "2026-11-29 16:48:57"
    assert unwrap(json.dumps({"log": VLLM + "\n", "time": "2026-01-01T00:00:00Z"})) == VLLM + "\n"
    assert unwrap("[pod/a/b] " + json.dumps({"log": json.dumps({"message": VLLM})})).endswith(VLLM)


@pytest.mark.parametrize(
    "text", ['{"', '{"a": 1}', '{"message": 5}', '{"message": ' + "[" * 5000, '["x"]', "{" * 500]
)
def test_json_that_is_none_stays_as_it_is(text: str) -> None:
    assert unwrap(text) == text


def test_colours_go_also_without_their_escape_byte() -> None:
    coloured = "\x1b[0;36m(APIServer pid=5)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-05 10:00:00\x1b[0m \x1b[90m[metrics.py:108]\x1b[0m x\r"
    assert plain(coloured) == "(APIServer pid=5) INFO 11-05 10:00:00 [metrics.py:108] x"
    assert plain("[0;36m(APIServer pid=5)[0;0m x") == "(APIServer pid=5) x"


def test_time_runs_on_over_new_year() -> None:
    assert elapsed("12-31 23:59:58", "01-01 00:00:02") == 4
    assert elapsed("11-03 08:15:02", "11-03 08:15:12") == 10
    assert elapsed("2025-12-31 23:59:58", "2026-01-01 00:00:02") == 4
    assert elapsed(None, "11-03 08:15:12") is None
    assert seconds_of("13-40 08:15:02") is None
