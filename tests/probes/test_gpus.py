"""The NVML worker runs for real, against a stand-in for the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvprobe.errors import ProbeError
from kvprobe.models.link import link_ceiling
from kvprobe.probes import gpus
from kvprobe.processes import WorkerJob, WorkerOutcome
from kvprobe.system import System

STAND_INS = Path(__file__).parent.parent / "workers" / "stand_ins"


class Node(System):
    """This machine with the stand-in NVML, chosen device files and a chosen environment."""

    def __init__(self, machine: str, env: dict[str, str] | None = None, files: Sequence[str] = ()) -> None:
        self.machine, self.env, self.files = machine, env or {}, files

    def observe(self, kind: str, key: Any, look: Any) -> Any:
        if kind == "environ":
            return {k: v for k, v in self.env.items() if k in key}
        if kind == "path":
            return "file" if key in self.files else "absent"
        if kind == "dir":
            return ["card0", "card0-DP-1"] if "drm" in self.files else []
        if kind == "file":
            return "0x1002\n"
        return look()

    def run_workers(self, jobs: Sequence[WorkerJob], **options: Any) -> list[WorkerOutcome]:
        env: dict[str, str | None] = {"STANDIN_NVML": self.machine, "PYTHONPATH": f"{STAND_INS}:{Path.cwd()}"}
        if self.machine == "hang":
            options["deadline_seconds"] = 1.0
        return super().run_workers([msgspec.structs.replace(j, env=env) for j in jobs], **options)


def test_two_h200_behind_a_switch() -> None:
    evidence = gpus.look(Node("h200"))
    facts = evidence.facts
    assert (facts.driver, facts.cuda, evidence.source) == ("580.159.04", "13.0", "NVML")
    first = facts.gpus[0]
    assert (first.name, first.pci_bus, first.compute_capability) == ("NVIDIA H200", "00000000:00:06.0", "9.0")
    assert (first.memory_used_bytes, first.utilisation, first.mig) == (0, 0.07, False)
    assert (first.nvlinks.active, first.nvlinks.version, first.nvlinks.remote) == (18, "4.0", "switch")
    pair = facts.pair(1, 0)
    assert pair is not None
    assert (pair.read, pair.write, pair.nvlink, pair.atomics, pair.prop) == ("OK", "OK", "OK", "OK", "NS")
    assert (pair.ancestor, pair.nvlinks) == ("PHB", 18)
    assert facts.pair(0, 2) is None
    ceiling = link_ceiling(first, pair)
    assert ceiling.bytes_per_second == pytest.approx(18 * 26.562e9)
    assert ceiling.basis == "18 NVLinks x 26.562 GB/s"


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("1", [None, 0]),
        ("", [None, None]),
        ("0,9,1", [0, None]),
        ("GPU-00000001", [None, 0]),
        ("GPU-0000000", [None, None]),
        ("0,0", [0, None]),
    ],
)
def test_cuda_visible_devices(visible: str | None, ordinals: list[int | None]) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    facts = gpus.look(Node("h200", env)).facts
    assert [g.cuda_index for g in facts.gpus] == ordinals


def test_pair_by_cuda_ordinal() -> None:
    facts = gpus.look(Node("h200", {"CUDA_VISIBLE_DEVICES": "1,0"})).facts
    prefill, decode = gpus.require_pair(facts, 0, 1)
    assert (prefill.index, decode.index) == (1, 0)
    assert prefill.label == "GPU1 (cuda:0)"
    with pytest.raises(ProbeError, match="decode GPU 7 is not here; visible are 0, 1"):
        gpus.require_pair(facts, 0, 7)
    with pytest.raises(ProbeError, match="both GPU 1"):
        gpus.require_pair(facts, 1, 1)
    one = gpus.look(Node("h200", {"CUDA_VISIBLE_DEVICES": "1"})).facts
    with pytest.raises(ProbeError, match="Only 1 GPU is visible here.*hides 1 more"):
        gpus.require_pair(one, 0, 1)


@pytest.mark.parametrize(
    ("machine", "files", "told"),
    [
        ("no-driver", (), "No NVIDIA driver is installed here"),
        ("no-driver", ("/dev/nvidiactl",), "libnvidia-ml.so.1"),
        ("no-driver", ("/dev/kfd",), "from AMD; kvprobe measures NVIDIA GPUs only"),
        ("no-driver", ("drm",), "from AMD"),
        ("no-driver", ("/dev/davinci_manager",), "from Huawei Ascend"),
        ("no-gpu", (), "shows no GPU"),
        ("hang", (), "did not answer within"),
    ],
)
def test_what_is_missing_is_named(machine: str, files: tuple[str, ...], told: str) -> None:
    with pytest.raises(ProbeError) as caught:
        gpus.look(Node(machine, files=files))
    assert told in caught.value.reason
    assert caught.value.remedy
