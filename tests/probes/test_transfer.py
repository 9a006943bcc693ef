"""Real NIXL transfers between two processes in host memory, and what happens when one of them dies."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import psutil
import pytest

from kvprobe.models.transfer import Setup, Step, StepGroup
from kvprobe.probes.transfer import measure
from kvprobe.processes import Event
from kvprobe.system import RecordingSystem, ReplaySystem, System

pytestmark = [
    pytest.mark.nixl,
    pytest.mark.skipif(
        not any(importlib.util.find_spec(n) for n in ("nixl_cu12", "nixl_cu13", "nixl")),
        reason="no NIXL wheel for this platform",
    ),
]
DRAM = Setup(memory="dram", progress_thread=False)


def step(
    op: str, order: str, blocks: int = 64, *, samples: int = 3, in_flight: int = 1, size: int = 4096
) -> Step:
    groups = (
        StepGroup(regions=4, descriptor_bytes=size, blocks=blocks),
        StepGroup(regions=2, descriptor_bytes=8192, blocks=5),
    )
    return Step(id=f"{op}-{order}-{in_flight}", op=op, order=order, prompt_tokens=blocks * 16, groups=groups, samples=samples, in_flight=in_flight)  # fmt: skip


def test_reads_and_writes_arrive_and_are_named() -> None:
    steps = [
        step("READ", "shuffled"),
        step("READ", "contiguous"),
        step("WRITE", "shuffled"),
        step("READ", "shuffled", in_flight=3),
    ]
    facts = measure(System(), DRAM, steps, budget_seconds=20).facts
    assert facts.failure is None and [s.id for s in facts.series] == [s.id for s in steps]
    for series in facts.series:
        assert series.verified and len(series.seconds) == 3 and len(series.cold_seconds) == 1
        assert min(series.seconds) > 0
    assert facts.series[0].bytes == 4 * 64 * 4096 + 2 * 5 * 8192
    assert facts.series[0].descriptors == 266
    # Blocks in order are merged: one descriptor a region.
    assert facts.series[1].nixl_descriptors == 6
    assert len(facts.series[3].request_seconds[0]) == 3
    assert facts.versions["nixl"] and facts.versions["ucx"] and facts.handshake_seconds
    assert facts.transport("READ") is not None


def test_tcp_is_seen_as_emulation() -> None:
    setup = Setup(memory="dram", progress_thread=False, env={"UCX_TLS": "tcp"})
    facts = measure(System(), setup, [step("READ", "shuffled")], budget_seconds=20).facts
    seen = facts.transport("READ")
    assert seen is not None and seen.emulated and seen.name == "tcp" and facts.series[0].verified


def test_one_process_for_both_sides() -> None:
    setup = Setup(memory="dram", processes=1)
    facts = measure(
        System(), setup, [step("READ", "shuffled"), step("WRITE", "shuffled")], budget_seconds=20
    ).facts
    assert facts.failure is None and all(s.verified for s in facts.series)


def test_an_unusable_transport_is_a_reason_with_a_next_step() -> None:
    setup = Setup(memory="dram", env={"UCX_TLS": "nosuch"})
    facts = measure(System(), setup, [step("READ", "shuffled")], budget_seconds=10).facts
    assert (
        facts.failure is not None
        and "UCX backend" in facts.failure
        and "UCX_TLS=nosuch" in facts.failure_remedy
    )
    assert facts.series == ()


def test_no_plugin_is_told() -> None:
    setup = Setup(memory="dram", env={"NIXL_PLUGIN_DIR": "/nonexistent"})
    facts = measure(System(), setup, [step("READ", "shuffled")], budget_seconds=10).facts
    assert facts.failure is not None and facts.series == ()


@pytest.mark.parametrize(("number", "role"), [(signal.SIGKILL, "prefill"), (signal.SIGKILL, "decode"), (signal.SIGSTOP, "prefill"), (signal.SIGSTOP, "decode")])  # fmt: skip
def test_a_side_that_dies_or_stops(number: signal.Signals, role: str) -> None:
    hit: list[int] = []

    def on_event(event: Event) -> None:
        if event["event"] == "sample" and not hit:
            mine = [p for p in psutil.Process().children() if "kvprobe.workers.nixl" in " ".join(p.cmdline())]
            mine.sort(key=lambda p: p.pid)
            hit.append(mine[role == "decode"].pid)
            os.kill(hit[0], number)

    long = Step(id="long", op="READ", order="shuffled", prompt_tokens=8192, groups=(StepGroup(regions=8, descriptor_bytes=32768, blocks=512),), samples=100000, max_seconds=60)  # fmt: skip
    before = set(Path("/dev/shm").iterdir())
    facts = measure(
        System(), DRAM, [long], budget_seconds=60, transfer_timeout_seconds=5, on_event=on_event
    ).facts
    assert facts.failure is not None
    expected = "SIGKILL" if number is signal.SIGKILL else "no sign of life"
    assert role in facts.failure and expected in facts.failure
    assert facts.series and not facts.series[0].verified
    assert not [
        p for p in psutil.Process().children() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    ]
    assert set(Path("/dev/shm").iterdir()) <= before


def test_recorded_and_replayed(tmp_path: Path) -> None:
    recording = RecordingSystem(tmp_path, {"command": "test", "params": {}})
    first = measure(recording, DRAM, [step("READ", "shuffled")], budget_seconds=10)
    recording.close()
    again = measure(ReplaySystem(tmp_path), DRAM, [step("READ", "shuffled")], budget_seconds=10)
    assert again.facts == first.facts


def test_other_block_sizes_and_layouts_share_one_registration() -> None:
    steps = []
    for regions, size, blocks in ((4, 4096, 64), (4, 16384, 16), (1, 16384, 64)):
        group = StepGroup(regions=regions, descriptor_bytes=size, blocks=blocks)
        steps.append(
            Step(
                id=f"{regions}x{size}",
                op="READ",
                order="shuffled",
                prompt_tokens=1024,
                groups=(group,),
                samples=2,
            )
        )
    facts = measure(System(), DRAM, steps, budget_seconds=20).facts
    assert facts.failure is None and all(s.verified for s in facts.series)
    assert [s.descriptors for s in facts.series] == [256, 64, 64]
    assert len({s.bytes for s in facts.series}) == 1
