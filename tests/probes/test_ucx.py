"""Raw UCX moves real bytes between two processes; the library is NIXL's own copy, or the libucx wheel's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from kvprobe.models.raw_ucx import raw_ucx_rung
from kvprobe.probes.ucx import measure, read_outcomes
from kvprobe.processes import WorkerOutcome
from kvprobe.system import System
from kvprobe.workers import ucp

MIB = 1024**2
needs_ucx = pytest.mark.skipif(ucp.find_library(None) is None, reason="no libucp: pip install nixl-cu12")


def test_struct_sizes_are_those_of_the_header() -> None:
    """ucp/api/ucp.h of UCX 1.22, x86-64 and aarch64 alike (sizeof printed by a C program)."""
    sizes = {
        ucp._Params: 88,
        ucp._WorkerParams: 200,
        ucp._EpParams: 104,
        ucp._MemMapParams: 48,
        ucp._RequestParam: 96,
    }
    assert {s: ctypes.sizeof(s) for s in sizes} == sizes
    offsets = (
        ucp._RequestParam.memory_type.offset,
        ucp._RequestParam.memh.offset,
        ucp._EpParams.err_mode.offset,
    )
    assert offsets == (48, 64, 16)


@needs_ucx
@pytest.mark.nixl
def test_get_and_put_for_real() -> None:
    evidence = measure(
        System(), sizes_bytes=[4100, 8 * MIB], samples=5, deadline_seconds=20, memory="dram", operations=("READ", "WRITE"), env={"UCX_TLS": None}
    )  # fmt: skip
    facts = evidence.facts
    assert facts.failure is None, facts.failure
    for operation in ("READ", "WRITE"):
        for size in (4100, 8 * MIB):
            found = facts.find(operation, size)
            assert found is not None and found.verified and len(found.seconds) >= 3
        seen = facts.transport(operation)
        assert seen is not None and seen.name
    assert evidence.versions["ucx"] == facts.version
    rung = raw_ucx_rung(facts, 8 * MIB, "READ", "0.0.0")
    assert rung.status == "measured"
    assert "no loss between rungs 2 and 3 is claimed" in (rung.note or "")
    assert "claimed" not in (raw_ucx_rung(facts, 8 * MIB, "READ", facts.version).note or "")


@needs_ucx
@pytest.mark.nixl
def test_the_slow_path_is_named() -> None:
    evidence = measure(
        System(), sizes_bytes=[MIB], samples=3, deadline_seconds=20, memory="dram", env={"UCX_TLS": "tcp"}
    )
    seen = evidence.facts.transport("READ")
    assert seen is not None and seen.emulated and seen.via.startswith("tcp/")


@needs_ucx
@pytest.mark.nixl
def test_unusable_transports_are_a_failure_not_a_crash() -> None:
    evidence = measure(
        System(), sizes_bytes=[MIB], samples=3, deadline_seconds=5, memory="dram", env={"UCX_TLS": "nosuch"}
    )
    assert "ucp_init failed (No such device)" in (evidence.facts.failure or "")
    assert "UCX_TLS=nosuch" in evidence.facts.failure_remedy
    assert raw_ucx_rung(evidence.facts, MIB).status == "unknown"


def test_absent_and_dead() -> None:
    gone: list[dict[str, Any]] = [{"event": "absent", "package": "UCX", "install": "pip install nixl-cu12"}]
    facts = read_outcomes(
        "dram", (0, 1), [WorkerOutcome(name=n, events=tuple(gone), result={}) for n in ("prefill", "decode")]
    )
    assert raw_ucx_rung(facts, MIB).note == "UCX is not installed: pip install nixl-cu12"
    dead = [
        WorkerOutcome(name="decode", error="The peer process closed the connection.", error_kind="raised"),
        WorkerOutcome(name="prefill", error="prefill was killed by SIGKILL.", error_kind="died"),
    ]
    assert read_outcomes("dram", (0, 1), dead).failure == "prefill was killed by SIGKILL."
    assert raw_ucx_rung(None, MIB).status == "skipped"
