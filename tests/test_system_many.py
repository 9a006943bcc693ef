"""A long sequence through the door: used as it comes, recorded as it was seen, replayed without looking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvprobe.errors import ProbeError
from kvprobe.system import RecordingSystem, ReplaySystem, System


def test_live_sequence_is_not_collected() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for number in range(10**9):
            taken.append(number)
            yield number

    found = System().observe_many("log", "x", endless)
    assert (next(found), next(found)) == (0, 1)
    assert taken == [0, 1]


def test_recorded_as_far_as_it_was_read(tmp_path: Path) -> None:
    system = RecordingSystem(tmp_path, {})
    for item in system.observe_many("log", "x", lambda: iter(range(100))):
        if item == 2:
            break
    system.close()
    replay = ReplaySystem(tmp_path)
    assert list(replay.observe_many("log", "x", lambda: pytest.fail("looked"))) == [0, 1, 2]


def test_error_half_way_is_replayed(tmp_path: Path) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ProbeError("The log is damaged.")

    system = RecordingSystem(tmp_path, {})
    with pytest.raises(ProbeError):
        list(system.observe_many("log", "x", broken))
    system.close()
    with pytest.raises(ProbeError, match="damaged"):
        list(ReplaySystem(tmp_path).observe_many("log", "x", list))
