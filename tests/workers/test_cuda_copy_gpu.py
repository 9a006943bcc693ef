"""Rungs 1 and 2 on two real GPUs; held against each other, not against a clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.models.raw_copy import raw_copy_rung
from kvprobe.probes import gpus, raw_copy, ucx
from kvprobe.system import System

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs two NVIDIA GPUs"),
]
SIZE = 448 * 1024**2


def test_every_copy_arrives() -> None:
    facts = raw_copy.measure(
        System(), sizes_bytes=[28 * 1024**2, SIZE], samples=10, deadline_seconds=20
    ).facts
    assert facts.failure is None and facts.absent is None, facts
    assert facts.skipped == ()
    for size in (28 * 1024**2, SIZE):
        for method in ("peer", "staged_pipelined", "staged_pinned", "staged_pageable"):
            series = facts.find(method, size)
            assert series is not None and series.verified and len(series.seconds) >= 5, method
    pair = gpus.look(System()).facts.pair(1, 0)
    assert pair is not None and facts.peer_access == (pair.read == "OK")
    assert raw_copy_rung(facts, SIZE).status == "measured"


def test_a_partial_last_chunk_arrives() -> None:
    size = 8 * 1024**2 * 3 + 4096
    facts = raw_copy.measure(System(), sizes_bytes=[size], samples=5, deadline_seconds=10).facts
    found = facts.find("staged_pipelined", size)
    assert found is not None and found.verified


def test_raw_ucx_between_two_gpus() -> None:
    facts = ucx.measure(
        System(), sizes_bytes=[SIZE], samples=5, deadline_seconds=20, operations=("READ", "WRITE")
    ).facts
    assert facts.failure is None and facts.absent is None, facts
    for operation in ("READ", "WRITE"):
        assert facts.find(operation, SIZE) is not None
        assert facts.transport(operation) is not None
