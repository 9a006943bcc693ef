"""The metrics line of every connector and version (vllm-contracts 1.9), damaged lines, and fuzzed ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.formats.vllm_log import (
    MARKER,
    Interval,
    contradiction,
    metrics_text,
    parse_metrics,
    parse_metrics_line,
)

CASES = Path(__file__).parent.parent / "cases" / "logs"
HEALTHY = (
    "(APIServer pid=14868) INFO 11-29 16:48:36 [metrics.py:108] KV Transfer metrics: Num successful transfers=5, "
    "Avg xfer time (ms)=10.77, P90 xfer time (ms)=14.525, Avg post time (ms)=0.366, P90 post time (ms)=0.454, "
    "Avg MB per transfer=269.6, Throughput (MB/s)=25033.427, Avg number of descriptors=4313.6, "
    "Num failed transfers=0, Num KV expired reqs=0, Num notifs after expiry=0"
)


def interval(line: str | bytes) -> Interval:
    found = parse_metrics_line(line)
    assert found is not None
    return found


def test_healthy_line_keeps_printed_numbers_and_derives_base_units() -> None:
    found = interval(HEALTHY)
    assert (found.connector, found.num_successful_transfers, found.avg_mib_per_transfer) == (
        "NixlConnector",
        5,
        269.6,
    )
    assert found.bytes_total == 5 * 269.6 * 2**20
    assert found.xfer_seconds_total == pytest.approx(0.05385)
    assert found.post_share == pytest.approx(0.366 / 10.77)
    assert found.num_notifs_after_expiry == 0 and found.num_failed_recvs is None and not found.partial


@pytest.mark.parametrize(
    "wrapped",
    [
        HEALTHY.encode() + b"\r\n",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-29 16:48:48\x1b[0m "
        + HEALTHY[38:],
        "2026-11-05T11:00:00.123456789Z stdout F " + HEALTHY,
        json.dumps({"log": HEALTHY + "\n", "stream": "stdout", "time": "2026-11-29T16:48:36Z"}),
        json.dumps({"asctime": "2026-11-29 16:48:57,693", "message": HEALTHY[58:], "process": 7}),
        "[pod/decode-0/vllm] " + json.dumps({"message": HEALTHY}),
        json.dumps({"log": HEALTHY + "\n", "stream": "stdout"})[:-12],
        'ts=2026-11-29 msg="' + HEALTHY + '" level=info',
        HEALTHY.encode()[:20] + b"\xff\xfe" + HEALTHY.encode()[20:],
        HEALTHY[:160] + HEALTHY,
    ],
    ids=[
        "crlf",
        "ansi",
        "cri",
        "docker",
        "vllm-json",
        "kubectl-json",
        "cut-json",
        "logfmt",
        "bytes",
        "merged",
    ],
)
def test_any_wrapping(wrapped: str | bytes) -> None:
    assert interval(wrapped).throughput_mib_per_s == 25033.427
    assert interval(wrapped).num_notifs_after_expiry == 0


def test_versions_print_fewer_keys_and_what_is_absent_is_none() -> None:
    old = interval(HEALTHY.partition(", Num failed")[0])
    assert old.num_failed_transfers is None and old.avg_num_descriptors == 4313.6 and not old.partial
    first = interval(
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 11-29 16:49:50 [metrics.py:97] KV Transfer metrics: num_successful_transfers=5"
    )
    assert first.num_successful_transfers == 5 and first.avg_xfer_time_ms is None and not first.partial


def test_failure_only_interval_is_not_a_measurement() -> None:
    zeros = re.sub(r"=[\d.]+", "=0", HEALTHY.partition("metrics: ")[2]).replace(
        "failed transfers=0", "failed transfers=3"
    )
    found = interval("KV Transfer metrics: " + zeros)
    assert not found.measured and found.bytes_total is None and found.failures == 3


def test_mooncake_has_no_post_time() -> None:
    found = interval(
        "KV Transfer metrics: Num successful transfers=6, Avg xfer time (ms)=14.5, P90 xfer time (ms)=16.5, "
        "Avg MB per transfer=143.054, Throughput (MB/s)=9865.761, Avg number of descriptors=12.0, "
        "Num failed transfers=0, Num failed recvs=1, Num KV expired reqs=0"
    )
    assert (found.connector, found.num_failed_recvs, found.post_share) == ("MooncakeConnector", 1, None)


@pytest.mark.parametrize("cell", ["np.float64({})", "{}"])
def test_multi_connector_gives_its_transfer_child_and_the_others(cell: str) -> None:
    def n(value: float) -> str:
        return cell.format(value)

    line = (
        "KV Transfer metrics: NixlPullConnector={'Num successful transfers': 2, "
        f"'Avg xfer time (ms)': {n(10.168)}, 'P90 xfer time (ms)': 13.869, 'Avg post time (ms)': {n(0.562)}, "
        f"'P90 post time (ms)': 0.716, 'Avg MB per transfer': {n(258.0)}, 'Throughput (MB/s)': {n(25372.474)}, "
        f"'Avg number of descriptors': {n(8256.0)}}}, OffloadingConnector={{'vllm:kv_offload_store_bytes': 268435456, "
        "'vllm:kv_offload_store_time': 0.0121}"
    )
    found = parse_metrics(metrics_text(line))
    assert found.problem is None
    assert [(i.connector, i.avg_num_descriptors) for i in found.intervals] == [("NixlPullConnector", 8256.0)]
    assert found.others["OffloadingConnector"]["vllm:kv_offload_store_bytes"] == 268435456


@pytest.mark.parametrize(
    ("text", "connector", "key", "value"),
    [
        ("load_get_count=2, load_get_avg_ms=158.5, load_get_total_bytes=25165824", "MooncakeStoreConnector", "load_get_total_bytes", 25165824),
        ("vllm:simple_kv_offload_save_outcomes_total:('stored',)=120, vllm:simple_kv_offload_load_blocks_total=64", "SimpleCPUOffloadConnector", "vllm:simple_kv_offload_save_outcomes_total:('stored',)", 120),
        ("Num transfers task=3, Num save task success=1, Avg save duration (ms)=20.0", "HF3FSKVConnector", "Num transfers task", 3),
        ("HiSparse hot-buffer hits=12000, HiSparse host KV cache usage %=43.1", "HiSparseConnector", "HiSparse hot-buffer hits", 12000),
        ("GPU_to_CPU_total_bytes=201850880, GPU_to_CPU_total_time=0.08", "OffloadingConnector", "GPU_to_CPU_total_time_s", 0.08),
        ("put_submitted=4, put_completed=4, put_failed=0, put_num_bytes=99", "UMBPStoreConnector", "put_num_bytes", 99),
    ],
)  # fmt: skip
def test_other_connectors_are_not_transfers(text: str, connector: str, key: str, value: float) -> None:
    found = parse_metrics(text)
    assert found.intervals == () and found.others == {connector: found.others[connector]}
    assert found.others[connector][key] == value
    assert parse_metrics_line(b"x " + MARKER + text.encode()) is None


def test_pasted_line_with_a_full_stop_and_no_descriptors_is_partial() -> None:
    found = interval(
        "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=1.49, P90 xfer time (ms)=1.627, "
        "Avg post time (ms)=1.15, P90 post time (ms)=1.28, Avg MB per transfer=4.781, Throughput (MB/s)=3209.478."
    )
    assert found.partial and found.throughput_mib_per_s == 3209.478 and found.avg_num_descriptors is None


def test_no_cut_invents_a_number() -> None:
    whole, start = interval(HEALTHY), HEALTHY.index("Num successful transfers=5") + 26
    for end in range(start, len(HEALTHY)):
        cut = parse_metrics_line(HEALTHY[:end])
        if cut is None:
            continue
        for name in Interval.__struct_fields__:
            value = getattr(cut, name)
            if isinstance(value, float | int) and not isinstance(value, bool):
                assert value == getattr(whole, name), HEALTHY[:end]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("25033.427", "25933.427"),
        ("time (ms)=10.77", "time (ms)=16.77"),
        ("=269.6", "=2696.0"),
        ("transfers=5,", "transfers=0,"),
        ("post time (ms)=0.366", "post time (ms)=99.366"),
        ("P90 xfer time (ms)=14.525", "P90 xfer time (ms)=914.525"),
        ("=10.77", "=nan"),
        ("=10.77", "=-10.77"),
        ("=10.77", "=1e999"),
    ],
)
def test_damaged_lines_are_refused_with_the_reason(old: str, new: str) -> None:
    line = HEALTHY.replace(old, new, 1)
    assert parse_metrics_line(line) is None
    assert parse_metrics(metrics_text(line)).problem


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 50_000, "A={" + "[" * 5000, "x=" * 10_000, "=", "NixlConnector={}", "a={'x': " * 99],
)
def test_hostile_text_is_a_problem_and_not_an_exception(text: str) -> None:
    found = parse_metrics(text)
    assert found.intervals == () and found.problem


def believed(found: Interval) -> bool:
    return contradiction(found) is None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(HEALTHY) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 4))
def test_fuzzed_line_is_never_wrongly_accepted(at: int, new: bytes, drop: int) -> None:
    raw = HEALTHY.encode()
    found = parse_metrics_line(raw[:at] + new + raw[at + drop :])
    assert found is None or believed(found)
    if found and found.avg_xfer_time_ms and found.avg_mib_per_transfer and found.throughput_mib_per_s:
        told = found.avg_mib_per_transfer / found.avg_xfer_time_ms * 1e3
        assert found.throughput_mib_per_s == pytest.approx(told, rel=1e-3, abs=1e-2)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_behind_the_marker(tail: bytes) -> None:
    found = parse_metrics_line(MARKER + b"Num successful transfers=5, " + tail)
    assert found is None or believed(found)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(1e-4, 5), min_size=1, max_size=20),
    st.lists(st.integers(4096, 2**31), min_size=1, max_size=20),
)
def test_every_line_that_vllm_would_print_is_accepted(times: list[float], sizes: list[int]) -> None:
    n = min(len(times), len(sizes))
    times, mib = times[:n], [s / 2**20 for s in sizes[:n]]
    avg, mean_mib = sum(times) / n * 1e3, sum(mib) / n
    p90 = sorted(times)[min(n - 1, int(0.9 * n))] * 1e3
    line = (
        f"KV Transfer metrics: Num successful transfers={n}, Avg xfer time (ms)={round(avg, 3)}, "
        f"P90 xfer time (ms)={round(p90, 3)}, Avg post time (ms)={round(avg / 2, 3)}, P90 post time (ms)={round(p90 / 2, 3)}, "
        f"Avg MB per transfer={round(mean_mib, 3)}, Throughput (MB/s)={round(sum(mib) / sum(times), 3)}, "
        f"Avg number of descriptors={round(84.0, 1)}"
    )
    assert interval(line).num_successful_transfers == n


def test_cases() -> None:
    for expected in sorted(CASES.glob("*/expected.json")):
        want = json.loads(expected.read_text())["kv_transfer_intervals"]
        for w in want:
            file = expected.parent / w.get("file", "")
            logs = [file] if file.is_file() else sorted(expected.parent.glob("*.log"))
            line = logs[0].read_bytes().splitlines()[w["line"] - 1]
            got = interval(line)
            for name in set(w) & set(Interval.__struct_fields__) - {
                "line",
                "file",
                "timestamp",
                "process",
                "source",
                "engine",
                "connector",
            }:
                assert getattr(got, name) == w[name], expected
