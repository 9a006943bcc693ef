"""Sums over intervals: weighted means, bounds instead of averaged P90s, first contact, interval length, timeline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.formats.vllm_log import Interval
from kvprobe.models.log_summary import Aggregate, EngineLog, measuring_side
from kvprobe.models.log_timeline import LIMIT, Timeline


def interval(
    n: int = 4, ms: float = 33.875, p90: float | None = None, at: str | None = None, **more: object
) -> Interval:
    return Interval(
        num_successful_transfers=n,
        avg_xfer_time_ms=ms if n else 0.0,
        p90_xfer_time_ms=p90 if p90 is not None else ms,
        avg_post_time_ms=ms / 4,
        p90_post_time_ms=ms / 4,
        avg_mib_per_transfer=448.0 if n else 0.0,
        throughput_mib_per_s=448.0 / ms * 1e3,
        avg_num_descriptors=512.0,
        timestamp=at,
        **more,  # type: ignore[arg-type]
    )


def test_means_are_weighted_by_transfers_and_p90s_only_bounded() -> None:
    a = Aggregate()
    a.add(interval(4, 33.875, 39.13))
    a.add(interval(2, 31.6, 32.96))
    told = a.result()
    assert told["weighted_avg_xfer_time_ms"] == pytest.approx(33.1166, abs=1e-3)
    assert told["xfer_seconds_p90_bounds"] == pytest.approx([0.03296, 0.03913])
    assert told["bytes"] == 6 * 448 * 2**20
    assert told["bytes_per_second_of_a_transfer"] == pytest.approx(
        6 * 448 * 2**20 / (4 * 0.033875 + 2 * 0.0316)
    )
    assert told["num_failed_transfers"] is None, "not printed is not 0"


def test_an_interval_of_zeros_measures_nothing_and_counts_failures() -> None:
    a = Aggregate()
    a.add(interval(0, num_failed_transfers=3, num_kv_expired_reqs=1))
    told = a.result()
    assert (
        told["xfer_seconds_mean"] is None
        and told["bytes"] is None
        and told["xfer_seconds_p90_bounds"] is None
    )
    assert (told["num_failed_transfers"], told["num_kv_expired_reqs"], a.failures) == (3, 1, 3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.5, 5000)), max_size=12), st.integers(0, 12))
def test_merging_parts_equals_adding_all(rows: list[tuple[int, float]], cut: int) -> None:
    whole, left, right = Aggregate(), Aggregate(), Aggregate()
    for at, (n, ms) in enumerate(rows):
        whole.add(interval(n, ms))
        (left if at < cut else right).add(interval(n, ms))
    left.merge(right)
    for key, value in whole.result().items():
        assert left.result()[key] == (pytest.approx(value) if value is not None else None), key


def engine(*intervals: Interval) -> EngineLog:
    log = EngineLog(("decode.log", None, 0, "NixlConnector"), "APIServer")
    for one in intervals:
        log.add(one)
    return log


def test_interval_length_and_concurrency_come_from_the_lines() -> None:
    log = engine(*(interval(at=f"11-03 08:15:{s:02}") for s in (2, 12, 22, 42)))
    told = log.result()
    assert told["interval_seconds"] == 10
    assert told["implied_concurrency"] == pytest.approx(4 * 4 * 0.033875 / 40)
    assert told["goodput_bytes_per_second"] == pytest.approx(16 * 448 * 2**20 / 40)


def test_one_line_has_no_length_so_no_goodput() -> None:
    told = engine(interval(at="11-03 08:15:02")).result()
    assert told["goodput_bytes_per_second"] is None and told["implied_concurrency"] is None


def test_first_contact_is_kept_apart_only_when_it_is_an_outlier() -> None:
    cold = engine(interval(1, 290.0), *(interval(4, 30.0) for _ in range(5)))
    assert cold.first_is_outlier is True
    assert cold.warm.xfer_mean_seconds == pytest.approx(0.03)
    assert cold.total.timed == 21
    assert cold.result()["first_interval"]["outlier"] is True
    assert engine(interval(1, 45.0), interval(4, 30.0)).first_is_outlier is False
    assert engine(interval(1, 290.0)).first_is_outlier is None


def test_who_measured() -> None:
    assert measuring_side("NixlPullConnector") == measuring_side("NixlConnector") == "decode"
    assert measuring_side("NixlPushConnector") == measuring_side("MooncakeConnector") == "prefill"


def test_timeline_stays_bounded_and_loses_nothing() -> None:
    line = Timeline()
    for k in range(5000):
        stamp = f"11-{1 + k // 8640:02} {k // 360 % 24:02}:{k // 6 % 60:02}:{k * 10 % 60:02}"
        line.add(interval(2, 10.0 + k % 5, at=stamp, num_failed_transfers=k % 2))
    told = line.result()
    assert told is not None and len(told["bins"]) <= LIMIT
    assert sum(b["num_successful_transfers"] for b in told["bins"]) == 10_000
    assert sum(b["failed"] for b in told["bins"]) == 2500
    offsets = [b["offset_seconds"] for b in told["bins"]]
    assert offsets == sorted(offsets) and told["start"] == "11-01 00:00:00"


def test_timeline_over_new_year_and_without_times() -> None:
    line = Timeline()
    for at in ("12-31 23:59:58", "01-01 00:00:02", None):
        line.add(interval(at=at))
    told = line.result()
    assert told is not None
    assert [b["offset_seconds"] for b in told["bins"]] == [0, 4, 5]
    assert Timeline().result() is None
