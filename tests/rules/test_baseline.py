"""Against a baseline: regressions beyond spread and policy, differences said and not compared."""

from __future__ import annotations

import msgspec
import pytest

from kvprobe.cli.settings import load_profile
from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Status
from kvprobe.report import Report
from kvprobe.rules.baseline import compare, told_by
from tests.reports import SAMPLES, report, result

POLICY = load_profile("default")


def statuses(now: Report, before: Report | None) -> dict[str, set[Status]]:
    found: dict[str, set[Status]] = {}
    for finding in compare(told_by(now, before), POLICY):
        found.setdefault(finding.id, set()).add(finding.status)
    return found


def slower(factor: float, samples: tuple[float, ...] = SAMPLES) -> Report:
    return report(result=result(tuple(s * factor for s in samples)))


@pytest.mark.parametrize(
    ("factor", "status"),
    [(1.0, Status.PASS), (1.1, Status.PASS), (0.5, Status.PASS), (1.3, Status.WARN), (1.8, Status.FAIL)],
)
def test_a_link_that_became_slow_is_found_although_it_is_above_the_floor(
    factor: float, status: Status
) -> None:
    assert statuses(slower(factor), report()) == {"KVP910": {status}}


def test_what_the_spread_explains_is_no_regression() -> None:
    wide = (0.02, 0.03, 0.05, 0.08, 0.09)
    assert statuses(slower(1.3, wide), slower(1.0, wide)) == {"KVP910": {Status.PASS}}


def test_a_regression_says_then_and_now() -> None:
    (worst, *_) = compare(told_by(slower(1.8), report()), POLICY)
    assert "90.9 ms, was 50.5 ms" in worst.title and "80 % worse" in worst.title
    assert worst.measured and worst.measured.value == pytest.approx(0.8)
    assert worst.expected and "baseline_regression" in worst.expected.source


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"subject": {"model": "other"}}, "model Qwen/Qwen2.5-7B-Instruct then, other now"),
        ({"command": "topo"}, "command preflight then, topo now"),
    ],
)
def test_another_subject_is_said_not_compared(change: dict[str, object], told: str) -> None:
    (only,) = compare(told_by(report(**change), report()), POLICY)  # type: ignore[arg-type]
    assert (only.id, only.status) == ("KVP911", Status.WARN)
    assert told in only.title


@pytest.mark.parametrize(
    ("versions", "gpu", "told"),
    [
        ({"driver": "590.1"}, "NVIDIA H200", "driver 580.159.04 then, 590.1 now"),
        (
            {"driver": "580.159.04"},
            "NVIDIA H100",
            "GPUs NVIDIA H200, NVIDIA H200 then, NVIDIA H100, NVIDIA H100 now",
        ),
    ],
)
def test_another_machine_is_said_not_compared(versions: dict[str, str], gpu: str, told: str) -> None:
    seen = Evidence(
        id="gpus", kind="gpus", origin=Origin.READ, source="NVML",
        facts={"gpus": [{"name": gpu}, {"name": gpu}]}, versions=versions,
    )  # fmt: skip
    (only,) = compare(told_by(report(evidence=(seen,)), report()), POLICY)
    assert only.id == "KVP911" and told in only.title


def test_another_block_size_is_said_not_compared() -> None:
    other = result()
    other["kv"] = {**other["kv"], "block_size_tokens": 64}
    (only,) = compare(told_by(report(result=other), report()), POLICY)
    assert only.id == "KVP911" and "KV block_size_tokens 16 then, 64 now" in only.title


def test_of_all_pairs_each_pair_is_compared_with_itself() -> None:
    def pairs(first: float, second: float) -> Report:
        each = [
            {**result(tuple(s * f for s in SAMPLES)), "subject": name}
            for name, f in (("GPU0 -> GPU1", first), ("GPU1 -> GPU0", second))
        ]
        worst = max(each, key=lambda r: r["transfers"][0]["median_seconds"])
        return report(result={**worst, "pairs": each})

    # The worst pair is another one, and neither has changed by more than the policy allows.
    assert statuses(pairs(1.05, 1.0), pairs(1.0, 1.05)) == {"KVP910": {Status.PASS}}
    findings = compare(told_by(pairs(1.0, 1.8), pairs(1.0, 1.0)), POLICY)
    assert findings and all("GPU1 -> GPU0" in (f.where or "") for f in findings)


def test_rung_4_is_told_once() -> None:
    findings = compare(told_by(slower(1.8), report()), POLICY)
    assert (
        len(
            [
                f
                for f in findings
                if f.measured and "shuffled" in (f.where or "") and "8192" in (f.where or "")
            ]
        )
        == 1
    )
    assert not [f for f in findings if "rung=4" in (f.where or "")]


def test_no_baseline_and_nothing_in_common_are_unknown() -> None:
    assert statuses(report(), None) == {"KVP912": {Status.UNKNOWN}}
    assert statuses(report(result={}), report()) == {"KVP912": {Status.UNKNOWN}}


def test_four_samples_are_not_judged() -> None:
    few = report(result=result(SAMPLES[:4]))
    (only,) = compare(told_by(few, report()), POLICY)
    # Rung 1 of the sample report still has seven samples in both runs.
    assert only.status is Status.PASS and "1 medians" in only.title


def test_a_stored_report_compares_as_the_live_one() -> None:
    live, stored = slower(1.8), msgspec.json.decode(msgspec.json.encode(report()), type=Report)
    assert statuses(live, stored) == {"KVP910": {Status.FAIL}}
