"""The charts of a comparison: drawn from real runs of the command, absent where nothing may be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.render.charts_compare import drawn

BENCH = Path(__file__).parent.parent / "cases" / "bench"


@pytest.fixture
def result(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*paths: str) -> dict[str, Any]:
        main(
            [
                "compare",
                *(str(BENCH / p) if "/" in p else p for p in paths),
                "--format",
                "json",
                "--progress",
                "off",
            ]
        )
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
        return found

    return run


def shown(result: dict[str, Any]) -> dict[str, str]:
    return {title: svg for title, _, svg in drawn(result) if svg}


def test_aggregates_give_bars_and_samples_give_curves(result: Any) -> None:
    bars = shown(result("B01-l40s-mixed/colocated.json", "B01-l40s-mixed/pd.json"))
    assert list(bars) == ["TTFT, both sides", "Token gaps, both sides"]
    assert "2.20 s" in bars["TTFT, both sides"] and "<script" not in bars["TTFT, both sides"]
    detailed = shown(result("S01-sweep/colocated/rate-2.json", "S01-sweep/pd/rate-2.json"))
    assert len(detailed) == 4


def test_a_sweep_is_drawn_over_the_rate(result: Any) -> None:
    found = shown(result("S01-sweep/colocated", "S01-sweep/pd"))
    # Without a target nobody knows what a good request is.
    assert list(found) == ["ITL p99 by request rate", "TTFT median by request rate"]
    with_targets = shown(result("S01-sweep/colocated", "S01-sweep/pd", "--itl-slo", "50ms"))
    assert "Goodput by request rate" in with_targets


@pytest.mark.parametrize("case", ["B12-pd-all-failed-zeros", "B11-saturated", "B13-same-file-twice"])
def test_what_may_not_be_compared_is_not_drawn(case: str, result: Any) -> None:
    assert drawn(result(f"{case}/colocated.json", f"{case}/pd.json")) == []


@pytest.mark.parametrize(
    "damaged",
    [
        {"comparable": True},
        {"comparable": True, "metrics": [], "series": 3},
        {
            "comparable": True,
            "metrics": {"median_ttft_ms": {"colocated": "x", "pd": None}},
            "series": {"pd": []},
        },
        {"comparable": True, "points": [{"comparable": True, "request_rate": "inf"}, 3]},
    ],
)
def test_a_stored_report_of_another_hand_draws_nothing(damaged: dict[str, Any]) -> None:
    assert shown(damaged) == {}
