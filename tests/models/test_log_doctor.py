"""Cascades, counts, and what is concluded from combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.formats.log_scan import Needles, scan
from kvprobe.formats.log_signatures import parse_signatures
from kvprobe.models.log_doctor import Doctor
from kvprobe.models.log_reader import LogReader

FOLDER = Path(__file__).parent.parent.parent / "checks" / "signatures"
SIGNATURES = parse_signatures({p.name: p.read_text() for p in FOLDER.glob("*.toml")})
STATS = (
    "(APIServer pid=7) INFO 11-08 11:00:10 [loggers.py:271] Engine 000: Avg prompt throughput: {} tokens/s, Avg generation "
    "throughput: {} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.9%, Prefix cache hit rate: 0.0%"
)
LANES = "[1788868092.568310] [a:876  :0] ucp_worker.c:1997 UCX  INFO  x intra-node cfg#2 rma_am(tcp/lo) {} ka(tcp/lo)"
SLOW = (
    "(APIServer pid=870) INFO 09-08 12:08:20 [metrics.py:104] KV Transfer metrics: Num successful transfers=2, "
    "Avg xfer time (ms)=422.05, P90 xfer time (ms)=431.53, Avg post time (ms)=3.05, P90 post time (ms)=3.09, "
    "Avg MB per transfer=112.0, Throughput (MB/s)=265.371, Avg number of descriptors=128.0"
)
FAST = SLOW.replace("422.05", "12.2").replace("431.53", "12.9").replace("265.371", "9180.328")
FAILED = (
    "(Worker pid=3) ERROR 08-27 04:11:09 [pull_worker.py:571] NIXL transfer failure: transfer_failed | Context: "
    "{'failure_type': 'transfer_failed', 'request_id': 'cmpl-1'}"
)
OK = '(APIServer pid=300) INFO:     192.0.2.9:40000 - "POST /v1/completions HTTP/1.1" 200 OK'


def read(lines: Sequence[str], file: str = "decode.log") -> LogReader:
    reader = LogReader(SIGNATURES)
    for hit in scan(["\n".join(lines).encode()], Needles(reader.literals)):
        reader.take(file, hit)
    reader.conclude()
    return reader


def codes(reader: LogReader) -> dict[str, str | None]:
    return {f["code"]: f["consequence_of"] for f in reader.doctor.failures()}


def test_one_cause_for_a_cascade_of_a_thousand_lines() -> None:
    lines = []
    for k in range(1000):
        context = f"| Context: {{'failure_type': 'x', 'request_id': 'cmpl-{k}'}}"
        stamp = f"08-27 04:{k // 60:02}:{k % 60:02}"
        lines += [
            f"(Worker pid=3) ERROR {stamp} [pull_worker.py:571] NIXL transfer failure: transfer_setup_failed {context}",
            f"(Worker pid=3) ERROR {stamp} [pull_worker.py:571] nixl_cu13._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
            f"(EngineCore pid=2) ERROR {stamp} [scheduler.py:3764] Failing 1 request(s) due to KV load failure (failure_policy=fail, 9 tokens affected). Request IDs: {{'cmpl-{k}'}}",
        ]
    rows = read(lines).doctor.failures()
    assert rows[0]["code"] == "nixl_remote_disconnect" and rows[0]["consequence_of"] is None
    assert (rows[0]["count"], rows[0]["first"], rows[0]["last"]) == (1000, "08-27 04:00:00", "08-27 04:16:39")
    assert {r["code"]: (r["count"], r["consequence_of"]) for r in rows[1:]} == {
        "nixl_transfer_setup_failed": (1000, "nixl_remote_disconnect"),
        "kv_load_failed": (1000, "nixl_remote_disconnect"),
    }


@settings(max_examples=500)
@given(st.lists(st.sampled_from([s.code for s in SIGNATURES]), min_size=1, max_size=6, unique=True))
def test_whatever_is_seen_has_a_cause_that_stands_for_itself(found: list[str]) -> None:
    doctor = Doctor(SIGNATURES)
    for code in found:
        doctor.conclude(code, 1, "decode.log")
    roots = {code: doctor.root_of(code) for code in found}
    assert any(root is None for root in roots.values())
    for code, root in roots.items():
        assert root is None or (root != code and roots[root] is None), roots


def test_every_pair_has_a_cause() -> None:
    for one, other in itertools.permutations([s.code for s in SIGNATURES], 2):
        doctor = Doctor(SIGNATURES)
        doctor.conclude(one, 1, "x")
        doctor.conclude(other, 1, "x")
        assert {doctor.root_of(one), doctor.root_of(other)} != {one, other}


def test_advice_does_not_explain_a_loss() -> None:
    typo = "[1788868092.568310] [a:876  :0] parser.c:2044 UCX  WARN  unused environment variable: UCX_NET_DEVICE (maybe: UCX_NET_DEVICES?)"
    assert codes(read([typo, FAILED])) == {"ucx_unused_variable": None, "nixl_transfer_failed": None}


def test_two_entries_of_one_handshake_count_once() -> None:
    lines = [
        "(W pid=1) ERROR 11-06 09:00:00 [a.py:1] NIXL transfer failure: handshake_setup_failed | Context: {'request_id': None}",
        "(W pid=1) ERROR 11-06 09:00:00 [a.py:1] NIXL transfer failure: handshake_failed | Context: {'request_id': 'cmpl-1'}",
    ]
    (row,) = read(lines).doctor.failures()
    assert (row["code"], row["count"]) == ("nixl_handshake_failed", 1)


def test_missing_router_parameters_are_named() -> None:
    line = "(E pid=6) WARNING 11-09 10:00:00 [p.py:1] Got invalid KVTransferParams: {'remote_engine_id': 'x', 'remote_host': 'y'}. This request"
    (row,) = read([line]).doctor.failures()
    assert row["missing"] == ["remote_request_id", "remote_port"]


@pytest.mark.parametrize(
    ("level", "found"),
    [("WARNING 11-07 10:00:00 [n.py:7] NIXL", False), ("ERROR 11-07 10:00:00 [n.py:7] NIXL", True)],
)
def test_the_warning_alone_is_harmless(level: str, found: bool) -> None:
    assert ("nixl_missing" in codes(read([f"(E pid=1) {level} is not available"]))) is found


@pytest.mark.parametrize(
    ("near", "found"),
    [("  File lmcache/v1/memory_management.py", True), ("  File torch/nn/functional.py", False)],
)
def test_out_of_memory_needs_a_connector_around_it(near: str, found: bool) -> None:
    line = "(E pid=1) ERROR 05-31 09:12:00 [core.py:7] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
    assert ("gpu_oom_transfer_buffer" in codes(read([line, near]))) is found


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda", True),
        ("remote memory write by ucp_put* from host memory to cuda/dev[2]", False),
        ("active message by ucp_am_send* from host memory", False),
    ],
)
def test_emulation_counts_only_for_reads_of_gpu_memory(title: str, found: bool) -> None:
    lines = [
        f"[1.000001] [a:1 :0]   | {title} |",
        "[1.000001] [a:1 :0]   | 0..inf | software emulation | tcp/lo |",
    ]
    assert ("cuda_ipc_unavailable_tcp_fallback" in codes(read(lines))) is found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([LANES.format("am(tcp/lo cuda_ipc/cuda)")], True),
        ([LANES.format("am(tcp/lo cuda_ipc/cuda)"), SLOW], True),
        ([LANES.format("am(tcp/lo cuda_ipc/cuda)"), FAST], False),
        ([LANES.format("device(cuda_ipc/cuda) am(tcp/lo cuda_ipc/cuda)"), SLOW], False),
        ([LANES.format("am(tcp/lo cma/memory)")], False),
        ([LANES.format("am(tcp/lo cma/memory)"), SLOW], True),
    ],
)
def test_lanes_are_judged_with_the_measured_rate(lines: list[str], found: bool) -> None:
    assert ("rma_over_tcp" in codes(read(lines))) is found


@pytest.mark.parametrize(
    ("file", "lines", "found"),
    [
        ("decode.log", [STATS.format(2000.0, 40.1)], True),
        ("prefill.log", [STATS.format(2000.0, 40.1)], False),
        ("server.log", [STATS.format(2000.0, 40.1)], False),
        ("decode.log", [STATS.format(820.0, 0.1)], False),
        ("decode.log", [STATS.format(0.0, 40.1)], False),
        ("decode.log", [STATS.format(2000.0, 40.1) + ", External prefix cache hit rate: 97.0%"], False),
        ("decode.log", [STATS.format(2000.0, 40.1), SLOW], False),
        ("both.log", ["decode-1   | " + STATS.format(2000.0, 40.1)], True),
        ("x.log", ["(A pid=7) INFO 11-08 11:00:00 [u.py:1] non-default args: {'kv_transfer_config': KVTransferConfig(kv_role='kv_consumer')}", STATS.format(2000.0, 40.1)], True),
    ],
)  # fmt: skip
def test_decode_that_prefills_itself(file: str, lines: list[str], found: bool) -> None:
    assert ("no_kv_transfer_seen" in codes(read(lines, file))) is found


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ([OK], True),
        ([OK.replace("200 OK", "500 Internal Server Error")], False),
        (["(E pid=5) WARNING 11-07 08:10:01 [s.py:1] Recovered from KV load failure: 1 request(s) rescheduled (9 tokens affected).", OK], False),
        ([], False),
    ],
)  # fmt: skip
def test_answers_200_behind_a_failed_transfer(after: list[str], found: bool) -> None:
    assert ("failed_request_returned_200" in codes(read([FAILED, *after]))) is found


def test_counters_speak_where_messages_do_not() -> None:
    zeros = SLOW.partition("metrics: ")[0] + (
        "metrics: Num successful transfers=0, Avg xfer time (ms)=0, P90 xfer time (ms)=0, Avg post time (ms)=0, "
        "P90 post time (ms)=0, Avg MB per transfer=0, Throughput (MB/s)=0, Avg number of descriptors=0, "
        "Num failed transfers=19, Num KV expired reqs=2, Num notifs after expiry=1"
    )
    rows = {r["code"]: r["count"] for r in read([zeros]).doctor.failures()}
    assert rows == {"transfers_failed_counter": 19, "kv_lease_expired": 2, "late_read_possible_corruption": 1}
    message = "(W pid=1) WARNING 11-07 09:00:31 [b.py:1] Releasing expired KV blocks for request cmpl-{} which were retrieved by 0 remote worker(s) before lease expired."
    lines = [message.format(1), message.format(2), message.format(3), zeros]
    assert {r["code"]: r["count"] for r in read(lines).doctor.failures()}["kv_lease_expired"] == 3


def test_zeros_without_counters_are_told() -> None:
    old = "KV Transfer metrics: Num successful transfers=0, Avg xfer time (ms)=0, P90 xfer time (ms)=0, Avg post time (ms)=0, P90 post time (ms)=0, Avg MB per transfer=0, Throughput (MB/s)=0, Avg number of descriptors=0"
    assert read([old]).silent_zeros == 1


def test_engines_of_one_server_stay_apart() -> None:
    lines = []
    for engine, ms in ((0, "12.2"), (1, "422.05")):
        lines.append(STATS.format(0.0, 1.0).replace("Engine 000", f"Engine {engine:03}"))
        lines.append((FAST if ms == "12.2" else SLOW).replace("pid=870", "pid=7"))
    reader = read(lines)
    assert [(k[2], e.total.timed) for k, e in reader.engines.items()] == [(0, 2), (1, 2)]
    aggregated = read(
        [
            STATS.format(0.0, 1.0).replace("Engine 000", "2 Engines Aggregated"),
            SLOW.replace("pid=870", "pid=7"),
        ]
    )
    assert [k[2] for k in aggregated.engines] == [None]
    other = read([STATS.format(0.0, 1.0), SLOW])
    assert [k[2] for k in other.engines] == [None], "the line in front belongs to another process"


def test_memory_stays_bounded_whatever_the_log_holds() -> None:
    reader = LogReader(SIGNATURES, keep_intervals=10)
    for hit in scan(
        ["\n".join([SLOW] * 3000 + [SLOW.replace("265", "999")] * 300).encode()], Needles(reader.literals)
    ):
        reader.take("d.log", hit)
    assert len(reader.intervals()) == 10 and reader.interval_count == 3000
    assert [i.line for i in reader.intervals()][-1] == 3000
    assert len(reader.damaged) == 50 and reader.damaged_count == 300
    assert reader.total().timed == 6000


@pytest.mark.parametrize(
    "line",
    [
        STATS.format("98.998.9", "1"),
        STATS.format(2000.0, 1.0).replace("Waiting: 0", "Waiting: " + "9" * 5000),
        "KV Transfer metrics: Num successful transfers=" + "9" * 5000 + ", Avg xfer time (ms)=1.0",
        SLOW.replace("transfers=2", "transfers=" + "9" * 5000),
        "(A pid=" + "9" * 5000 + ") INFO 11-08 11:00:10 [l.py:1] NIXL_ERR_NOT_FOUND",
        "[" + "9" * 5000 + ".000001] [a:1 :0] UCX  ERROR mlx5_0 failed",
    ],
)
def test_numbers_of_nonsense_do_not_raise(line: str) -> None:
    read([line])
