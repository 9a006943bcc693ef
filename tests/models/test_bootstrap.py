"""The drawn percentiles against plain resampling, and the clustered ones against the width that clusters demand."""

from __future__ import annotations

import random

import pytest

from kvprobe.models.bootstrap import (
    clustered_percentile_draws,
    difference_interval,
    mean_draws,
    percentile_draws,
)
from kvprobe.models.statistics import interval_of, percentile


@pytest.mark.parametrize("p", [50, 90, 99])
def test_draws_have_the_distribution_of_resampled_lists(p: float) -> None:
    draw = random.Random(1)
    values = [draw.lognormvariate(0, 0.5) for _ in range(200)]
    plain = sorted(percentile(draw.choices(values, k=200), p) for _ in range(4000))
    quick = sorted(percentile_draws(values, p, resamples=4000))
    for share in (0.025, 0.25, 0.5, 0.75, 0.975):
        place = int(share * 4000)
        # Both hop between neighbouring samples, so compare with the local gap as tolerance.
        assert quick[place] == pytest.approx(plain[place], rel=0.06)


def test_draws_are_repeatable_and_stay_inside_the_samples() -> None:
    values = [3.0, 1.0, 2.0]
    found = percentile_draws(values, 99)
    assert found == percentile_draws(values, 99) and found != percentile_draws(values, 99, seed=1)
    assert min(found) >= 1.0 and max(found) <= 3.0
    assert set(percentile_draws([7.0], 50)) == {7.0}


def test_clusters_of_one_are_plain_samples() -> None:
    draw = random.Random(2)
    values = [draw.random() for _ in range(300)]
    plain = interval_of(percentile_draws(values, 90, resamples=2000))
    grouped = interval_of(clustered_percentile_draws([[v] for v in values], 90, resamples=2000))
    assert grouped.low == pytest.approx(plain.low, abs=0.02)
    assert grouped.high == pytest.approx(plain.high, abs=0.02)


def test_gaps_of_one_request_are_not_independent() -> None:
    """20 requests whose gaps are all alike know no more than 20 gaps."""
    draw = random.Random(3)
    groups = [[draw.gauss(10, 3)] * 100 for _ in range(20)]
    clustered = interval_of(clustered_percentile_draws(groups, 50))
    naive = interval_of(percentile_draws([v for g in groups for v in g], 50))
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)


def test_difference_of_equal_samples_covers_zero() -> None:
    draw = random.Random(4)
    one, two = ([draw.gauss(100, 10) for _ in range(100)] for _ in range(2))
    assert not difference_interval(mean_draws(one, seed=1), mean_draws(two, seed=2)).excludes_zero
    shifted = [v + 20 for v in two]
    found = difference_interval(percentile_draws(one, 50, seed=1), percentile_draws(shifted, 50, seed=2))
    assert found.excludes_zero and 12 < found.low < 20 < found.high < 28


@pytest.mark.parametrize("function", [percentile_draws, clustered_percentile_draws])
def test_nothing_to_draw_from(function: object) -> None:
    with pytest.raises(ValueError):
        function([], 50)  # type: ignore[operator]
