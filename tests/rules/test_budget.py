"""The predicted tax against policy and target."""

from __future__ import annotations

import pytest

from kvprobe.finding import Finding, Status
from kvprobe.models.ttft import tax
from kvprobe.policy import Policy, Threshold
from kvprobe.rules.base import run_rules
from kvprobe.rules.budget import RULES, BudgetFacts

PLAIN = Policy(name="plain")
STRICT = Policy(
    name="strict",
    thresholds={"ttft_tax_seconds": Threshold(source="test", unit="s", warn_above=0.05, fail_above=0.2)},
)


def judge(
    policy: Policy, transfer: float | None = 0.05, slo: float | None = None, base: float | None = None
) -> list[Finding]:
    estimates = () if transfer is None else (tax(8192, transfer, vllm_version="0.30.0", bytes=448 * 2**20),)
    facts = BudgetFacts(estimates=estimates, judged_tokens=8192, ttft_slo_seconds=slo, base_ttft_seconds=base)
    return run_rules(RULES, facts, policy)


def test_nothing_asked_nothing_said() -> None:
    assert judge(PLAIN) == []


@pytest.mark.parametrize(
    ("transfer", "status"), [(0.05, Status.WARN), (1.3, Status.FAIL), (None, Status.UNKNOWN)]
)
def test_policy(transfer: float | None, status: Status) -> None:
    (found,) = judge(STRICT, transfer)
    assert (found.id, found.status) == ("KVP601", status)


def test_the_terms_and_their_origins_are_told() -> None:
    (found,) = judge(STRICT)
    assert any(n.startswith("transfer: 50.0 ms, measured") for n in found.notes)
    assert any("assumed (fitted to vLLM 0.30.0" in n for n in found.notes)


@pytest.mark.parametrize(
    ("slo", "base", "status"),
    [
        (0.5, 0.2, Status.PASS),  # 200 + 108 ms
        (0.32, 0.2, Status.WARN),  # p90 above
        (0.3, 0.2, Status.FAIL),
        (0.5, None, Status.UNKNOWN),  # the prefill's share is not known
        (0.05, None, Status.FAIL),  # the tax alone is too much
    ],
)
def test_slo(slo: float, base: float | None, status: Status) -> None:
    (found,) = judge(PLAIN, 0.05, slo, base)
    assert (found.id, found.status) == ("KVP602", status)
    assert (found.remedy is None) == (status is Status.PASS)
