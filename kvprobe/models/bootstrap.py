"""Bootstrap draws of percentiles without resampled lists: exact, and fast enough for every token of a benchmark.

The k-th smallest of n values drawn with replacement from n sorted values is the value at place ``floor(n * U)``
with U ~ Beta(k, n - k + 1) (order statistics of n uniform numbers; Efron, https://doi.org/10.1214/aos/1176344552),
so one draw of a percentile needs two random numbers instead of n. Token gaps of one request depend on each other:
their percentile is drawn by resampling whole requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from kvprobe.models.statistics import Interval, interval_of

RESAMPLES = 1000
CLUSTER_RESAMPLES = 300


def percentile_draws(
    values: Sequence[float], p: float, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[float]:
    """Bootstrap draws of the ``p``-th percentile of independent samples. Raises ValueError for an empty list."""
    if not values:
        raise ValueError("no samples to draw from")
    ordered = sorted(values)
    n = len(ordered)
    draw = random.Random(seed)
    place = (n - 1) * p / 100
    k, share = math.floor(place) + 1, place - math.floor(place)
    found = []
    for _ in range(resamples):
        low = draw.betavariate(k, n - k + 1)
        value = ordered[min(n - 1, int(n * low))]
        if share and k < n:
            # The next order statistic, given this one: the smallest of n - k uniform numbers above it.
            high = 1 - (1 - low) * draw.random() ** (1 / (n - k))
            value += (ordered[min(n - 1, int(n * high))] - value) * share
        found.append(value)
    return found


def clustered_percentile_draws(
    groups: Sequence[Sequence[float]], p: float, *, resamples: int = CLUSTER_RESAMPLES, seed: int = 0
) -> list[float]:
    """Bootstrap draws of the ``p``-th percentile of all values, resampling whole groups (requests).

    Raises ValueError when no group holds a value.
    """
    kept = [group for group in groups if group]
    if not kept:
        raise ValueError("no samples to draw from")
    from_top = p >= 50
    pooled = _end(kept, (100 - p) if from_top else p, from_top)
    draw = random.Random(seed)
    indices = range(len(kept))
    found = []
    for _ in range(resamples):
        weight = [0] * len(kept)
        for index in draw.choices(indices, k=len(kept)):
            weight[index] += 1
        total = sum(w * len(group) for w, group in zip(weight, kept, strict=True))
        place = (total - 1) * ((100 - p) if from_top else p) / 100
        found.append(_weighted(pooled, weight, place))
    return found


_MARGIN = 3.0


def _end(groups: Sequence[Sequence[float]], share: float, from_top: bool) -> list[tuple[float, int]]:
    """Values with their group, from the end on which the percentile lies; of millions only the part that is needed.

    ``share`` percent of the values lie beyond the percentile. A resample of whole groups needs more or fewer of them,
    but not three times as many unless they all sit in a few groups; then all values are kept.
    """
    ordered = sorted((v for group in groups for v in group), reverse=from_top)
    cut = ordered[min(len(ordered) - 1, int(len(ordered) * share / 100 * _MARGIN) + 1)]
    found = [(v, g) for g, group in enumerate(groups) for v in group if (v >= cut if from_top else v <= cut)]
    held_by = {g for _, g in found}
    if len(held_by) < 0.5 * len(groups):
        found = [(v, g) for g, group in enumerate(groups) for v in group]
    return sorted(found, reverse=from_top)


def _weighted(pooled: Sequence[tuple[float, int]], weight: Sequence[int], place: float) -> float:
    """The value at ``place`` (interpolated) when each value counts as often as its group was drawn."""
    seen, first = 0, None
    below, share = math.floor(place), place - math.floor(place)
    for value, group in pooled:
        seen += weight[group]
        if first is None and seen > below:
            first = value
        if first is not None and (not share or seen > below + 1):
            return first + (value - first) * share
    return pooled[-1][0] if first is None else first


def mean_draws(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> list[float]:
    """Draws of the mean: normal with the standard error, which the bootstrap of a mean converges to."""
    n = len(values)
    if not n:
        raise ValueError("no samples to draw from")
    mean = sum(values) / n
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / n / n)
    draw = random.Random(seed)
    return [draw.gauss(mean, error) for _ in range(resamples)]


def difference_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Interval of ``second - first`` from independent draws of both."""
    return interval_of([b - a for a, b in zip(first, second, strict=True)], confidence)
