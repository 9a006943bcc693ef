"""What a transfer costs: ``t0 + descriptors * c + bytes / bandwidth``, fitted per transport with residuals shown.

Measured on 2x H200 (samples/scenarios): with cuda_ipc the descriptors dominate, with UCX's software emulation the
bytes do. NIXL's thread pool splits a request only from ``split_batch_size`` (1,024) descriptors on, so ``c`` has one
value below and one from there (nixl/src/plugins/ucx/ucx_backend.cpp). A term that the points do not support is
left out: the fit is the non-negative least-squares solution of the relative errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from kvprobe.models.linear import solve

SPLIT_DESCRIPTORS = 1024
"""NIXL's default ``split_batch_size``: requests below run on one thread."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measured transfer: median seconds of ``descriptors`` (after NIXL's merge) that move ``bytes``."""

    descriptors: int
    bytes: int
    seconds: float


class CostFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted cost of one transport and operation. None: the points do not support the term."""

    t0_seconds: float
    seconds_per_descriptor: float
    """From 1,024 descriptors on (NIXL's thread pool at work)."""
    seconds_per_descriptor_single_thread: float
    """Below 1,024 descriptors."""
    bandwidth_bytes_per_second: float | None
    """Of the byte term alone; None when the descriptors explain everything."""
    residuals: tuple[float, ...]
    """(predicted - measured) / measured, a point each."""
    points: tuple[Point, ...]

    @property
    def worst_residual(self) -> float:
        return max((abs(r) for r in self.residuals), default=0.0)

    @property
    def range_bytes(self) -> tuple[int, int]:
        """Smallest and largest transfer that was measured."""
        sizes = [p.bytes for p in self.points]
        return min(sizes), max(sizes)

    @property
    def range_descriptors(self) -> tuple[int, int]:
        counts = [p.descriptors for p in self.points]
        return min(counts), max(counts)

    def covers(self, descriptors: int, size_bytes: int) -> bool:
        """Whether a transfer lies inside the measured range (10 % margin); outside it is an extrapolation."""
        sizes = [p.bytes / p.descriptors for p in self.points]
        return (
            _within(descriptors, *self.range_descriptors)
            and _within(size_bytes, *self.range_bytes)
            # Points of one descriptor size cannot tell the descriptor term from the byte term.
            and _within(size_bytes / max(1, descriptors), min(sizes), max(sizes))
        )

    def predict(self, descriptors: int, size_bytes: int) -> float:
        """Seconds for a transfer; check :meth:`covers` before trusting it."""
        single = descriptors < SPLIT_DESCRIPTORS
        each = self.seconds_per_descriptor_single_thread if single else self.seconds_per_descriptor
        wire = size_bytes / self.bandwidth_bytes_per_second if self.bandwidth_bytes_per_second else 0.0
        return self.t0_seconds + descriptors * each + wire


def fit(points: Sequence[Point]) -> CostFit:
    """Fit the terms to the medians of one transport and operation. Raises ValueError without a point."""
    if not points:
        raise ValueError("no points to fit")
    rows = [_row(p) for p in points]
    best: tuple[float, list[float]] | None = None
    for size in range(1, min(4, len(points)) + 1):
        for terms in itertools.combinations(range(4), size):
            if all(any(row[t] for row in rows) for t in terms):
                solved = _solve([[row[t] for t in terms] for row in rows])
                if solved is None or min(solved) < 0:
                    continue
                full = [0.0] * 4
                for term, value in zip(terms, solved, strict=True):
                    full[term] = value
                error = sum((sum(a * b for a, b in zip(row, full, strict=True)) - 1) ** 2 for row in rows)
                # A further term must earn its place: halve the squared error, or at least take off a percent a point.
                if best is None or error < best[0] * 0.5 or best[0] - error > 1e-4 * len(points):
                    best = (error, full)
    assert best is not None  # one positive column always has a non-negative solution
    t0, small, large, per_byte = best[1]
    # Points on one side of the split only: the other side is unknown, so the known cost stands in (covers() tells).
    if not any(p.descriptors >= SPLIT_DESCRIPTORS for p in points):
        large = small
    if not any(p.descriptors < SPLIT_DESCRIPTORS for p in points):
        small = large
    draft = CostFit(
        t0_seconds=t0,
        seconds_per_descriptor=large,
        seconds_per_descriptor_single_thread=small,
        bandwidth_bytes_per_second=1 / per_byte if per_byte else None,
        residuals=(),
        points=tuple(points),
    )
    residuals = tuple(draft.predict(p.descriptors, p.bytes) / p.seconds - 1 for p in points)
    return msgspec.structs.replace(draft, residuals=residuals)


def _within(value: float, low: float, high: float) -> bool:
    return low * 0.9 <= value <= high * 1.1


def _row(point: Point) -> list[float]:
    """Columns t0, c below the split, c from the split on, 1/bandwidth; scaled so that the target is 1."""
    single = point.descriptors < SPLIT_DESCRIPTORS
    count = float(point.descriptors)
    row = [1.0, count if single else 0.0, 0.0 if single else count, float(point.bytes)]
    return [value / point.seconds for value in row]


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Least squares of ``rows @ x = 1`` by normal equations (at most 4 unknowns); None if singular."""
    n = len(rows[0])
    scale = [max(abs(row[j]) for row in rows) or 1.0 for j in range(n)]
    rows = [[row[j] / scale[j] for j in range(n)] for row in rows]
    matrix = [
        [sum(r[i] * r[j] for r in rows) for j in range(n)] + [sum(r[i] for r in rows)] for i in range(n)
    ]
    found = solve(matrix, lambda row, pivot: pivot < 1e-10)
    return None if found is None else [value / s for value, s in zip(found, scale, strict=True)]
