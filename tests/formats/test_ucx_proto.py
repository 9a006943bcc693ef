"""UCX's protocol tables, as the NIXL workers printed them on real hosts."""

from __future__ import annotations

from kvprobe.formats.ucx_proto import observed_transport, parse_protocol_tables

CUDA_IPC = """
[1795973824.386577] [node-a:857  :0]   +---------+----------------------------------------------------+
[1795973824.386577] [node-a:857  :0]   | kvprobe-decode inter cfg#1                                   |
[1795973824.386577] [node-a:857  :0]   | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[2] |
[1795973824.386577] [node-a:857  :0]   +---------+--------+-----------+-------------+
[1795973824.386577] [node-a:857  :0]   | Count   | Range  | Description | Config      |
[1795973824.386577] [node-a:857  :0]   |       0 | 0..4095 | software emulation | tcp/lo |
[1795973824.386577] [node-a:857  :0]   |  157696 | 4K..inf | zero-copy | cuda_ipc/cuda |
[1795973824.386577] [node-a:857  :0]   | active message by ucp_am_send* from host memory |
[1795973824.386577] [node-a:857  :0]   |      40 | 0..inf | short | tcp/lo |
"""
EMULATED = """
[1.2] [node-a:9  :0]   | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[2] |
[1.2] [node-a:9  :0]   | 86016 | 0..inf | software emulation | tcp/lo |
[1.2] [node-a:9  :0]   | remote memory write by ucp_put* from host memory to host |
[1.2] [node-a:9  :0]   | 12 | 0..2K | short | 52% on tcp/lo, 48% on tcp/eth0 |
"""


def test_zero_copy_over_cuda_ipc() -> None:
    seen = observed_transport(parse_protocol_tables(CUDA_IPC), "READ")
    assert seen is not None
    assert (seen.name, seen.emulated, seen.label, seen.share) == (
        "cuda_ipc",
        False,
        "cuda_ipc, zero-copy",
        1.0,
    )


def test_unused_rows_and_control_messages_say_nothing() -> None:
    rows = parse_protocol_tables(CUDA_IPC)
    assert [(r.count, r.low_bytes, r.high_bytes, r.via) for r in rows] == [
        (157696, 4096, None, "cuda_ipc/cuda")
    ]
    assert observed_transport(rows, "WRITE") is None


def test_emulation_is_named() -> None:
    rows = parse_protocol_tables(EMULATED)
    seen = observed_transport(rows, "READ")
    assert seen is not None and seen.emulated
    assert seen.label == "tcp/lo, software emulation"
    write = observed_transport(rows, "WRITE")
    assert write is not None and write.name == "tcp"


def test_a_tenth_of_emulation_rules() -> None:
    mixed = EMULATED.replace("86016", "20") + (
        "[1.2] [node-a:9  :0]   | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[2] |\n"
        "[1.2] [node-a:9  :0]   | 100 | 0..inf | zero-copy | cuda_ipc/cuda |\n"
    )
    seen = observed_transport(parse_protocol_tables(mixed), "READ")
    assert seen is not None and seen.emulated and seen.share == 20 / 120


def test_noise_is_no_table() -> None:
    assert parse_protocol_tables("| a | b |\nnothing ] here |\n\x00\xff") == ()
