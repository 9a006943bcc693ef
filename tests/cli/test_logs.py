"""The whole command: the case collection, recorded logs, compressed files, pipes, /metrics of a real HTTP server."""

from __future__ import annotations

import bz2
import gzip
import http.server
import json
import lzma
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvprobe.cli import main
from kvprobe.formats.vllm_metrics import parse_metrics_page
from kvprobe.report import decode

ROOT = Path(__file__).parent.parent.parent
CASES = sorted(p.parent for p in (ROOT / "tests" / "cases" / "logs").glob("*/expected.json"))
SAMPLES = ROOT / "samples" / "logs"
TWO = ROOT / "tests/cases/logs/L03-v033-two-intervals/decode.log"
GO, NO_GO, USAGE, UNKNOWN = 0, 1, 2, 3
FIRST = (SAMPLES / "h200-nvlink-decode-1.prom").read_text()
SECOND = (SAMPLES / "h200-nvlink-decode-2.prom").read_text()
PREFILL = (SAMPLES / "h200-nvlink-prefill.prom").read_text()
NOT_FAILING = {"kv_load_recovered", "turn2_read_expired", "hma_auto_disabled", "ucx_unused_variable", "side_channel_host_loopback", "rma_over_tcp"}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = main(["logs", *map(str, arguments), "--format", "json", "--progress", "off"])
    out = capsys.readouterr().out
    decode(out.encode())
    return code, json.loads(out)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((case / "expected.json").read_text())
    code, document = run(capsys, *sorted(case.glob("*.log")))
    result = document["result"]
    got = {(Path(i["file"]).name, i["line"]): i for i in result["kv_transfer_intervals"]}
    want = expected["kv_transfer_intervals"]
    assert len(got) == len(want)
    for w in want:
        name = w.get("file") or next(iter(case.glob("*.log"))).name
        for key, value in w.items():
            if key not in ("file", "direction"):
                assert got[(name, w["line"])][key] == value, key
    wanted = {f["code"] for f in expected["failures"]}
    found = {f["code"]: f for f in result["failures"]}
    assert wanted <= set(found)
    assert bool(found) == bool(wanted)
    for w in expected["failures"]:
        assert found[w["code"]]["consequence_of"] is None, "what the case expects is a cause"
        if "count" in w and not w.get("follow_on"):
            assert found[w["code"]]["count"] == w["count"]
    if verdict := expected.get("assessment", {}).get("verdict"):
        assert result["assessment"]["verdict"] == (
            "failures_present" if "failures_present" in verdict else verdict
        )
    totals = expected.get("totals", {})
    for key in ("num_successful_transfers", "weighted_avg_xfer_time_ms", "max_p90_xfer_time_ms"):
        if key in totals:
            assert math.isclose(result["totals"][key], totals[key], rel_tol=1e-4)
    slow = result["assessment"]["verdict"] == "slow" or case.name.startswith("F12")
    if wanted - NOT_FAILING or slow:
        assert code == NO_GO
    elif result["assessment"]["verdict"] == "no_pd_transfer_data":
        assert code == UNKNOWN
    else:
        assert code == GO


