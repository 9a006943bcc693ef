"""KVP213: what several prompts at once do to each other."""

from __future__ import annotations

import pytest

from kvprobe.finding import Finding, Status
from kvprobe.models.concurrency import levels
from kvprobe.rules.concurrency import ConcurrencyFacts, burst
from tests.ladders import BYTES, policy, series


def judged(*crowd: tuple[int, float]) -> Finding:
    found = levels([series((s,) * 5, in_flight=k, bytes=BYTES * k) for k, s in crowd])
    (finding,) = burst(ConcurrencyFacts(levels=found), policy())
    return finding


def test_a_burst_that_queues_has_a_remedy() -> None:
    found = judged((1, 0.05), (4, 0.2))
    assert found.status is Status.PASS and "4 transfers in flight: 200 ms" in found.title
    assert "more than 1 at once gain nothing" in found.title and found.remedy is not None
    assert found.measured is not None and found.measured.value == pytest.approx(1.0)
    assert found.expected is not None and found.expected.value == 4 and len(found.notes) == 2


def test_a_path_with_room_needs_none() -> None:
    found = judged((1, 0.05), (2, 0.05), (4, 0.05))
    assert (
        found.remedy is None and "gain nothing" not in found.title and "4.00 times one alone" in found.title
    )


def test_the_knee_is_told() -> None:
    assert "more than 2 at once gain nothing" in judged((1, 0.05), (2, 0.06), (8, 0.24)).title
