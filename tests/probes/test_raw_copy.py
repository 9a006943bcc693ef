"""DRAM for real; VRAM from events as the worker reports them (on GPUs: tests/workers/test_cuda_copy_gpu.py)."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.models.raw_copy import RawCopyFacts, raw_copy_rung
from kvprobe.probes.raw_copy import measure, read_outcomes
from kvprobe.processes import WorkerOutcome
from kvprobe.system import System

MIB = 1024**2


def test_host_memory_for_real() -> None:
    evidence = measure(
        System(), sizes_bytes=[3 * MIB + 4, 16 * MIB], samples=6, deadline_seconds=20, memory="dram"
    )
    facts = evidence.facts
    assert facts.failure is None
    refused = [s for s in facts.skipped if "process_vm_readv" in s]
    methods = {"memcpy"} if refused else {"memcpy", "process_vm_readv"}
    for size in (3 * MIB + 4, 16 * MIB):
        for method in methods:
            series = facts.find(method, size)
            assert series is not None and series.verified and 5 <= len(series.seconds) <= 6
            assert all(s > 0 for s in series.seconds)
    rung = raw_copy_rung(facts, 16 * MIB)
    assert (rung.number, rung.status, rung.bytes) == (1, "measured", 16 * MIB)
    assert rung.transport == ("memcpy" if refused else "process_vm_readv")


def outcome(*events: dict[str, Any], **ended: Any) -> list[WorkerOutcome]:
    return [WorkerOutcome(name="copy", events=events, **{"result": {}, **ended})]


def series(method: str, seconds: float, size: int = 448 * MIB, ok: bool = True) -> list[dict[str, Any]]:
    return [
        *(
            {"event": "sample", "method": method, "bytes": size, "seconds": seconds * (1 + i / 100)}
            for i in range(5)
        ),
        {"event": "verified", "method": method, "bytes": size, "ok": ok},
    ]


def vram(*events: dict[str, Any], peer_access: bool = True, **ended: Any) -> RawCopyFacts:
    setup = {
        "event": "setup",
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "gpus": ["NVIDIA H200"] * 2,
        "peer_access": peer_access,
    }
    return read_outcomes("vram", (0, 1), outcome(setup, *events, **ended))


def test_peer_copy_is_rung_1_where_there_is_peer_access() -> None:
    events = series("peer", 0.00122) + series("staged_pipelined", 0.0089) + series("staged_pageable", 0.1)
    rung = raw_copy_rung(vram(*events), 448 * MIB)
    assert rung.bandwidth_bytes_per_second == pytest.approx(385e9 / 1.02, rel=0.01)
    assert (rung.transport, rung.note) == ("peer copy", "CUDA peer copy")


def test_without_peer_access_the_best_way_through_host_memory_counts() -> None:
    events = series("peer", 0.012) + series("staged_pipelined", 0.0089) + series("staged_pageable", 0.1)
    rung = raw_copy_rung(vram(*events, peer_access=False), 448 * MIB)
    assert rung.transport == "host memory"
    assert rung.note == "D2H + H2D pinned, pipelined in 8 MiB pieces; no peer access (pageable 4.61 GB/s)"


def test_wrong_bytes_are_not_measured() -> None:
    facts = vram(*series("peer", 0.001, ok=False))
    assert facts.find("peer", 448 * MIB) is None
    assert raw_copy_rung(facts, 448 * MIB).status == "unknown"


def test_absent_torch_is_a_skip_with_its_install_line() -> None:
    facts = read_outcomes(
        "vram",
        (0, 1),
        outcome({"event": "absent", "package": "torch", "install": "pip install 'kvprobe[gpu]'"}),
    )
    rung = raw_copy_rung(facts, MIB)
    assert (rung.status, rung.seconds) == ("skipped", None)
    assert rung.note == "torch is not installed: pip install 'kvprobe[gpu]'"


def test_a_worker_that_died_keeps_what_it_measured() -> None:
    events = series("peer", 0.001)
    facts = vram(*events, result=None, error="copy was killed by SIGKILL.", error_kind="died")
    assert facts.failure == "copy was killed by SIGKILL."
    assert raw_copy_rung(facts, 448 * MIB).status == "measured"
    assert raw_copy_rung(facts, MIB).note == "copy was killed by SIGKILL."
