"""Statistics against numpy's own figures (computed once with numpy 2.3) and against known distributions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.models.statistics import (
    bootstrap_interval,
    median,
    percentile,
    spread,
    summarize,
)

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


def test_percentiles_agree_with_numpy() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    assert median(values) == pytest.approx(2.8)
    assert percentile(values, 99) == pytest.approx(8.75)
    assert percentile(values, 90) == pytest.approx(6.5)
    assert spread(values) == pytest.approx((1.775, 3.75))


def test_the_ends_are_the_extremes_and_one_value_is_every_percentile() -> None:
    assert percentile([5.0, 1.0], 0) == 1.0
    assert percentile([5.0, 1.0], 100) == 5.0
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize("function", [median, spread, summarize, bootstrap_interval])
def test_nothing_measured_has_no_statistic(function: object) -> None:
    with pytest.raises(ValueError):
        function([])  # type: ignore[operator]


def test_percentile_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="101"):
        percentile([1.0], 101)


@given(NUMBERS)
def test_summary_is_ordered(values: list[float]) -> None:
    told = summarize(values)
    assert told.min <= told.q1 <= told.median <= told.q3 <= told.max
    assert told.samples == len(values)


def test_few_samples_are_said() -> None:
    told = summarize([0.1, 0.2, 0.3])
    assert told.few and told.note == "only 3 samples"
    assert told.quantity("s").note == "only 3 samples"
    assert summarize([1.0] * 5).quantity("s", "p90").note is None


def test_bootstrap_is_repeatable_and_covers_the_median() -> None:
    draw = random.Random(3)
    values = [draw.gauss(100, 10) for _ in range(200)]
    first = bootstrap_interval(values)
    assert first == bootstrap_interval(values)
    assert first != bootstrap_interval(values, seed=1)
    assert first.low < median(values) < first.high
    # The standard error of a median of 200 normals is 1.253 * 10 / sqrt(200) = 0.89.
    assert 2 < first.high - first.low < 5
