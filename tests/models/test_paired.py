"""Paired tax, load windows and counters, with numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.formats.vllm_metrics import parse_metrics_page
from kvprobe.models.paired import Pair, summarize_length
from kvprobe.models.paired_counters import Counters, minus, totals, transfer_of
from kvprobe.models.paired_load import Arrival, Slo, Window, broken, gaps_within, summarize_window

CASES = Path(__file__).parent.parent / "cases" / "live"


def pair(pd: float, alone: float, **more: object) -> Pair:
    return Pair(
        prompt_tokens=512,
        pd_ttft=pd,
        colocated_ttft=alone,
        prefill_call=alone,
        handover=0.0,
        decode_first=pd - alone,
        **more,  # type: ignore[arg-type]
    )


def test_drift_cancels_in_pairs() -> None:
    # Both ways get slower by a second during the run; the tax stays 30 ms.
    pairs = [pair(0.130 + d, 0.100 + d) for d in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    found = summarize_length(512, pairs)
    assert found.tax.median == pytest.approx(0.03)
    assert (found.tax_interval.low, found.tax_interval.high) == pytest.approx((0.03, 0.03))
    assert found.pd_ttft.median == pytest.approx(0.63)


def test_the_interval_tells_noise_from_tax() -> None:
    noisy = [pair(0.1 + e, 0.1) for e in (-0.03, 0.02, -0.01, 0.03, -0.02, 0.01)]
    assert not summarize_length(512, noisy).tax_interval.excludes_zero


def test_the_first_gap_is_left_out_of_itl() -> None:
    found = summarize_length(512, [pair(0.2, 0.1, pd_itl=(0.0001, 0.005, 0.005), colocated_itl=())])
    assert found.pd_itl is not None
    assert found.pd_itl.median == 0.005
    assert found.pd_itl.samples == 2
    assert found.colocated_itl is None


def test_no_pair_no_statistic() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarize_length(512, [])


def test_gaps_of_a_window() -> None:
    times = (0.0, 1.0, 1.1, 2.5, 2.6, 4.0)
    assert gaps_within(times, 1.05, 2.55) == pytest.approx((0.1, 1.4))


def window(gaps: tuple[float, ...], *ttfts: float | None) -> Window:
    arrivals = tuple(Arrival(ttft_seconds=t, tpot_seconds=0.005) for t in ttfts)
    return Window(way="pd", rate=1.0, seconds=4.0, streams=1, gaps=gaps, arrivals=arrivals)


def test_goodput_counts_failed_arrivals_as_bad() -> None:
    found = summarize_window(window((0.005,) * 100, 0.1, 0.3, None), Slo(ttft_seconds=0.2))
    assert (found.arrived, found.finished, found.good) == (3, 2, 1)
    assert found.goodput_per_second == 0.25


def test_without_a_target_there_is_no_goodput() -> None:
    found = summarize_window(window((), 0.1), Slo())
    assert (found.good, found.goodput_per_second, found.itl_p99) == (None, None, None)
    assert not broken(found, Slo())


def test_a_broken_tail() -> None:
    calm = summarize_window(window((0.005,) * 200), Slo())
    stalled = summarize_window(window((0.005,) * 190 + (0.17,) * 10), Slo())
    assert not broken(calm, Slo())
    assert broken(stalled, Slo())
    assert broken(calm, Slo(tpot_seconds=0.004))


def test_rung_5_of_a_real_run() -> None:
    """Decode's /metrics after the sequential pass of vLLM 0.30 (16 transfers, 54,016 tokens)."""
    page = parse_metrics_page((CASES / "decode-metrics-030.txt").read_text())
    found = totals(page)
    assert (found.transfers, found.external_kv_transfer) == (16, 54016)
    moved = transfer_of(found)
    assert moved is not None
    assert moved.xfer_seconds == pytest.approx(0.621167 / 16)
    assert moved.descriptors == 5908
    assert moved.bytes == pytest.approx(3.097493504e9 / 16)


def test_counters_between_two_scrapes() -> None:
    first = Counters(transfers=3.0, xfer_seconds=1.0, external_kv_transfer=10.0)
    last = Counters(transfers=5.0, xfer_seconds=1.5, external_kv_transfer=2.0)
    found = minus(last, first)
    assert (found.transfers, found.xfer_seconds) == (2.0, 0.5)
    assert found.external_kv_transfer == 2.0, "the server was restarted in between"
    assert found.kv_expired is None, "not exposed stays unknown"
    assert transfer_of(Counters()) is None
    assert transfer_of(Counters(transfers=0.0, xfer_seconds=0.0)) is None
    assert totals(None) == Counters()
