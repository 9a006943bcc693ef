"""KVP206 to KVP210: how far the figures can be trusted."""

from __future__ import annotations

import pytest

from kvprobe.finding import Finding, Status, judge
from kvprobe.flows.preflight import RULES
from kvprobe.rules.base import run_rules
from kvprobe.rules.transfer_quality import (
    GpuPathFacts,
    direction,
    fit_quality,
    gpu_path_missing,
    idle,
    overhead,
)
from tests.ladders import ladder, policy, series, transfer

POLICY = policy()


def test_a_busy_gpu_makes_a_fast_pair_unknown() -> None:
    facts = ladder(busy=("GPU0 is 97% utilised", "GPU1 has 40.0 GiB in use"))
    (found,) = idle(facts, POLICY)
    assert found.status is Status.UNKNOWN and "97% utilised; GPU1 has 40.0 GiB" in found.title
    assert judge(run_rules(RULES, facts, POLICY)).exit_code == 3
    assert list(idle(ladder(), POLICY)) == []


@pytest.mark.parametrize(
    ("read", "write", "status"),
    [(0.0505, 0.0438, Status.PASS), (0.088, 0.044, Status.PASS), (1.2, 0.044, Status.WARN), (0.02, 0.2, Status.PASS)],
)  # fmt: skip
def test_read_against_write(read: float, write: float, status: Status) -> None:
    run = transfer(series((read,) * 10), series((write,) * 7, op="WRITE"))
    (found,) = direction(ladder(run), POLICY)
    assert found.status is status and (found.remedy is not None) == (status is Status.WARN)
    assert found.measured is not None and found.measured.samples == 7
    assert found.measured.value == pytest.approx(read / write)


@pytest.mark.parametrize("run", [transfer(series()), transfer(series(op="WRITE")), transfer(series(), series((), op="WRITE"))])  # fmt: skip
def test_one_direction_alone_is_not_compared(run: object) -> None:
    assert list(direction(ladder(run), POLICY)) == []  # type: ignore[arg-type]


def test_a_fit_that_explains_its_points() -> None:
    points = [series((0.0034 * n / 1000,), tokens=n) for n in (2048, 4096, 8192)]
    (found,) = fit_quality(ladder(transfer(*points)), POLICY)
    assert found.status is Status.PASS and found.measured is not None and found.measured.samples == 3


def test_a_fit_that_does_not_is_coarse() -> None:
    points = [series((s,), tokens=n) for n, s in ((2048, 0.05), (4096, 0.01), (8192, 0.2), (16384, 0.02))]
    (found,) = fit_quality(ladder(transfer(*points)), POLICY)
    assert found.status is Status.WARN and found.remedy is not None and "coarse" in found.remedy.text


def test_two_points_are_no_fit_to_judge() -> None:
    assert list(fit_quality(ladder(transfer(series(), series(tokens=512))), POLICY)) == []
    assert list(fit_quality(ladder(transfer()), POLICY)) == []


@pytest.mark.parametrize(
    ("own", "status"), [(0.0005, Status.PASS), (0.001, Status.PASS), (0.0011, Status.WARN)]
)
def test_the_probes_own_share_is_median_over_median(own: float, status: Status) -> None:
    run = transfer(series((0.04, 0.05, 0.9), overhead_seconds=(own, own, own * 50)))
    (found,) = overhead(ladder(run), POLICY)
    assert found.status is status and found.measured is not None
    assert found.measured.value == pytest.approx(own / 0.05) and found.measured.samples == 3
    assert found.expected is not None and found.expected.max == 0.02


def test_no_overhead_without_a_judged_series() -> None:
    for run in (transfer(), transfer(series(tokens=512)), transfer(series(overhead_seconds=()))):
        assert list(overhead(ladder(run), POLICY)) == []


def missing(**more: object) -> Finding:
    (found,) = gpu_path_missing(GpuPathFacts(reason="No NVIDIA driver is installed here.", **more), POLICY)  # type: ignore[arg-type]
    return found


def test_no_gpu_pair_is_unknown_with_a_next_step() -> None:
    found = missing()
    assert found.status is Status.UNKNOWN and "No NVIDIA driver" in found.title and found.notes == ()
    assert found.remedy is not None and "two NVIDIA GPUs" in found.remedy.text
    given = missing(remedy="Give this process both GPUs.", commands=("nvidia-smi -L",))
    assert given.remedy is not None and given.remedy.commands == ("nvidia-smi -L",)


def test_what_was_measured_instead_says_nothing_about_gpus() -> None:
    found = missing(instead=ladder(subject="in host memory", memory="dram"))
    assert found.status is Status.UNKNOWN and "50.5 ms (median of 10)" in found.notes[0]
    assert "says nothing about GPUs" in found.notes[0]
    assert missing(instead=ladder(transfer())).notes == ()
