"""`kvprobe tune`: what is measured in which order within the budget, and what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.errors import ProbeError, UsageError
from kvprobe.finding import Status
from kvprobe.flows import Draft
from kvprobe.flows.tune import tune
from tests.canned_nixl import CannedNixl, door

QWEN = {"model": "Qwen/Qwen2.5-7B-Instruct"}


def by_blocks(setup: str, step: str) -> float:
    """Descriptors decide, as over cuda_ipc: 52 ms with blocks of 16."""
    size = int(step.split("-")[1])
    return 0.004 + 0.048 * 16 / size


def run(system: CannedNixl, **params: Any) -> Draft:
    return tune(door(system), {**QWEN, "budget": 1000.0, **params})


def test_larger_blocks_win_where_descriptors_decide() -> None:
    system = CannedNixl(by_blocks)
    draft = run(system)
    best = draft.result["winner"]  # blocks of 256 are faster still, but not by 5 % of the whole tax
    assert best["settings"] == ["--block-size 128"] and best["way"] == "READ as now"
    assert best["speedup"] == pytest.approx(0.052 / 0.010) and len(best["costs"]) == 2
    base = draft.result["baseline"]
    assert base["block_size"] == 16 and base["descriptors"] == 14336 and base["speedup"] == 1.0
    gain = {f.id: f for f in draft.findings}["KVP220"]
    assert gain.status is Status.WARN and gain.remedy is not None
    assert gain.remedy.commands == ("--block-size 128",)
    assert system.setups[-1] == "vram 0->1" and system.steps[-1] == ["read-128"], "the winner once more"


def test_the_path_wins_where_ucx_emulates() -> None:
    system = CannedNixl(
        lambda setup, step: 0.39 if "UCX_RMA_PPLN_ENABLE=y" in setup else 1.27,
        slow=lambda setup: "PPLN" not in setup,
    )
    draft = run(system)
    assert "export UCX_RMA_PPLN_ENABLE=y" in draft.result["winner"]["settings"]
    assert draft.result["winner"]["speedup"] == pytest.approx(1.27 / 0.39)
    assert "PPLN" in system.setups[1], "under emulation the other path is tried first"


def test_the_host_buffer_counts_with_its_copies() -> None:
    def times(setup: str, step: str) -> float:
        return 0.05 if "kv_buffer_device=cpu" in setup else 1.27

    best = run(CannedNixl(times, slow=lambda s: True)).result["winner"]
    assert best["whole_seconds"] == pytest.approx(0.15) and best["stage_out_seconds"] == pytest.approx(0.05)
    assert '"kv_buffer_device": "cpu"' in best["settings"][0]
    assert any("prefill answers 50 ms later" in line for line in best["costs"])


def test_nothing_helps() -> None:
    draft = run(CannedNixl(lambda setup, step: 0.05))
    assert draft.result["winner"]["is_baseline"]
    assert [f.status for f in draft.findings if f.id == "KVP220"] == [Status.PASS]


def test_what_must_not_win_is_measured_and_says_why() -> None:
    def times(setup: str, step: str) -> float:
        return 0.001 if "fp8" in step or "packed" in step else 0.05

    draft = run(CannedNixl(times), vllm_version="0.33.0")
    assert draft.result["winner"]["is_baseline"]
    barred = [c for c in draft.result["candidates"] if not c["available"]]
    assert barred and all(c["why_not"] for c in barred)
    allowed = run(CannedNixl(times), allow_fp8=True).result["winner"]
    assert "--kv-cache-dtype fp8" in allowed["settings"] and any("numerics" in c for c in allowed["costs"])


def test_a_variable_in_the_way_is_found_unless_it_must_stay() -> None:
    def system() -> CannedNixl:
        return CannedNixl(lambda setup, step: 0.05 if "without UCX_TLS" in setup else 1.27, slow=lambda s: "without" not in s, env={"UCX_TLS": "^cuda_ipc"})  # fmt: skip

    assert run(system()).result["winner"]["settings"] == ["unset UCX_TLS"]
    kept = run(system(), keep=("UCX_TLS",))
    assert not [c for c in kept.result["candidates"] if "UCX_TLS" in c["way"]]


def test_the_budget_leaves_ways_out_by_name() -> None:
    draft = run(CannedNixl(by_blocks, each=30.0), budget=60.0)
    told = {f.id: f for f in draft.findings}["KVP221"]
    assert told.status is Status.WARN and draft.result["left_out"]
    assert f"{draft.result['left_out'][0]} (time budget)" in told.notes


def test_a_way_that_fails_is_told_and_the_rest_counts() -> None:
    def times(setup: str, step: str) -> float | str:
        return "decode was killed by SIGSEGV." if "num_threads=8" in setup else by_blocks(setup, step)

    draft = run(CannedNixl(times))
    assert draft.result["failures"] == ["8 NIXL threads: decode was killed by SIGSEGV."]
    assert draft.result["winner"]["settings"] == ["--block-size 128"]


def test_what_runs_now_must_be_measured() -> None:
    with pytest.raises(ProbeError, match="What runs now could not be measured: .*SIGKILL"):
        run(CannedNixl(lambda setup, step: "decode was killed by SIGKILL."))


def test_no_model_is_a_wrong_call() -> None:
    with pytest.raises(UsageError, match="needs --model"):
        tune(door(CannedNixl(by_blocks)), {})


def test_push_is_tuned_as_push() -> None:
    draft = run(CannedNixl(by_blocks), connector="push")
    assert draft.result["baseline"]["operation"] == "WRITE"
    assert draft.result["winner"]["settings"] == ["--block-size 128"]
