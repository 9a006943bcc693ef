"""All ranks pulling at once: a real process each, in host memory, with the right bytes in the right slices."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from kvprobe.models.descriptors import DescriptorPlan, TransferGroup
from kvprobe.models.ranks import pair
from kvprobe.models.transfer import Setup
from kvprobe.probes.ranks import RanksJob, measure
from kvprobe.processes import Event
from kvprobe.system import System
from kvprobe.workers.memory import DramMemory, Piece
from tests.needs import NIXL
from tests.two_node_runs import finding, kvprobe

pytestmark = NIXL
DRAM = Setup(memory="dram", progress_thread=False)


def planned(tp: int, name: str = "full_attention") -> DescriptorPlan:
    heads = 4 // tp if name == "full_attention" else 4
    groups = (
        TransferGroup(name=name, regions=3, descriptor_bytes=1024 * heads, blocks=20),
        TransferGroup(name="indexer", regions=2, descriptor_bytes=512, blocks=20),
    )
    return DescriptorPlan(prompt_tokens=320, block_size_tokens=16, groups=groups, bytes_all_ranks=0)


def job(decode_tp: int, prefill_tp: int, name: str = "full_attention", **more: object) -> RanksJob:
    reads = pair(
        planned(decode_tp, name), planned(prefill_tp, name), decode_tp=decode_tp, prefill_tp=prefill_tp
    )
    told = {"samples": 3, "budget_seconds": 20.0, **more}
    return RanksJob(reads=reads, prefill_tp=prefill_tp, pools=((20, 40), (20, 40)), prompt_tokens=320, **told)  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("decode_tp", "prefill_tp", "name"),
    [(1, 1, "full_attention"), (2, 2, "full_attention"), (4, 2, "full_attention"), (2, 4, "full_attention"), (1, 2, "mla")],
)  # fmt: skip
def test_every_rank_gets_its_bytes(decode_tp: int, prefill_tp: int, name: str) -> None:
    run = measure(System(), DRAM, job(decode_tp, prefill_tp, name)).facts
    assert run.failure is None and len(run.ranks) == decode_tp and len(run.whole_seconds) == 3
    for rank in run.ranks:
        assert rank.verified and len(rank.together_seconds) == 3 and len(rank.late_seconds) == 3
        assert len(rank.alone_seconds) == (3 if decode_tp > 1 else 0)
        assert rank.bytes == planned(decode_tp, name).bytes
    assert run.whole_seconds[0] == max(r.together_seconds[0] for r in run.ranks)
    assert run.transport is not None and run.versions["nixl"]


def test_a_rank_that_dies_is_named() -> None:
    hit: list[int] = []

    def on_event(event: Event) -> None:
        if event["event"] == "sample" and not hit:
            mine = sorted(p.pid for p in psutil.Process().children() if "nixl_ranks" in " ".join(p.cmdline()))
            hit.append(mine[1])
            os.kill(hit[0], signal.SIGKILL)

    run = measure(System(), DRAM, job(2, 2, samples=100000, budget_seconds=60.0), on_event=on_event).facts
    assert run.failure is not None and "prefill-1 was killed by SIGKILL" in run.failure
    assert not all(r.verified for r in run.ranks)


def test_a_slice_from_another_place_or_rank_cannot_look_right() -> None:
    theirs, mine = DramMemory(), DramMemory()
    for memory in (theirs, mine):
        memory.allocate(8192)
    theirs.fill(77)
    mine.clear()
    source, target = theirs._regions[0].reshape(4, 512), mine._regions[0].reshape(8, 256)
    target[5, 128:256] = source[2, 256:384]
    right = Piece(512, 512, 2048, 1024, 77)
    assert mine.mismatches(0, 1024, [5], [2], right) == 0
    for wrong in (right._replace(their_offset=512), right._replace(pattern=78), right._replace(my_offset=0)):
        assert mine.mismatches(0, 1024, [5], [2], wrong) == 128
    assert mine.mismatches(0, 1024, [5], [3], right) == 128


def test_at_the_command_line() -> None:
    asked = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--all-ranks", "--prompt-tokens", "64", "--samples", "2", "--budget", "20s")  # fmt: skip
    with kvprobe(*asked, "--memory", "dram", "--tp", "2", "--prefill-tp", "4") as running:
        report = running.report()
    assert report["verdict"]["exit_code"] == 0 and finding(report, "KVP241")["status"] == "pass"
    assert [[s["prefill_rank"] for s in r["from"]] for r in report["result"]["reads"]] == [[0, 1], [2, 3]]
    ranks = report["result"]["ranks"]
    # 4 KV heads of 128 in bf16, K and V, 28 layers, 64 tokens, 2 of the heads on each decode rank.
    assert [r["bytes"] for r in ranks] == [2 * 2 * 128 * 2 * 28 * 64] * 2
    assert [r["descriptors"] for r in ranks] == [2 * 28 * 4] * 2
    with kvprobe(*asked, "--memory", "dram", "--tp", "2", "--prefill-tp", "8") as running:
        refused = running.report()
    assert refused["verdict"]["exit_code"] == 3 and "cannot be paired" in refused["error"]["reason"]
