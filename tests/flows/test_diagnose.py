"""Diagnosis by experiment: which experiments are run, when the search ends, what the budget leaves out."""

from __future__ import annotations

import pytest

from kvprobe.finding import Status
from kvprobe.flows.diagnose import describe, diagnose
from kvprobe.flows.pair_judgement import suspicious
from kvprobe.flows.preflight import preflight
from kvprobe.models.transfer import Setup
from tests.canned_nixl import CannedNixl, Times, door
from tests.ladders import EMULATED, ladder, plan, rung, series, transfer

BASE = series((0.368,) * 7, tokens=2048)


def without(variable: str, seconds: float = 0.0116) -> Times:
    return lambda setup, step: seconds if f"without {variable}" in setup else 0.368


def tried(system: CannedNixl, budget: float = 500.0) -> dict[str, object]:
    found, _ = diagnose(door(system), Setup(), plan(2048), BASE, budget_seconds=budget)
    return describe(found)


def test_the_first_cause_ends_the_search_for_causes_and_ways_round_are_still_measured() -> None:
    system = CannedNixl(without("UCX_TLS"), env={"UCX_TLS": "^cuda_ipc", "UCX_NET_DEVICES": "eth0"})
    result = tried(system)
    assert result["explained_by"] == ["without UCX_TLS"] and result["left_out"] == []
    assert not [s for s in system.setups if "UCX_NET_DEVICES" in s or "both GPUs" in s]
    assert any("UCX_RMA_PPLN_ENABLE=y" in s for s in system.setups)
    rows = result["experiments"]
    assert isinstance(rows, list) and rows[0]["speedup"] == pytest.approx(0.368 / 0.0116)
    assert rows[0]["transport"] == "cuda_ipc, zero-copy" and rows[0]["samples"] == 3


def test_nothing_explains() -> None:
    result = tried(CannedNixl(lambda setup, step: 0.368))
    assert result["explained_by"] == [] and result["left_out"] == []


def test_a_host_buffer_counts_with_its_copies() -> None:
    result = tried(CannedNixl(lambda setup, step: 0.15 if "kv_buffer_device" in setup else 0.368))
    rows = {row["name"]: row for row in result["experiments"]}  # type: ignore[attr-defined]
    assert rows["kv_buffer_device=cpu"]["staging_seconds"] == pytest.approx(0.3)
    assert result["explained_by"] == [], "0.45 s as a whole is no way round 0.368 s"


def test_an_experiment_that_dies_is_told_and_explains_nothing() -> None:
    result = tried(CannedNixl(lambda setup, step: "decode was killed by SIGSEGV."))
    rows = result["experiments"]
    assert isinstance(rows, list) and {row["failure"] for row in rows} == {"decode was killed by SIGSEGV."}
    assert all(row["seconds"] is None and row["speedup"] is None for row in rows)


def test_the_budget_leaves_out_by_name() -> None:
    system = CannedNixl(lambda setup, step: 0.368, each=30.0)
    result = tried(system, budget=60.0)
    assert len(system.setups) == 2 and len(result["left_out"]) == 4  # type: ignore[arg-type]
    assert tried(CannedNixl(lambda setup, step: 0.368), budget=5.0)["experiments"] == []


def test_after_ctrl_c_no_experiment_starts() -> None:
    system = CannedNixl(without("UCX_TLS"), env={"UCX_TLS": "tcp"})
    system.interrupted = True
    assert tried(system)["experiments"] == [] and system.setups == []


@pytest.mark.parametrize(
    ("rungs", "emulated", "expected"),
    [
        ((rung(1, 0.0012), rung(3, 0.0017)), False, False),
        ((rung(1, 0.0012), rung(3, 0.0049)), False, True),
        ((rung(1, None), rung(3, 1.0)), False, False),
        ((rung(1, None), rung(3, None)), True, True),
        ((rung(1, 0.0012), rung(3, None)), False, False),
    ],
)
def test_what_is_suspicious(rungs: tuple[object, ...], emulated: bool, expected: bool) -> None:
    run = transfer(series(), protocols=(EMULATED,)) if emulated else None
    assert suspicious(ladder(run, rungs=rungs)) is expected


def test_slow_descriptors_alone_are_not_suspicious() -> None:
    assert not suspicious(ladder(rungs=(rung(1, 0.0012), rung(3, 0.0017), rung(4, 5.0))))


PREFLIGHT = {"model": "Qwen/Qwen2.5-7B-Instruct", "ucx": False}


def test_preflight_looks_for_the_cause_by_itself() -> None:
    system = CannedNixl(
        lambda setup, step: 0.0116 if "without" in setup else 1.27,
        slow=lambda setup: "without" not in setup,
        env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )
    draft = preflight(door(system), PREFLIGHT)
    found = {f.id: f for f in draft.findings}
    assert found["KVP203"].status is Status.FAIL and found["KVP204"].status is Status.FAIL
    assert "without PYTORCH_ALLOC_CONF" in found["KVP211"].title
    assert draft.result["diagnosis"]["prompt_tokens"] == 2048
    assert found["KVP204"].remedy is not None and "KVP211" in found["KVP204"].remedy.text


@pytest.mark.parametrize("params", [{"diagnose": "off"}, {"diagnose_budget": 1.0}])
def test_preflight_without_experiments(params: dict[str, object]) -> None:
    system = CannedNixl(lambda setup, step: 1.27, slow=lambda setup: True)
    draft = preflight(door(system), {**PREFLIGHT, **params})
    assert len(system.setups) == 1
    told = [f for f in draft.findings if f.id == "KVP211"]
    assert [f.status for f in told] == ([] if "diagnose" in params else [Status.SKIP])


def test_a_healthy_pair_needs_no_experiment() -> None:
    system = CannedNixl(lambda setup, step: 0.05)
    draft = preflight(door(system), PREFLIGHT)
    assert len(system.setups) == 1 and "diagnosis" not in draft.result


def test_push_is_judged_by_writes_and_its_own_direction_of_p2p() -> None:
    system = CannedNixl(lambda setup, step: 0.04 if step.startswith("write") else 0.5)
    draft = preflight(door(system), {**PREFLIGHT, "connector": "push"})
    found = {f.id: f for f in draft.findings}
    assert found["KVP203"].status is Status.PASS and "NIXL WRITE" in found["KVP203"].title
    assert "Prefill GPU0 may write decode GPU1" in found["KVP101"].title
    assert found["KVP207"].status is Status.WARN
