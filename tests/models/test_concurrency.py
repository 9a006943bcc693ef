"""Several transfers in flight: bandwidth of all together, fairness, the knee."""

from __future__ import annotations

import pytest

from kvprobe.models.concurrency import knee, levels
from kvprobe.models.transfer import Series
from tests.ladders import BYTES, series


def crowd(in_flight: int, seconds: float, *ends: float) -> Series:
    return series((seconds,) * 5, in_flight=in_flight, bytes=BYTES * in_flight, request_seconds=(ends,) * 5 if ends else ())  # fmt: skip


def test_bandwidth_fairness_and_slowdown() -> None:
    alone, two, four = levels(
        [crowd(4, 0.2, 0.05, 0.1, 0.15, 0.2), crowd(1, 0.05), crowd(2, 0.1, 0.099, 0.1)]
    )
    assert (alone.in_flight, two.in_flight, four.in_flight) == (1, 2, 4)
    assert alone.bandwidth_bytes_per_second == pytest.approx(BYTES / 0.05) and alone.fairness == 1.0
    assert two.fairness == pytest.approx(0.99) and four.fairness == pytest.approx(0.25)
    assert four.slowdown == pytest.approx(4.0) and four.samples == 5


def test_series_without_warm_samples_are_left_out() -> None:
    assert levels([]) == () and levels([series(())]) == ()
    assert [level.in_flight for level in levels([crowd(1, 0.05), series((), in_flight=2)])] == [1]


def test_the_knee_is_the_fewest_with_nearly_the_best_bandwidth() -> None:
    found = levels([crowd(1, 0.05), crowd(2, 0.06), crowd(4, 0.118), crowd(8, 0.24)])
    bend = knee(found)
    assert bend is not None and bend.in_flight == 2
    assert knee(()) is None


def test_a_path_that_never_fills_has_its_knee_at_the_end() -> None:
    bend = knee(levels([crowd(1, 0.05), crowd(2, 0.05), crowd(4, 0.05)]))
    assert bend is not None and bend.in_flight == 4