@pytest.mark.parametrize(
    ("name", "code", "failures", "transfers"),
    [
        ("h200-nvlink-decode", GO, [], 50),
        ("h200-nvlink-blhnc-vllm-0.30-decode", GO, [], 16),
        ("h200-host-buffer-decode", GO, [], 21),
        ("h200-nvlink-prefill", UNKNOWN, [], 0),
        ("h200-no-cuda-ipc-decode", NO_GO, ["cuda_ipc_unavailable_tcp_fallback", "rma_over_tcp"], 21),
        ("h200-rma-pipeline-vllm-0.30-decode", NO_GO, ["rma_over_tcp"], 9),
    ],
)  # fmt: skip
def test_recorded_log(
    name: str, code: int, failures: list[str], transfers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    got, document = run(capsys, SAMPLES / f"{name}.log.gz")
    result = document["result"]
    assert (got, [f["code"] for f in result["failures"]]) == (code, failures)
    assert result["totals"]["num_successful_transfers"] == transfers
    assert result["damaged_lines"] == []
    assert result["streams"][0]["role"] == ("prefill" if "prefill" in name else "decode")


def test_recorded_log_agrees_with_the_recorded_counters(capsys: pytest.CaptureFixture[str]) -> None:
    """The log's sums against vLLM's own histograms at the end of the same run."""
    _, document = run(capsys, SAMPLES / "h200-nvlink-decode.log.gz")
    totals = document["result"]["totals"]
    (nixl,) = parse_metrics_page(SECOND).engines[0].transfers
    assert nixl.bytes is not None and nixl.xfer_seconds is not None and nixl.descriptors is not None
    assert totals["num_successful_transfers"] == nixl.count == 50
    assert totals["bytes"] == nixl.bytes.sum
    assert totals["xfer_seconds_sum"] == pytest.approx(nixl.xfer_seconds.sum, abs=50 * 0.5e-6)
    assert totals["descriptors_per_transfer_mean"] * 50 == pytest.approx(nixl.descriptors.sum, abs=50 * 0.05)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_compressed_files(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "decode.log.packed"
    file.write_bytes(pack(TWO.read_bytes()))
    code, document = run(capsys, file)
    assert (code, document["result"]["totals"]["num_successful_transfers"]) == (GO, 6)


def test_cut_compressed_file_keeps_what_is_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decode.log.gz"
    data = gzip.compress(TWO.read_bytes() + SAMPLES.joinpath("h200-nvlink-decode-1.prom").read_bytes())
    file.write_bytes(data[: len(data) * 2 // 3])
    code, document = run(capsys, file)
    assert code == GO and document["result"]["totals"]["num_successful_transfers"] == 6
    assert "cut or damaged" in document["result"]["files"][0]["note"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "does not exist"),
        (b"\x1f\x8b" + b"\x99" * 50, "cannot be decompressed"),
        ("KV Transfer metrics: ".encode("utf-16"), "binary or UTF-16"),
        (b"\x7fELF" + b"\0" * 5000, "binary or UTF-16"),
        (b"", "nothing about KV transfers"),
        (b"{" * 100_000, "nothing about KV transfers"),
    ],
)
def test_what_is_no_log_is_unknown_with_a_reason(
    data: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.log"
    if data is not None:
        file.write_bytes(data)
    code, document = run(capsys, file)
    assert code == UNKNOWN and document["verdict"]["status"] == "unknown"
    assert says in document["findings"][0]["title"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Nothing to read"),
        (["a", "--metrics-url", "x:1"], "not both"),
        (["a", "b", "--follow"], "one log at a time"),
        (["--metrics-url", "ftp://x"], "not the address"),
        (["--metrics-url", "x:1", "--metrics-url", "x:1"], "given twice"),
        (["a", "--for", "soon"], "not a duration"),
    ],
)
def test_wrong_calls_exit_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", *arguments]) == USAGE
    assert says in capsys.readouterr().err


def test_four_ranks_make_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = run(capsys, ROOT / "tests/cases/logs/L06-tp4-rank-level/decode.log")
    (engine,) = document["result"]["engines"]
    assert (engine["ranks_seen"], engine["requests_estimated"]) == (4, 1)
    assert engine["bytes_per_request_estimated"] == 9 * 2**20


def test_damaged_lines_are_listed_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "decode.log"
    file.write_text(TWO.read_text().replace("Throughput (MB/s)=14177.215", "Throughput (MB/s)=99177.215"))
    code, document = run(capsys, file)
    assert code == GO, "a warning"
    (damaged,) = document["result"]["damaged_lines"]
    assert (damaged["line"], document["result"]["totals"]["num_successful_transfers"]) == (4, 4)
    assert "99177.215" in damaged["reason"]
    assert [f["status"] for f in document["findings"] if f["id"] == "KVP405"] == ["warn"]


def test_metrics_only_leaves_the_doctor_out(capsys: pytest.CaptureFixture[str]) -> None:
    case = ROOT / "tests/cases/logs/F06-remote-disconnect/decode.log"
    _, document = run(capsys, case, "--metrics-only")
    assert document["result"]["failures"] == [] and len(document["result"]["kv_transfer_intervals"]) == 1


def test_an_operators_own_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'topic = "transport"\n[[signature]]\ncode = "fabric_flap"\ntitle = "the fabric flapped"\nseverity = "fail"\n'
        'cause = "A switch."\nremedy = "Call them."\nsource = "runbook 7"\nliterals = ["FABRIC FLAP"]\n'
        "pattern = 'FABRIC FLAP on (?P<port>\\w+)'\n"
    )
    log = tmp_path / "x.log"
    log.write_text("FABRIC FLAP on leaf3\n")
    code, document = run(capsys, log, "--signatures", own)
    (failure,) = document["result"]["failures"]
    assert (code, failure["code"], failure["port"]) == (NO_GO, "fabric_flap", "leaf3")


def test_recorded_run_is_replayed_without_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "decode.log"
    log.write_bytes((ROOT / "tests/cases/logs/F15-lease-expired/prefill.log").read_bytes())
    code, first = run(capsys, log, "--record", tmp_path / "rec")
    log.unlink()
    again, second = run(capsys, "--replay", tmp_path / "rec")
    assert code == again == NO_GO
    assert first["result"] == second["result"] and first["findings"] == second["findings"]


def test_against_the_cost_fit_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    point = {"descriptors": 14336, "bytes": 469762048, "seconds": 0.05}
    fit = {
        "t0_seconds": 0.001, "seconds_per_descriptor": 3.4e-6, "seconds_per_descriptor_single_thread": 7e-6,
        "bandwidth_bytes_per_second": None, "residuals": [0.0], "points": [point], "transport": "cuda_ipc, zero-copy",
    }  # fmt: skip
    report = tmp_path / "report.json"
    _, document = run(capsys, TWO)
    document["result"] = {"fit": {"READ": fit}}
    report.write_text(json.dumps(document))
    code, told = run(capsys, SAMPLES / "h200-nvlink-decode.log.gz", "--report", report)
    against = told["result"]["against_nixl"]
    assert against["transport"] == "cuda_ipc, zero-copy" and against["extrapolated"] is True
    assert against["predicted_seconds"] == pytest.approx(0.001 + 3.4e-6 * against["descriptors"])
    assert against["ratio"] == pytest.approx(against["measured_seconds"] / against["predicted_seconds"])
    assert [f["status"] for f in told["findings"] if f["id"] == "KVP406"] == ["pass"] and code == GO
    document["result"] = {"fit": "nonsense"}
    report.write_text(json.dumps(document))
    _, told = run(capsys, TWO, "--report", report)
    assert [f["status"] for f in told["findings"] if f["id"] == "KVP406"] == ["skip"]


def test_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvprobe", "logs", "-", "-q"]
    done = subprocess.run(command, input=TWO.read_bytes(), capture_output=True, check=False)
    assert done.returncode == GO and done.stdout.startswith(b"GO")
    silent = subprocess.run(
        [*command, "--silence", "1s"], stdin=subprocess.PIPE, capture_output=True, check=False
    )
    assert silent.returncode == UNKNOWN


class _Server(http.server.BaseHTTPRequestHandler):
    pages: list[bytes] = []
    status = 200

    def do_GET(self) -> None:  # noqa: N802
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.pages.pop(0) if len(self.pages) > 1 else self.pages[0])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Any]:
    """``serve(page, ...)``: the address of a server that gives the pages in order, the last for ever."""
    servers = []

    def serve(*pages: str, status: int = 200) -> str:
        handler = type("Handler", (_Server,), {"pages": [p.encode() for p in pages], "status": status})
        one = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(one)
        threading.Thread(target=one.serve_forever, daemon=True).start()
        return f"127.0.0.1:{one.server_port}"

    yield serve
    for one in servers:
        one.shutdown()
        one.server_close()


