"""Advice on stated cases; each test changes one fact of a case that speaks for P/D."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvprobe.finding import Finding, Status
from kvprobe.models.advice import AdviceFacts, Case
from kvprobe.policy import Policy, Threshold
from kvprobe.rules.advice import RULES, advice_of
from kvprobe.rules.base import run_rules

POLICY = Policy(
    name="test",
    thresholds={"transfer_8k_seconds": Threshold(source="test", unit="s", warn_above=0.075, fail_above=0.2)},
)
CASE = Case(
    itl_slo_seconds=0.050, ttft_slo_seconds=1.0, base_ttft_seconds=0.204, requests_per_second=2.0, traffic="steady"
)  # fmt: skip
FACTS = AdviceFacts(prompt_tokens=8192, transfer_seconds=0.050, tax_seconds=0.108, case=CASE)


def advice(case: dict[str, Any] | None = None, **changes: Any) -> Finding:
    facts = msgspec.structs.replace(FACTS, case=msgspec.structs.replace(CASE, **(case or {})), **changes)
    return next(f for f in run_rules(RULES, facts, POLICY) if f.id == "KVP650")


def test_missed_gaps_and_a_fast_transfer_speak_for_the_split() -> None:
    found = advice()
    assert (found.code, found.status) == ("split", Status.PASS)
    # The stall of one prefill step, 204 ms, is predicted from the base TTFT.
    assert "204 ms" in found.title and "41 %" in found.title and "108 ms" in found.title


@pytest.mark.parametrize(
    ("case", "changes", "word"),
    [
        ({"ttft_slo_seconds": 0.3}, {}, "above 300 ms"),
        ({"ttft_slo_seconds": 0.1, "base_ttft_seconds": None}, {}, "the tax alone"),
        ({}, {"transfer_seconds": 1.3, "tax_seconds": 1.36, "lower_bound": False}, "1.30 s"),
        ({"traffic": "low"}, {}, "low"),
        ({"traffic": "bursty"}, {}, "bursty"),
    ],
)
def test_stay_colocated(case: dict[str, Any], changes: dict[str, Any], word: str) -> None:
    found = advice(case, **changes)
    assert (found.code, found.status) == ("colocate", Status.WARN)
    assert word in found.title
    assert found.remedy and "default in V1" in found.remedy.text
    commands = "\n".join(found.remedy.commands)
    for flag in ("--max-num-batched-tokens", "--max-num-seqs", "--enable-prefix-caching", "kvprobe compare"):
        assert flag in commands


def test_the_chunk_is_computed_from_the_target() -> None:
    # 50 ms of 204 ms for 8,192 tokens are 2,007 tokens; 1,792 is the next multiple of 256 below.
    found = advice({"traffic": "low"})
    assert found.remedy and "--max-num-batched-tokens 1792" in found.remedy.commands[0]
    assert "--itl-slo 50ms" in found.remedy.commands[-1] and "--ttft-slo 1s" in found.remedy.commands[-1]


def test_a_lower_bound_never_speaks_for_the_split() -> None:
    found = advice(lower_bound=True)
    assert (found.code, found.status) == ("measure_first", Status.UNKNOWN)
    # ... but it is enough against it.
    assert advice(lower_bound=True, transfer_seconds=0.5).code == "colocate"
    assert advice(transfer_seconds=None, tax_seconds=None).code == "measure_first"


def test_a_measured_tail_outweighs_the_predicted_stall() -> None:
    told = advice({"itl_p99_seconds": 0.030, "requests_per_second": 0.5})
    assert (told.code, told.status) == ("no_need", Status.PASS) and "30.0 ms" in told.title
    assert advice({"itl_p99_seconds": 0.170}).code == "split"


def test_smaller_chunks_today_count() -> None:
    """With 1,024 tokens a step the same prefill holds up decoding for 25 ms only."""
    told = advice({"max_num_batched_tokens": 1024, "requests_per_second": 0.5})
    assert told.code == "no_need" and "25.5 ms" in told.title


def test_longer_prompts_may_take_longer() -> None:
    """200 ms for 32k tokens is as fast as 50 ms for 8k."""
    assert (
        advice(prompt_tokens=32768, transfer_seconds=0.210, case={"ttft_slo_seconds": None}).code == "split"
    )


def test_the_policy_sets_the_limit_of_a_transfer() -> None:
    strict = Policy(
        name="strict", thresholds={"transfer_8k_seconds": Threshold(source="test", fail_above=0.010)}
    )
    assert advice_of(FACTS, strict).label == "colocate"
    assert advice_of(FACTS, Policy(name="empty")).label == "split"


def test_without_a_case_there_is_no_advice() -> None:
    found = run_rules(RULES, msgspec.structs.replace(FACTS, case=Case()), POLICY)
    assert [f.status for f in found] == [Status.SKIP]


@pytest.mark.parametrize(
    ("safe", "code", "status"),
    [
        (True, "bidirectional", Status.PASS),
        (False, "bidirectional_unsafe", Status.WARN),
        (None, "bidirectional_untested", Status.SKIP),
    ],
)
def test_growing_chats(safe: bool | None, code: str, status: Status) -> None:
    facts = msgspec.structs.replace(FACTS, template_safe=safe, case=Case(turns=5))
    found = next(f for f in run_rules(RULES, facts, POLICY) if f.id == "KVP660")
    assert (found.code, found.status) == (code, status)
    assert not [f for f in run_rules(RULES, FACTS, POLICY) if f.id == "KVP660"]


def test_render_moves_away_when_it_fills_a_core() -> None:
    busy, calm = (
        next(
            f
            for f in run_rules(RULES, msgspec.structs.replace(FACTS, render_core_share=s), POLICY)
            if f.id == "KVP661"
        )
        for s in (0.9, 0.2)
    )
    assert busy.status is Status.WARN and busy.remedy and "vllm launch render" in busy.remedy.commands[0]
    assert calm.status is Status.PASS and calm.remedy is None
