"""Several transfers at once: aggregate bandwidth, fairness, and where more stops helping."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.statistics import median
from kvprobe.models.transfer import Series

_ENOUGH = 0.95
"""The knee: the fewest requests in flight that reach this share of the best aggregate bandwidth."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One number of requests in flight."""

    in_flight: int
    seconds: float
    """Until the last one is done, median."""
    samples: int
    bandwidth_bytes_per_second: float
    """Of all together."""
    fairness: float
    """First request's end over the last one's, median of samples: 1 means they share evenly, 1/k that they queue."""
    slowdown: float
    """Seconds against those of a single request."""


def levels(series: Sequence[Series]) -> tuple[Level, ...]:
    """One level per series of the same plan, fewest in flight first; needs warm samples."""
    known = sorted((s for s in series if s.seconds), key=lambda s: s.in_flight)
    if not known:
        return ()
    alone = median(known[0].seconds) / known[0].in_flight
    return tuple(
        Level(
            in_flight=s.in_flight,
            seconds=median(s.seconds),
            samples=len(s.seconds),
            bandwidth_bytes_per_second=s.bytes / median(s.seconds),
            fairness=median([min(ends) / max(ends) for ends in s.request_seconds])
            if s.request_seconds
            else 1.0,
            slowdown=median(s.seconds) / alone,
        )
        for s in known
    )


def knee(found: Sequence[Level]) -> Level | None:
    """The fewest in flight with nearly the best aggregate bandwidth."""
    if not found:
        return None
    best = max(level.bandwidth_bytes_per_second for level in found)
    return next(level for level in found if level.bandwidth_bytes_per_second >= _ENOUGH * best)
