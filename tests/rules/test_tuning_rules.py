"""KVP220 and KVP221: what tuning may claim."""

from __future__ import annotations

from typing import Any

from kvprobe.finding import Finding, Status
from kvprobe.models.kv_layout import LayoutOptions, resolve
from kvprobe.models.transfer import Setup
from kvprobe.models.tuning import Cut, Way
from kvprobe.models.tuning_rank import Candidate, candidate_of
from kvprobe.rules.base import run_rules
from kvprobe.rules.tuning import RULES, TuneFacts
from tests.ladders import model, plan, policy, series

NOW = Way(name="READ as now", setup=Setup())
LAYOUT = resolve(model(), LayoutOptions(gpu_arch="sm90"))


def candidate(block_size: int, seconds: float, **more: Any) -> Candidate:
    cut = Cut(name=f"blocks of {block_size}", block_size=block_size, plan=plan(8192, block_size), flags=(f"--block-size {block_size}",), **more)  # fmt: skip
    return candidate_of(NOW, cut, series((seconds,) * 7), "cuda_ipc, zero-copy", None)


def findings(*candidates: Candidate, **more: Any) -> dict[str, Finding]:
    facts = TuneFacts(candidates=candidates, baseline=candidates[0], layout=LAYOUT, **more)
    return {f.id: f for f in run_rules(RULES, facts, policy())}


def test_a_gain_is_told_with_its_settings_and_costs() -> None:
    found = findings(candidate(16, 0.052), candidate(128, 0.00806))["KVP220"]
    assert found.status is Status.WARN and "8.06 ms instead of 52.0 ms, 6.45 times as fast" in found.title
    assert found.remedy is not None and found.remedy.commands == ("--block-size 128",)
    assert found.measured is not None and found.measured.samples == 7
    assert all(note.startswith("costs: ") for note in found.notes) and len(found.notes) == 2


def test_a_few_percent_are_no_gain() -> None:
    found = findings(candidate(16, 0.052), candidate(64, 0.050))["KVP220"]
    assert found.status is Status.PASS and "nothing measured beats" in found.title


def test_what_cannot_be_chosen_is_no_gain() -> None:
    found = findings(candidate(16, 0.052), candidate(256, 0.002, available=False))["KVP220"]
    assert found.status is Status.PASS


def test_a_whole_sweep_and_one_with_gaps() -> None:
    whole = findings(candidate(16, 0.052), candidate(64, 0.013))["KVP221"]
    assert whole.status is Status.PASS and whole.title == "2 combinations measured" and whole.remedy is None
    gaps = findings(candidate(16, 0.052), left_out=("8 NIXL threads",), failures=("WRITE: decode died.",))
    found = gaps["KVP221"]
    assert found.status is Status.WARN and "2 ways not" in found.title and found.remedy is not None
    assert found.notes == ("8 NIXL threads (time budget)", "WRITE: decode died.")
    assert findings(candidate(16, 0.052), failures=("WRITE: decode died.",))["KVP221"].remedy is None
