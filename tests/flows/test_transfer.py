"""`kvprobe transfer`: what is asked for is what is measured, and what it is held against."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.errors import ProbeError, UsageError
from kvprobe.finding import Status
from kvprobe.flows.transfer import (
    TransferRequest,
    build_steps,
    environment,
    measure_transfer,
    promised,
    setup_of,
)
from kvprobe.models.transfer import Setup
from kvprobe.probes import gpus
from tests.canned_nixl import CannedNixl, door
from tests.ladders import plan

QWEN = {"model": "Qwen/Qwen2.5-7B-Instruct", "decode_gpu": 1}


def ids(**params: Any) -> list[str]:
    plans = {n: plan(n) for n in params.get("prompt_tokens", (8192,))}
    return [s.id for s in build_steps(TransferRequest(**params), plans)]


def test_both_directions_and_orders_shortest_first() -> None:
    assert ids(prompt_tokens=(8192, 512))[0] == "read-shuffled-512"
    assert ids() == ["read-shuffled-8192", "read-contiguous-8192", "write-shuffled-8192", "write-contiguous-8192"]  # fmt: skip
    assert ids(op="write", order="shuffled") == ["write-shuffled-8192"]


def test_several_in_flight_only_for_the_longest_shuffled() -> None:
    found = ids(op="read", in_flight=(4, 2), prompt_tokens=(512, 8192))
    assert found == ["read-shuffled-512", "read-contiguous-512", "read-shuffled-8192", "read-shuffled-8192-x2", "read-shuffled-8192-x4", "read-contiguous-8192"]  # fmt: skip


def test_host_buffers_are_read_only() -> None:
    assert ids(kv_buffer_device="cpu", order="shuffled") == ["read-shuffled-8192"]


def test_environment_and_set_up() -> None:
    request = TransferRequest(env=("UCX_TLS=tcp", "A=b=c", "UCX_NET_DEVICES"), threads=8, processes=1)
    assert environment(request) == {"UCX_TLS": "tcp", "A": "b=c", "UCX_NET_DEVICES": None}
    assert setup_of(request).name == "vram 0->1, A=b=c, without UCX_NET_DEVICES, UCX_TLS=tcp, num_threads=8, one process"  # fmt: skip
    assert setup_of(TransferRequest(threads=0)).backend == {}
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        environment(TransferRequest(env=("=x",)))


def test_a_list_given_by_hand() -> None:
    asked = {"regions": 28, "descriptor_size": 32768, "blocks": 512, "decode_gpu": 1}
    draft = measure_transfer(door(CannedNixl(lambda setup, step: 0.05)), asked)
    assert {t["bytes"] for t in draft.result["transfers"]} == {469762048}
    for wrong in ({**asked, "blocks": None}, {**asked, "model": "x"}, {"decode_gpu": 1}):
        with pytest.raises(UsageError):
            measure_transfer(door(CannedNixl(lambda setup, step: 0.05)), wrong)


def test_what_was_promised_is_of_the_chosen_pair() -> None:
    seen = gpus.look(CannedNixl(lambda setup, step: 0.05))
    assert promised([seen], Setup(), "READ") is True and promised([seen], Setup(), "WRITE") is True
    assert promised([seen], Setup(prefill_gpu=2, decode_gpu=3), "READ") is None
    assert promised([], Setup(memory="dram"), "READ") is None


def test_emulation_fails_and_the_diagnosis_names_the_cause() -> None:
    system = CannedNixl(
        lambda setup, step: 0.05 if "without UCX_TLS" in setup else 1.27,
        slow=lambda setup: "without" not in setup,
        env={"UCX_TLS": "^cuda_ipc"},
    )
    draft = measure_transfer(door(system), {**QWEN, "diagnose": True})
    found = {f.id: f for f in draft.findings}
    assert found["KVP204"].status is Status.FAIL and "without UCX_TLS" in found["KVP211"].title
    assert draft.result["diagnosis"]["explained_by"] == ["without UCX_TLS"]


def test_nothing_measured_is_nothing_to_diagnose() -> None:
    system = CannedNixl(lambda setup, step: "decode was killed by SIGKILL.")
    with pytest.raises(ProbeError, match="nothing to diagnose: decode was killed"):
        measure_transfer(door(system), {**QWEN, "diagnose": True})


def test_levels_of_concurrency() -> None:
    def times(setup: str, step: str) -> float:
        return 0.05 * int(step.rpartition("-x")[2]) if "-x" in step else 0.05

    asked = {**QWEN, "op": "read", "order": "shuffled", "in_flight": (2, 4)}
    draft = measure_transfer(door(CannedNixl(times)), asked)
    told = {f.id: f for f in draft.findings}["KVP213"]
    assert draft.result["knee"] == 1 and [c["in_flight"] for c in draft.result["concurrency"]] == [1, 2, 4]
    assert "more than 1 at once gain nothing" in told.title


def test_one_level_is_no_concurrency() -> None:
    draft = measure_transfer(door(CannedNixl(lambda setup, step: 0.05)), QWEN)
    assert draft.result["concurrency"] is None and draft.result["knee"] is None
    assert "KVP213" not in {f.id for f in draft.findings}
    assert draft.result["transport"]["label"] == "cuda_ipc, zero-copy" and "ladder" not in draft.result
