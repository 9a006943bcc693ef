"""The Mooncake worker's whole way, with a library that stands in for Mooncake and moves real bytes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvprobe.models import mooncake as plans
from kvprobe.models.mooncake import MooncakeFacts, comparison
from kvprobe.models.transfer import Step, StepGroup
from kvprobe.probes import mooncake
from kvprobe.system import System
from kvprobe.workers.mooncake import batch
from kvprobe.workers.nixl_shape import Shape

STAND_INS = Path(__file__).parent.parent / "workers" / "stand_ins"
GROUPS = (
    StepGroup(regions=3, descriptor_bytes=1024, blocks=40),
    StepGroup(regions=1, descriptor_bytes=256, blocks=8),
)


def steps(blocks: int = 40) -> tuple[Step, ...]:
    groups = (StepGroup(regions=3, descriptor_bytes=1024, blocks=blocks), GROUPS[1])
    return plans.steps(640, groups, "WRITE", samples=5, max_seconds=5.0)


def measure(
    monkeypatch: pytest.MonkeyPatch, fault: str = "", blocks: int = 40, **more: object
) -> MooncakeFacts:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    monkeypatch.delenv("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", raising=False)
    options = {"budget_seconds": 20.0, "allow_open": True, **more}
    return mooncake.measure(System(), steps(blocks), **options).facts  # type: ignore[arg-type]


def test_both_orders_are_measured_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = measure(monkeypatch)
    assert facts.failure is None and facts.refused_batch is None
    contiguous, shuffled = facts.series
    assert (contiguous.order, shuffled.order) == ("contiguous", "shuffled")
    assert contiguous.nixl_descriptors == 4 and shuffled.descriptors == 128
    assert shuffled.nixl_descriptors is not None and 64 < shuffled.nixl_descriptors <= 128
    for series in facts.series:
        assert series.verified and len(series.seconds) == 5 and len(series.cold_seconds) == 1
        assert all(s > 0 for s in series.seconds)


def test_a_refused_batch_is_a_fact_and_a_higher_limit_lets_it_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = measure(monkeypatch, blocks=500)
    assert facts.refused_batch is not None and facts.refused_batch > 1024
    assert [s.order for s in facts.series] == ["contiguous"]
    assert "1,024" in facts.failure_remedy
    again = measure(monkeypatch, blocks=500, queue_limit=plans.LIMIT_MAX)
    assert again.failure is None and all(s.verified for s in again.series) and len(again.series) == 2


@pytest.mark.parametrize(
    ("fault", "word"),
    [("init", "did not start"), ("register", "refused to register"), ("corrupt", "wrong words")],
)
def test_faults_are_told(fault: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = measure(monkeypatch, fault)
    assert facts.failure is not None and word in facts.failure
    assert not any(s.verified for s in facts.series)


def test_a_transfer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = measure(monkeypatch, "deaf", transfer_timeout_seconds=2.0)
    assert facts.failure is not None and "still running after 2 s" in facts.failure


@pytest.mark.skipif(importlib.util.find_spec("mooncake") is not None, reason="Mooncake is installed")
def test_without_mooncake_the_failure_says_so() -> None:
    facts = mooncake.measure(System(), steps(), budget_seconds=5.0, allow_open=True).facts
    assert facts.failure is not None and "cannot be imported" in facts.failure and facts.series == ()


def test_neighbours_are_joined_region_by_region() -> None:
    spec = [{"set": 0, "regions": 2, "descriptor_bytes": 16, "pool_blocks": 9}]
    sources, targets, lengths = batch(
        Shape(spec, [0]), [1000, 2000], [5000, 6000], [[0, 1, 2, 7]], [[4, 5, 8, 0]]
    )
    assert sources == [1000, 1032, 1112, 2000, 2032, 2112]
    assert targets == [5064, 5128, 5000, 6064, 6128, 6000]
    assert lengths == [32, 16, 16] * 2


def test_isolation_leaves_loopback_alone() -> None:
    code = (
        "import socket, sys; from kvprobe.workers.isolation import isolate\n"
        "if not isolate(): sys.exit(77)\n"
        "print(sorted(n for _, n in socket.if_nameindex()))\n"
        "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this kernel gives no network namespace")
    assert done.returncode == 0, done.stderr
    assert "lo" in done.stdout and "eth" not in done.stdout and "ens" not in done.stdout


def test_an_open_network_needs_a_yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import kvprobe.workers.isolation as i\ni.isolate = lambda: False\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(STAND_INS)]))
    refused = mooncake.measure(System(), steps(), budget_seconds=10.0).facts
    assert refused.failure is not None and "every address" in refused.failure
    allowed = mooncake.measure(System(), steps(), budget_seconds=10.0, allow_open=True).facts
    assert allowed.failure is None and allowed.isolated is False


def test_comparison_lists_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = measure(monkeypatch)
    rows = comparison(facts, None)
    assert [r["order"] for r in rows] == ["contiguous", "shuffled"]
    assert rows[0]["bytes_per_second"] == pytest.approx(rows[0]["bytes"] / rows[0]["seconds_median"])
    assert rows[0]["bytes"] == 3 * 1024 * 40 + 256 * 8


def test_the_default_plan_is_a_7b_model() -> None:
    contiguous, shuffled = plans.steps(2048, None, "WRITE", 10, 5.0)
    assert shuffled.descriptors == 28 * 128 and shuffled.bytes == 2048 * 57344
