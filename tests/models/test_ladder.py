"""Losses between neighbours of the ladder: only what is comparable is compared."""

from __future__ import annotations

import pytest

from kvprobe.models.ladder import describe, largest_loss, losses
from tests.ladders import rung

LADDER = [rung(0, 0.001), rung(1, 0.0012), rung(2, 0.0013), rung(3, 0.0017), rung(4, 0.0505)]


def test_each_neighbour_is_named_and_the_largest_is_the_one_with_most_seconds() -> None:
    found = losses(LADDER)
    assert [(loss.rung, loss.below) for loss in found] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert found[-1].seconds == pytest.approx(0.0488) and found[-1].ratio == pytest.approx(0.0505 / 0.0017)
    top = largest_loss(LADDER)
    assert top is not None and top.rung == 4 and "descriptor" in top.means


def test_an_unmeasured_rung_is_stepped_over() -> None:
    found = losses([LADDER[0], rung(1, None), LADDER[3], rung(2, None)])
    assert [(loss.rung, loss.below) for loss in found] == [(3, 0)]


def test_no_loss_to_or_from_a_rung_of_another_ucx() -> None:
    rungs = [LADDER[1], rung(2, 0.5, comparable=False), LADDER[3], LADDER[4]]
    assert [(loss.rung, loss.below) for loss in losses(rungs)] == [(3, 1), (4, 3)]
    rows = {row["rung"]: row for row in describe(rungs)}
    assert rows[2]["loss_seconds"] is None and rows[2]["seconds"] == 0.5


def test_other_bytes_are_not_compared_but_for_engine_and_user() -> None:
    rungs = [rung(3, 0.002, bytes=10), rung(4, 0.05), rung(5, 0.06, bytes=11), rung(6, 0.1, bytes=None)]
    assert [(loss.rung, loss.below) for loss in losses(rungs)] == [(5, 4), (6, 5)]


def test_a_faster_rung_above_is_a_gain_and_never_the_largest_loss() -> None:
    rungs = [rung(1, 0.00123), rung(2, 0.00121), rung(3, 0.0017)]
    assert losses(rungs)[0].seconds < 0
    top = largest_loss(rungs)
    assert top is not None and top.rung == 3
    assert largest_loss(rungs[:2]) is None
    assert not any(row["largest_loss"] for row in describe(rungs[:2]))


@pytest.mark.parametrize("rungs", [[], [rung(4, 0.05)], [rung(3, None), rung(4, None)]])
def test_one_measured_rung_has_no_loss(rungs: list[object]) -> None:
    assert losses(rungs) == () and largest_loss(rungs) is None  # type: ignore[arg-type]


def test_the_rows_are_ordered_and_what_was_not_measured_is_null() -> None:
    rows = describe([LADDER[4], rung(3, None, note="not measured"), LADDER[1]])
    assert [row["rung"] for row in rows] == [1, 3, 4]
    empty = rows[1]
    assert empty["seconds"] is None and empty["loss_seconds"] is None and empty["quartiles_seconds"] is None
    assert empty["status"] == "unknown" and empty["largest_loss"] is False
    assert rows[2]["largest_loss"] is True and rows[2]["loss_below_rung"] == 1


def test_quartiles_need_two_samples() -> None:
    assert rung(4, 0.05, samples=(0.05,)).spread is None
    assert rung(4, 0.05, samples=(0.04, 0.05, 0.06)).spread == pytest.approx((0.045, 0.055))
