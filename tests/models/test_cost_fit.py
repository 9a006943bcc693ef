"""The fit recovers costs that were put in, keeps regimes apart, and refuses to extrapolate silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.models.cost_fit import Point, fit

MIB = 1024**2


def points(t0: float, small: float, large: float, bandwidth: float) -> list[Point]:
    made = []
    for tokens in (512, 2048, 8192, 32768):
        size = tokens * 57344
        for count in (28, tokens // 16 * 28):
            each = small if count < 1024 else large
            made.append(Point(descriptors=count, bytes=size, seconds=t0 + count * each + size / bandwidth))
    return made


def test_recovers_all_four_terms() -> None:
    found = fit(points(1e-3, 6e-6, 3.5e-6, 300e9))
    assert found.t0_seconds == pytest.approx(1e-3, rel=1e-3)
    assert found.seconds_per_descriptor == pytest.approx(3.5e-6, rel=1e-3)
    assert found.seconds_per_descriptor_single_thread == pytest.approx(6e-6, rel=1e-3)
    assert found.bandwidth_bytes_per_second == pytest.approx(300e9, rel=1e-3)
    assert found.worst_residual < 1e-6


def test_emulation_is_a_matter_of_bytes() -> None:
    found = fit(points(0.0, 0.0, 0.0, 0.36e9))
    assert found.bandwidth_bytes_per_second == pytest.approx(0.36e9)
    assert found.seconds_per_descriptor == 0


@given(
    t0=st.floats(0, 5e-3),
    small=st.floats(0, 1e-5),
    large=st.floats(0, 1e-5),
    gbs=st.floats(0.1, 500),
)
def test_never_negative_and_close(t0: float, small: float, large: float, gbs: float) -> None:
    found = fit(points(t0, small, large, gbs * 1e9))
    assert found.t0_seconds >= 0 and found.seconds_per_descriptor >= 0
    assert found.worst_residual < 0.08


def test_one_point_is_a_rate_and_no_points_an_error() -> None:
    only = fit([Point(descriptors=1, bytes=MIB, seconds=1e-3)])
    assert only.predict(1, MIB) == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="no points"):
        fit([])


def test_range_is_told() -> None:
    found = fit(points(1e-3, 6e-6, 3.5e-6, 300e9))
    assert found.covers(14336, 448 * MIB)
    assert not found.covers(14336, 4 * 1024 * MIB)
    assert not found.covers(500_000, 448 * MIB)
    # 1,000 bytes a descriptor were never measured.
    assert not found.covers(29000, 29 * MIB)
