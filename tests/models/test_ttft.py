"""The tax model against recorded runs of real vLLM, and its behaviour at the edges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvprobe.errors import FormatError, UsageError
from kvprobe.evidence import Origin
from kvprobe.models import calibration as cal
from kvprobe.models import ttft

ROOT = Path(__file__).parent.parent.parent


def test_every_recorded_run_is_predicted_within_15_percent_or_10_ms() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/ttft_error.py"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = json.loads(done.stdout)
    assert {r["run"] for r in rows} == {p.stem for p in (ROOT / "samples/ttft").glob("0*.jsonl")}
    assert len(rows) == 19
    missed = [r for r in rows if abs(r["error_seconds"]) > max(0.010, 0.15 * r["measured_seconds"])]
    assert missed == []
    assert done.returncode == 0


def test_terms_add_up_and_tell_where_they_come_from() -> None:
    found = ttft.tax(8192, 0.05, vllm_version="0.30.0", bytes=1, transfer_source="rung 4")
    assert found.p50_seconds == pytest.approx(sum(t.seconds for t in found.terms))
    assert [t.name for t in found.terms] == [
        "transfer",
        "second HTTP hop",
        "scheduling and polling",
        "decode step",
    ]
    assert [t.origin for t in found.terms] == [Origin.MEASURED, *[Origin.ASSUMED] * 3]
    assert found.p90_seconds > found.p50_seconds
    assert found.exact_version
    assert all("nearest" not in t.source for t in found.terms)


def test_host_staging_costs_a_term_a_byte_on_each_side() -> None:
    plain = ttft.tax(8192, 0.05, vllm_version="0.26.0", bytes=448 * 2**20)
    staged = ttft.tax(8192, 0.05, vllm_version="0.26.0", bytes=448 * 2**20, kv_buffer_device="cpu")
    double = ttft.tax(8192, 0.05, vllm_version="0.26.0", bytes=896 * 2**20, kv_buffer_device="cpu")
    extra = staged.p50_seconds - plain.p50_seconds
    assert extra == pytest.approx(448 * 2**20 * 0.45e-9)
    assert double.p50_seconds - plain.p50_seconds == pytest.approx(2 * extra)
    assert {t.name for t in staged.terms} - {t.name for t in plain.terms} == {
        "host staging on prefill",
        "host staging on decode",
    }


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("0.26.1", "0.26.0"),
        ("0.27.0", "0.26.0"),
        ("0.28.0", "0.26.0"),
        ("0.29.0rc1", "0.30.0"),
        ("v0.33.0+cu130", "0.30.0"),
        ("0.11.0", "0.26.0"),
        (None, "0.30.0"),
        ("nightly", "0.30.0"),
    ],
)
def test_an_uncalibrated_version_uses_the_nearest_and_says_so(asked: str | None, used: str) -> None:
    found = ttft.tax(512, 0.0, vllm_version=asked, bytes=0)
    assert found.calibrated_on == used
    assert not found.exact_version
    source = found.terms[-1].source
    assert ("not known" if asked is None else f"used for {asked}") in source


def test_a_measured_step_replaces_the_assumed_one() -> None:
    found = ttft.tax(512, 0.0, vllm_version="0.30.0", bytes=0, step_seconds=0.02)
    step = found.terms[-1]
    assert (step.seconds, step.origin) == (0.02, Origin.MEASURED)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_transfer_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="transfer_seconds"):
        ttft.tax(512, bad, vllm_version="0.30.0", bytes=0)


def samples(constant: float, hop: float, each: float = 0.0, *lengths: int) -> list[cal.Sample]:
    return [
        cal.Sample(
            prompt_tokens=n,
            transfer_seconds=0.01,
            tax_seconds=0.01 + constant + hop * n + each * n * 57344,
            staged_bytes=n * 57344 if each else 0,
        )
        for n in lengths
    ]


def test_calibration_finds_the_terms_that_made_the_samples() -> None:
    fitted = cal.fit_constants(
        samples(0.05, 2e-6, 0.0, 512, 2048, 8192), vllm_version="0.33.0", step_seconds=0.005, source="live"
    )
    assert fitted.constants.schedule_seconds == pytest.approx(0.045)
    assert fitted.constants.hop_seconds_per_token == pytest.approx(2e-6)
    assert fitted.staging is None
    assert max(map(abs, fitted.errors)) < 1e-6


def test_calibration_finds_host_staging() -> None:
    made = [*samples(0.03, 1e-6, 0.0, 512, 8192), *samples(0.03, 1e-6, 4e-10, 512, 2048, 8192)]
    fitted = cal.fit_constants(made, vllm_version="0.33.0", step_seconds=0.005, source="live")
    assert fitted.staging is not None
    both = fitted.staging.prefill_seconds_per_byte + fitted.staging.decode_seconds_per_byte
    assert both == pytest.approx(4e-10, rel=1e-3)


def test_one_prompt_length_keeps_the_built_in_hop() -> None:
    fitted = cal.fit_constants(
        samples(0.05, 2e-6, 0.0, 8192), vllm_version="0.30.0", step_seconds=0.005, source="live"
    )
    assert fitted.hop_fixed
    assert fitted.constants.hop_seconds_per_token == ttft.BUILT_IN[1].hop_seconds_per_token
    assert abs(fitted.errors[0]) < 1e-9


def test_a_tax_below_its_transfer_cannot_be_calibrated_on() -> None:
    made = [cal.Sample(prompt_tokens=512, transfer_seconds=0.5, tax_seconds=0.1)]
    with pytest.raises(UsageError, match="leaves no time"):
        cal.fit_constants(made, vllm_version="0.30.0", step_seconds=0.005, source="live")


def test_the_file_round_trips_and_names_itself_as_source() -> None:
    made = samples(0.05, 2e-6, 0.0, 512, 2048, 8192)
    fitted = cal.fit_constants(made, vllm_version="0.33.0", step_seconds=0.005, source="30 live requests")
    file = cal.CalibrationFile(constants=(fitted.constants,), samples=tuple(made))
    again, usable = cal.parse_calibration(cal.encode_calibration(file).decode(), "pd.json")
    assert again == file
    found = ttft.tax(2048, 0.01, vllm_version="0.33.0", bytes=0, calibration=usable)
    assert found.p50_seconds == pytest.approx(made[1].tax_seconds)
    assert found.terms[-1].source == "pd.json: 30 live requests"
    assert found.terms[-1].origin is Origin.READ


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\xff",
        "[]",
        "{}",
        '{"schema": "kvprobe.report/v1", "constants": []}',
        '{"constants": []}',
        '{"constants": [{"vllm_version": "0.30.0", "hop_seconds_per_token": -1, "schedule_seconds": 0, "step_seconds": 0, "source": ""}]}',
        '{"constants": [{"vllm_version": "x", "hop_seconds_per_token": 0, "schedule_seconds": 0, "step_seconds": 0, "source": ""}]}',
        '{"constants": [{"vllm_version": "0.30.0", "hop": 0}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_calibration_file_is_a_clear_error(text: str) -> None:
    with pytest.raises(FormatError, match="pd.json"):
        cal.parse_calibration(text, "pd.json")


def test_the_usual_transfer_is_found_beside_one_slow_one() -> None:
    # Two transfers of 40 and 60 ms: mean 50, numpy P90 58. Three of 100, 100 and 400: mean 200, P90 340.
    assert cal.warm_transfer_seconds(2, 0.050, 0.058) == pytest.approx(0.040)
    assert cal.warm_transfer_seconds(3, 0.200, 0.340) == pytest.approx(0.100)
    assert cal.warm_transfer_seconds(1, 0.050, 0.050) == 0.050
    assert cal.warm_transfer_seconds(50, 0.050, 0.058) == 0.050
