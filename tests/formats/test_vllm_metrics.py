"""``/metrics`` of real servers (two H200, vLLM 0.26) and hostile pages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import FormatError
from kvprobe.formats.vllm_metrics import Histogram, parse_metrics_page, scrape_delta

SAMPLES = Path(__file__).parent.parent.parent / "samples" / "logs"
SEQUENTIAL = (SAMPLES / "h200-nvlink-decode-1.prom").read_text()
CONCURRENT = (SAMPLES / "h200-nvlink-decode-2.prom").read_text()
PREFILL = (SAMPLES / "h200-nvlink-prefill.prom").read_text()


def test_decode_page() -> None:
    (engine,) = parse_metrics_page(SEQUENTIAL).engines
    (nixl,) = engine.transfers
    assert nixl.connector == "nixl" and nixl.count == 36
    assert nixl.bytes is not None and nixl.bytes.sum == 22949527552
    assert nixl.descriptors is not None and nixl.descriptors.sum == 536704
    assert nixl.failed_transfers == 0 and nixl.kv_expired == 0
    assert nixl.notifications_after_expiry is None, "not exposed before vLLM 0.32"
    assert engine.prompt_tokens_by_source == {"external_kv_transfer": 400208}
    assert engine.cache_config["block_size"] == "16"
    assert nixl.xfer_seconds is not None and nixl.xfer_seconds.quantile_bounds(0.9) == (0.1, 0.2)


def test_prefill_page_has_no_transfers_of_its_own() -> None:
    (engine,) = parse_metrics_page(PREFILL).engines
    assert engine.transfers[0].count == 0


def test_what_happened_between_two_scrapes() -> None:
    first, last = parse_metrics_page(SEQUENTIAL), parse_metrics_page(CONCURRENT)
    (nixl,) = scrape_delta(first, last).engines[0].transfers
    whole = last.engines[0].transfers[0]
    assert nixl.count == (whole.count or 0) - 36 > 0
    assert nixl.bytes is not None and nixl.bytes.sum == (whole.bytes.sum if whole.bytes else 0) - 22949527552


def test_restarted_server_counts_from_zero() -> None:
    (nixl,) = (
        scrape_delta(parse_metrics_page(CONCURRENT), parse_metrics_page(SEQUENTIAL)).engines[0].transfers
    )
    assert nixl.count == 36


def test_data_parallel_engines_stay_apart() -> None:
    other = SEQUENTIAL.replace('engine="0"', 'engine="1"')
    page = parse_metrics_page(SEQUENTIAL + other)
    assert [e.engine for e in page.engines] == ["0", "1"]
    assert [e.transfers[0].count for e in page.engines] == [36, 36]


def test_mooncake_and_offloading() -> None:
    page = parse_metrics_page(
        'vllm:mooncake_xfer_time_seconds_count{engine="0"} 2\nvllm:mooncake_xfer_time_seconds_sum{engine="0"} 0.04\n'
        'vllm:mooncake_num_failed_recvs_total{engine="0"} 3\n'
        'vllm:kv_offload_store_bytes_total{engine="0",model_name="m"} 5\n'
        'vllm:simple_kv_offload_save_outcomes_total{engine="0",outcome="stored"} 7\n'
    )
    (engine,) = page.engines
    (mooncake,) = engine.transfers
    assert (mooncake.connector, mooncake.failed_recvs, mooncake.failed_transfers) == ("mooncake", 3, None)
    assert engine.others == {
        "vllm:kv_offload_store_bytes_total": 5,
        "vllm:simple_kv_offload_save_outcomes_total{outcome=stored}": 7,
    }


def test_quantile_of_an_open_bucket() -> None:
    assert Histogram(count=2, sum=9, buckets=((1.0, 1), (math.inf, 2))).quantile_bounds(0.9) == (
        1.0,
        math.inf,
    )
    assert Histogram(count=0, sum=0).mean is None


@pytest.mark.parametrize("page", ["", "<html>404</html>", '{"detail":"Not Found"}', "\x00\x01\x02"])
def test_not_a_metrics_page(page: str) -> None:
    with pytest.raises(FormatError):
        parse_metrics_page(page)


def test_foreign_prometheus_page_is_told_apart() -> None:
    assert not parse_metrics_page("process_cpu_seconds_total 4\n").is_vllm


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2000), st.text(max_size=6), st.integers(0, 20))
def test_damaged_page_gives_a_page_or_an_error(at: int, new: str, drop: int) -> None:
    text = SEQUENTIAL[:2000]
    try:
        page = parse_metrics_page(text[:at] + new + text[at + drop :])
    except FormatError:
        return
    for engine in page.engines:
        for transfer in engine.transfers:
            assert transfer.count is None or not math.isnan(transfer.count)
