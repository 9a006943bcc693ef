"""The traps on figures that stand at their limits: short runs, heavy load, cached prompts on either side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.formats.bench_result import BenchResult, parse_bench_results
from kvprobe.models.bench_checks import bundling, cached_prompts, saturation, warm_up

BENCH = Path(__file__).parent.parent / "cases" / "bench"


def result(case: str, side: str = "colocated", **changes: Any) -> BenchResult:
    folder = next(BENCH.glob(f"{case}-*"))
    document = json.loads((folder / f"{side}.json").read_text()) | changes
    return parse_bench_results(json.dumps(document), side)[0]


def test_a_short_run_is_not_saturated_by_its_last_answers() -> None:
    # 20 prompts at 2/s arrive within 10 s; the last answer takes 5.4 s more.
    told = saturation(
        result(
            "B02", num_prompts=20, completed=20, duration=15.4, total_input_tokens=163840, total_output_tokens=5120,
            mean_tpot_ms=20.0, latencies=[5.4] * 20,
        )
    )  # fmt: skip
    assert told and told.request_throughput == pytest.approx(1.30, abs=0.01)
    assert told.served_share and told.served_share > 0.95 and not told.saturated


def test_a_growing_queue_counts_even_when_the_rate_is_nearly_served() -> None:
    steady = saturation(result("B02", duration=105.5, latencies=[4.0] * 200))
    growing = saturation(result("B02", duration=108.0, latencies=[4.0 + 0.1 * i for i in range(200)]))
    assert steady and not steady.saturated
    assert growing and growing.saturated and growing.latency_growth and growing.latency_growth > 2


def test_all_at_once_is_a_queue_unless_concurrency_is_limited() -> None:
    told = saturation(result("B02", request_rate="inf"))
    assert told and told.saturated and told.served_share is None
    assert saturation(result("B02", request_rate="inf", max_concurrency=16)) is None


def test_cached_prompts_on_the_colocated_side_are_seen_too() -> None:
    colocated = result("B05", "pd")
    seen = cached_prompts("colocated", colocated, result("B05", "colocated"))
    assert seen and seen.decode_steps == pytest.approx(1.8, abs=0.1) and seen.colocated_ttft_ms is None


def test_a_fast_p_d_beside_a_queue_is_no_cache_hit() -> None:
    """A colocated server whose TTFT is mostly queue proves nothing about the prefill."""
    queue = result("B02", median_ttft_ms=900.0, mean_ttft_ms=1200.0, std_ttft_ms=800.0)
    assert cached_prompts("pd", result("B02", "pd"), queue) is None


def test_bundling_is_counted_from_latencies_when_lengths_vary() -> None:
    run = result("B02")
    assert bundling(run) is None
    doubled = bundling(result("B02", mean_itl_ms=run.numbers["mean_itl_ms"] * 2))  # type: ignore[operator]
    assert doubled and doubled.tokens_per_chunk == pytest.approx(2.0, rel=0.05)


def test_warm_up_is_the_first_request_alone() -> None:
    latencies = [4.0 + 0.01 * (i % 7) for i in range(100)]
    assert warm_up(result("B02", latencies=latencies)) is None
    first = warm_up(result("B02", latencies=[9.0, *latencies]))
    assert first and first.first_seconds == 9.0 and first.what == "latency"
    # The same outlier in the middle is not a warm-up.
    assert warm_up(result("B02", latencies=[*latencies, 9.0])) is None


def test_a_steady_queue_of_the_client_is_no_cache_hit() -> None:
    """With 64 requests kept in flight every colocated TTFT holds a queue."""
    queue = result("B02", median_ttft_ms=2000.0, mean_ttft_ms=2000.0, std_ttft_ms=200.0, max_concurrency=64)
    assert cached_prompts("pd", result("B02", "pd", max_concurrency=64), queue) is None


def test_a_small_model_in_a_large_batch_prefills_in_few_steps() -> None:
    """1.5B: 60 ms for 8,192 tokens, steps of 25 ms at 200 in flight; at 8 in flight that would be a cache hit."""
    changes = {
        "median_ttft_ms": 60.0,
        "median_itl_ms": 25.0,
        "mean_itl_ms": 25.0,
        "mean_tpot_ms": 25.0,
        "latencies": [],
    }
    assert cached_prompts("pd", result("B02", "pd", max_concurrent_requests=200, **changes), None) is None
    assert cached_prompts("pd", result("B02", "pd", max_concurrent_requests=8, **changes), None)
