"""`transfer --all-ranks` where the GPUs do not suffice: said, and not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.finding import Status
from kvprobe.flows import Door
from kvprobe.flows.ranks import all_ranks
from kvprobe.policy import parse_policy
from kvprobe.system import System

ROOT = Path(__file__).parent.parent.parent
POLICY = parse_policy((ROOT / "checks/profiles/default.toml").read_text(), "default")
ASKED: dict[str, Any] = {"model": "Qwen/Qwen2.5-7B-Instruct", "tp": 2, "prefill_tp": None, "prefill_gpu": 0, "decode_gpu": 2}  # fmt: skip


class TwoGpus(System):
    """This machine, with the GPUs that NVML told of on a host with two H200."""

    def __init__(self) -> None:
        lines = (ROOT / "samples/scenarios/h200-x2-nvlink/inputs.jsonl").read_text().splitlines()
        self.nvml = next(e["value"] for line in lines if (e := json.loads(line))["key"] == {"probe": "nvml"})

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        if kind == "workers":
            assert key == {"probe": "nvml"}, "nothing may be started"
            return self.nvml
        return look()


def test_four_ranks_do_not_fit_on_two_gpus() -> None:
    draft = all_ranks(Door(system=TwoGpus(), policy=POLICY), ASKED)
    (finding,) = draft.findings
    assert (finding.id, finding.status) == ("KVP240", Status.UNKNOWN)
    assert "it needs 4 GPUs (0 to 3), 2 are visible" in finding.title
    assert draft.result["ranks"] == [] and draft.result["not_measured"]
    assert [r["from"][0]["prefill_rank"] for r in draft.result["reads"]] == [0, 1]


def test_one_pair_too_large_for_its_gpus() -> None:
    asked = {**ASKED, "tp": 1, "decode_gpu": 1, "prompt_tokens": (4_000_000,)}
    (finding,) = all_ranks(Door(system=TwoGpus(), policy=POLICY), asked).findings
    assert finding.id == "KVP240" and "on each GPU" in finding.title


@pytest.mark.parametrize(
    ("change", "says"),
    [({"decode_gpu": 1}, "both sides"), ({"op": "write"}, "READ"), ({"in_flight": (2,)}, "one request"), ({"model": None}, "--model"), ({"regions": 3}, "from --model"), ({"visible": "both"}, "one process"), ({"diagnose": True}, "--diagnose")],
)  # fmt: skip
def test_impossible_requests(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        all_ranks(Door(system=TwoGpus(), policy=POLICY), {**ASKED, **change})
