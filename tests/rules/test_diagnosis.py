"""KVP211 and KVP212: only what an experiment showed is claimed."""

from __future__ import annotations

from typing import Any

from kvprobe.finding import Finding, Status
from kvprobe.rules.base import run_rules
from kvprobe.rules.diagnosis import RULES, DiagnosisFacts, Tried
from tests.ladders import policy

WITHOUT = Tried(name="without UCX_TLS", kind="cause", explains="UCX_TLS=^cuda_ipc keeps the fast transport away", settings=("unset UCX_TLS",), seconds=0.0116, samples=5, speedup=31.7, transport="cuda_ipc, zero-copy")  # fmt: skip
PIPELINE = Tried(name="UCX_RMA_PPLN_ENABLE=y", kind="remedy", explains="UCX's pipeline beats its emulation", settings=("export UCX_RMA_PPLN_ENABLE=y",), seconds=0.112, samples=5, speedup=3.3, transport="cma")  # fmt: skip
BUFFER = Tried(name="kv_buffer_device=cpu", kind="remedy", explains="a host buffer", seconds=0.018, staging_seconds=0.4, samples=3, speedup=0.8)  # fmt: skip
BROKEN = Tried(name="8 NIXL threads", kind="remedy", explains="threads", failure="decode was killed by SIGKILL.")  # fmt: skip


def findings(**more: Any) -> dict[str, Finding]:
    told = {"operation": "READ", "prompt_tokens": 2048, "baseline_seconds": 0.368, "baseline_samples": 7}
    return {f.id: f for f in run_rules(RULES, DiagnosisFacts(**{**told, **more}), policy())}


def test_a_cause_is_named_with_what_undoes_it() -> None:
    found = findings(experiments=(WITHOUT, PIPELINE, BROKEN), explained_by=("without UCX_TLS", "UCX_RMA_PPLN_ENABLE=y"))  # fmt: skip
    cause = found["KVP211"]
    assert cause.status is Status.WARN and "without UCX_TLS makes it 31.7 times as fast" in cause.title
    assert "368 ms before" in cause.title and cause.measured is not None and cause.measured.samples == 5
    assert cause.remedy is not None and cause.remedy.commands == ("unset UCX_TLS",)
    assert cause.notes == (PIPELINE.line, BROKEN.line) and "not measured, decode was killed" in BROKEN.line
    assert "KVP212" not in found, "a mended cause needs no way round"


def test_a_way_round_where_no_cause_was_found() -> None:
    found = findings(experiments=(PIPELINE, BUFFER), explained_by=("UCX_RMA_PPLN_ENABLE=y",), left_out=("8 NIXL threads",))  # fmt: skip
    assert "no experiment found the cause" in found["KVP211"].title
    assert found["KVP211"].notes[-1] == "not tried (time): 8 NIXL threads"
    way = found["KVP212"]
    assert "112 ms" in way.title and way.remedy is not None
    assert way.remedy.commands == ("export UCX_RMA_PPLN_ENABLE=y",)


def test_nothing_helped() -> None:
    found = findings(experiments=(BUFFER, BROKEN))
    assert set(found) == {"KVP211"} and "KVP212" in (
        found["KVP211"].remedy.text if found["KVP211"].remedy else ""
    )
    assert "18.0 ms + 400 ms staging copies, 0.800 times as fast" in found["KVP211"].notes[0]


def test_no_experiment_ran() -> None:
    found = findings(left_out=("without UCX_TLS",))
    assert found["KVP211"].status is Status.SKIP and "no experiment was run" in found["KVP211"].title
    assert found["KVP211"].notes == ("not tried (time): without UCX_TLS",)