def test_two_scrapes_of_both_sides(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    decode_, prefill = server(FIRST, SECOND), server(PREFILL)
    code, document = run(capsys, "--metrics-url", decode_, "--metrics-url", prefill, "--interval", "1ms")
    result = document["result"]
    assert code == GO
    assert [s["role"] for s in result["sources"]] == ["decode", "prefill"]
    assert result["totals"]["num_successful_transfers"] == 14
    assert result["window_seconds"] > 0 and result["engines"][0]["goodput_bytes_per_second"] > 0
    assert result["cache_differences"] == []


def test_decode_that_recomputes_and_differs(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    computed = (
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 900000.0\n'
    )
    decode_, prefill = (
        server(FIRST + computed),
        server(PREFILL.replace('cache_dtype="auto"', 'cache_dtype="fp8"')),
    )
    arguments = [
        "--metrics-url",
        f"decode={decode_}",
        "--metrics-url",
        f"prefill={prefill}",
        "--interval",
        "0",
    ]
    code, document = run(capsys, *arguments)
    status = {f["id"]: f["status"] for f in document["findings"]}
    assert (code, status["KVP407"], status["KVP408"]) == (NO_GO, "fail", "fail")
    assert document["result"]["cache_differences"] == [
        {"name": "cache_dtype", "prefill": "fp8", "decode": "auto"}
    ]


def test_counters_of_failures(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page = FIRST.replace("nixl_num_failed_transfers_total{engine=\"0\",model_name=\"m\"} 0.0", "nixl_num_failed_transfers_total{engine=\"0\",model_name=\"m\"} 7.0")  # fmt: skip
    code, document = run(capsys, "--metrics-url", server(page), "--interval", "0")
    (failure,) = document["result"]["failures"]
    assert (code, failure["code"], failure["count"]) == (NO_GO, "transfers_failed_counter", 7)


@pytest.mark.parametrize(
    ("page", "status", "says"),
    [
        ("nothing here", 200, "no Prometheus series"),
        ("up 1\n", 200, "without a vllm:"),
        (FIRST, 404, "HTTP 404"),
    ],
)
def test_pages_that_are_none(
    page: str, status: int, says: str, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run(capsys, "--metrics-url", server(page, status=status), "--interval", "0")
    assert code == UNKNOWN and says in document["findings"][0]["title"]


def test_metrics_are_recorded_and_replayed(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = server(FIRST, SECOND)
    _, first = run(capsys, "--metrics-url", address, "--interval", "1ms", "--record", tmp_path / "rec")
    _, second = run(capsys, "--replay", tmp_path / "rec")
    assert first["result"] == second["result"]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_fits_its_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    main(["logs", str(SAMPLES / "h200-nvlink-decode.log.gz"), str(TWO), "--progress", "off"])
    text = capsys.readouterr().out
    table = text.partition("What the numbers mean")[0]
    assert "Transfers" in table and "Mean transfer time" in table and "█" in table
    assert max(len(line) for line in table.splitlines()[2:] if "A transfer is" not in line) <= width
