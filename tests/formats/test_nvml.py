from __future__ import annotations

from typing import Any

import pytest

from kvprobe.errors import FormatError
from kvprobe.formats.nvml import GpuFacts, read_nvml

BUSES = ("00000000:07:00.0", "00000000:0F:00.0", "00000000:47:00.0")


def raw_gpu(index: int, links: list[dict[str, Any]], name: str = "A100") -> dict[str, Any]:
    return {"index": index, "name": name, "uuid": f"GPU-{index}", "bus": BUSES[index], "links": links}


def to(peer: int | None, state: int = 1, kind: int = 0, mbps: int | None = 25000) -> dict[str, Any]:
    bus = BUSES[peer].lower() if peer is not None else "FFFFFFFF:FF:FF.0"
    return {"state": state, "version": 4, "remote_type": kind, "remote_bus": bus, "mbps": mbps}


def machine(
    links: list[list[dict[str, Any]]],
    nvlink: int | None = 0,
    names: tuple[str, ...] = ("A100",) * 3,
    **env: str,
) -> GpuFacts:
    p2p = {"r": 0, "w": 0, "n": nvlink, "a": 0, "p": 0}
    count = len(links)
    pairs = [
        {"a": a, "b": b, "p2p": p2p, "ancestor": 50} for a in range(count) for b in range(count) if a != b
    ]
    gpus = [raw_gpu(i, link, names[i]) for i, link in enumerate(links)]
    return read_nvml({"driver": "580", "cuda": 12090, "nvml": "12", "gpus": gpus, "pairs": pairs}, env)


def between(facts: GpuFacts, a: int, b: int) -> int | None:
    pair = facts.pair(a, b)
    assert pair is not None
    return pair.nvlinks


def test_links_straight_to_a_peer_are_counted_per_peer() -> None:
    facts = machine([[to(1)] * 4 + [to(2)] * 2, [to(0)] * 4, [to(0)] * 2])
    assert (between(facts, 0, 1), between(facts, 0, 2)) == (4, 2)
    assert between(facts, 1, 2) is None  # the status says OK and no link names GPU2
    assert facts.gpus[0].nvlinks.remote == "gpu"


def test_through_a_switch_all_active_links_count() -> None:
    facts = machine([[to(None, kind=2)] * 12, [to(None, kind=2)] * 11 + [to(None, state=0, kind=2)]])
    assert (between(facts, 0, 1), facts.gpus[1].nvlinks.inactive) == (11, 1)


def test_no_nvlink_is_none_of_them_and_no_answer_is_unknown() -> None:
    assert between(machine([[], []], nvlink=5), 0, 1) == 0
    facts = machine([[], []], nvlink=None)
    pair = facts.pair(0, 1)
    assert pair is not None and (pair.nvlink, pair.read, pair.ancestor) == ("U", "OK", "SYS")


def test_the_slowest_link_counts_and_a_silent_one_makes_it_unknown() -> None:
    assert machine([[to(1), to(1, mbps=20000)], [to(0)]]).gpus[0].nvlinks.bytes_per_second_per_link == 20e9
    assert machine([[to(1), to(1, mbps=None)], [to(0)]]).gpus[0].nvlinks.bytes_per_second_per_link is None


def test_different_models_may_be_numbered_otherwise_by_cuda() -> None:
    names = ("A100", "L4", "L4")
    assert not machine([[], []], names=names).cuda_order_certain
    assert machine([[], []], names=names, CUDA_DEVICE_ORDER="PCI_BUS_ID").cuda_order_certain


def test_what_the_driver_leaves_out_is_none() -> None:
    gpu = machine([[]]).gpus[0]
    assert (gpu.memory_free_bytes, gpu.utilisation, gpu.mig, gpu.pcie.width) == (None, None, None, None)


@pytest.mark.parametrize(
    "raw", [{}, {"gpus": [{}], "pairs": []}, {"gpus": [], "pairs": [{"a": 0}]}, {"gpus": 3, "pairs": []}]
)
def test_a_damaged_answer_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="NVML worker's answer is damaged"):
        read_nvml(raw, {})
