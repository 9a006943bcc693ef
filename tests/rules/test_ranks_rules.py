"""What is said of ranks that pull together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvprobe.finding import Finding, Status
from kvprobe.models.ranks import RankSeries, RanksRun
from kvprobe.policy import parse_policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.ranks import RULES, RanksFacts

POLICY = parse_policy(
    (Path(__file__).parent.parent.parent / "checks/profiles/default.toml").read_text(), "default"
)


def run(*together: float, alone: float = 1.0, verified: bool = True, failure: str | None = None) -> RanksRun:
    ranks = tuple(
        RankSeries(
            rank=i, reads_from=(i,), place=f"GPU {i} -> GPU {i + 4}", bytes=10**9, descriptors=100,
            alone_seconds=(alone,) * 5, together_seconds=(seconds,) * 5, late_seconds=(1e-6,) * 5, verified=verified,
        )
        for i, seconds in enumerate(together)
    )  # fmt: skip
    return RanksRun(memory="vram", decode_tp=len(together), prefill_tp=len(together), prompt_tokens=16, order="shuffled",
                    ranks=ranks, whole_seconds=(max(together),) * 5, failure=failure)  # fmt: skip


def judged(found: RanksRun | None, **more: str) -> dict[str, Finding]:
    facts = RanksFacts(decode_tp=4, prefill_tp=4, run=found, **more)  # type: ignore[arg-type]
    return {f.id: f for f in run_rules(RULES, facts, POLICY)}


def test_ranks_on_links_of_their_own() -> None:
    found = judged(run(1.0, 1.1, 1.0, 1.05))
    assert {f.status for f in found.values()} == {Status.PASS} and list(found) == [
        "KVP241",
        "KVP242",
        "KVP243",
    ]
    assert (
        "3.64 GB/s together" in found["KVP242"].title and "rank 1 (GPU 1 -> GPU 5)" in found["KVP243"].title
    )


def test_ranks_that_share_a_path() -> None:
    found = judged(run(4.0, 4.0, 4.0, 4.0))
    assert found["KVP242"].status is Status.WARN and "4.00 times one alone" in found["KVP242"].title
    assert found["KVP243"].status is Status.PASS
    crowded = judged(run(4.0, 4.0, 4.0, 4.0), few_cores="8 processes on 2 cores")
    assert crowded["KVP242"].status is Status.PASS and "8 processes on 2 cores" in crowded["KVP242"].notes


@pytest.mark.parametrize(("alone", "says"), [(1.0, "shares a path"), (3.0, "as slow alone")])
def test_one_slow_rank_is_named_with_its_kind_of_cause(alone: float, says: str) -> None:
    found = judged(run(1.0, 1.0, 3.0, alone=alone))["KVP243"]
    assert found.status is Status.WARN and found.where == "GPU 2 -> GPU 6" and found.remedy is not None
    assert says in found.remedy.text


def test_what_was_not_measured_is_unknown() -> None:
    missing = judged(None, not_fitting="it needs 8 GPUs, 2 are visible here")
    assert list(missing) == ["KVP240"] and missing["KVP240"].status is Status.UNKNOWN
    dead = judged(msgspec.structs.replace(run(1.0, 1.0, verified=False, failure="prefill-1 was killed by SIGKILL."), whole_seconds=()))  # fmt: skip
    assert (
        dead["KVP241"].status is Status.UNKNOWN
        and "KVP242" not in dead
        and "0 of 2" in dead["KVP241"].notes[0]
    )
    wrong = judged(run(1.0, 1.0, verified=False, failure="Decode rank 0 found 8 wrong words after together."))
    assert wrong["KVP241"].status is Status.FAIL
    assert judged(run(1.0, 1.0, verified=False))["KVP241"].status is Status.UNKNOWN
