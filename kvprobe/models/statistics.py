"""Median, percentiles, spread and bootstrap intervals, as every figure of a report is made.

Percentiles interpolate linearly between neighbours, as numpy's default does (method 7 of Hyndman and Fan,
https://www.jstor.org/stable/2684934), so that they agree with what ``vllm bench serve`` prints.
All functions refuse an empty list with ValueError: nothing measured has no statistic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from kvprobe.finding import Quantity

FEW_SAMPLES = 5
"""Below this many samples a statistic is only shown together with that fact."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a list of samples, in their own unit."""

    samples: int
    median: float
    p90: float
    min: float
    max: float
    q1: float
    q3: float

    @property
    def few(self) -> bool:
        """Fewer than five samples: say so wherever a statistic of them is shown."""
        return self.samples < FEW_SAMPLES

    @property
    def note(self) -> str | None:
        """``only 3 samples``, or None when there are enough."""
        return few_note(self.samples)

    def quantity(self, unit: str, statistic: str = "median") -> Quantity:
        """The named statistic (``median``, ``p90``, ``min``, ``max``) as a figure that can stand alone."""
        value: float = getattr(self, statistic)
        return Quantity(
            value=value, unit=unit, statistic=statistic, samples=self.samples, note=few_note(self.samples)
        )


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A bootstrap confidence interval of one statistic."""

    low: float
    high: float
    confidence: float
    resamples: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def few_note(samples: int) -> str | None:
    """The sentence part that goes with a statistic of fewer than five samples; None from five on."""
    if samples >= FEW_SAMPLES:
        return None
    return f"only {samples} sample{'s' if samples != 1 else ''}"


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError for an empty list."""
    return percentile(values, 50)


def percentile(values: Sequence[float], p: float) -> float:
    """The ``p``-th percentile (0 to 100), linear between neighbours. Raises ValueError for an empty list."""
    return percentile_sorted(sorted(values), p)


def percentile_sorted(values: Sequence[float], p: float) -> float:
    """:func:`percentile` of values that are in ascending order already."""
    if not values:
        raise ValueError("no samples, so no percentile")
    if not 0 <= p <= 100:
        raise ValueError(f"percentile {p} is not between 0 and 100")
    place = (len(values) - 1) * p / 100
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile: half of the samples lie between them."""
    ordered = sorted(values)
    return percentile_sorted(ordered, 25), percentile_sorted(ordered, 75)


def summarize(values: Sequence[float]) -> Summary:
    """All that is told of the samples. Raises ValueError for an empty list."""
    ordered = sorted(values)
    return Summary(
        samples=len(ordered),
        median=percentile_sorted(ordered, 50),
        p90=percentile_sorted(ordered, 90),
        min=ordered[0],
        max=ordered[-1],
        q1=percentile_sorted(ordered, 25),
        q3=percentile_sorted(ordered, 75),
    )


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = median,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile-bootstrap interval of any statistic of independent samples; the same seed, the same answer.

    https://doi.org/10.1214/aos/1176344552. For percentiles of many samples see
    :func:`kvprobe.models.bootstrap.draw_percentile`, which needs no resampled lists.
    """
    if not values:
        raise ValueError("no samples, so no interval")
    draw = random.Random(seed)
    found = [statistic(draw.choices(values, k=len(values))) for _ in range(resamples)]
    return interval_of(found, confidence)


def interval_of(draws: Sequence[float], confidence: float = 0.95) -> Interval:
    """The central interval that holds ``confidence`` of the bootstrap draws."""
    tail = (1 - confidence) / 2 * 100
    ordered = sorted(draws)
    return Interval(
        low=percentile_sorted(ordered, tail),
        high=percentile_sorted(ordered, 100 - tail),
        confidence=confidence,
        resamples=len(draws),
    )
