"""KVP201 to KVP205: facts of one pair in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kvprobe.finding import Finding, Status, judge
from kvprobe.flows.preflight import RULES
from kvprobe.policy import Policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.rules.transfer import complete, contiguous, raw_copy, shuffled, transport
from tests.ladders import CUDA_IPC, EMULATED, ladder, policy, rung, series, transfer

POLICY = policy()
Check = Callable[[LadderFacts, Policy], Iterable[Finding]]


def one(check: Check, facts: LadderFacts) -> Finding:
    (found,) = check(facts, POLICY)
    return found


def emulated(**more: Any) -> LadderFacts:
    return ladder(transfer(series((1.27,) * 5), protocols=(EMULATED,)), **more)


# KVP201


def test_a_raw_copy_near_the_link_passes_with_its_share() -> None:
    found = one(raw_copy, ladder())
    assert found.status is Status.PASS and "80% of 18 NVLinks" in found.title
    assert found.measured is not None and found.measured.samples == 7
    assert found.expected is not None and found.expected.min == 0.6


def test_a_raw_copy_far_below_the_link_is_a_warning_with_a_remedy() -> None:
    found = one(raw_copy, ladder(rungs=(rung(0, 0.001), rung(1, 0.01))))
    assert found.status is Status.WARN and found.remedy is not None and "ACS" in found.remedy.text


def test_a_raw_copy_without_a_known_link_is_told_and_not_judged() -> None:
    found = one(raw_copy, ladder(rungs=(rung(0, None), rung(1, 0.01))))
    assert found.status is Status.PASS and found.expected is None and "10.0 ms" in found.title


def test_no_raw_copy_is_skipped_with_its_reason() -> None:
    missing = rung(1, None, note="torch is not installed: pip install 'kvprobe[gpu]'")
    found = one(raw_copy, ladder(rungs=(rung(0, 0.001), missing)))
    assert found.status is Status.SKIP and "pip install" in found.title
    assert one(raw_copy, ladder(rungs=())).title.endswith("not run")


def test_few_samples_of_a_raw_copy_are_said() -> None:
    found = one(raw_copy, ladder(rungs=(rung(1, 0.01, samples=(0.01, 0.01)),)))
    assert found.measured is not None and found.measured.note == "only 2 samples"


# KVP202


def test_contiguous_is_held_against_the_raw_copy_with_quartiles() -> None:
    found = one(contiguous, ladder())
    assert found.status is Status.PASS and "72.4 % of the raw copy" in found.title
    assert found.measured is not None and "quartiles" in (found.measured.note or "")


def test_contiguous_far_below_the_raw_copy_is_a_warning() -> None:
    found = one(contiguous, ladder(rungs=(rung(1, 0.0012), rung(3, 1.06))))
    assert found.status is Status.WARN and found.remedy is not None


def test_contiguous_without_a_raw_copy_is_told_and_not_judged() -> None:
    found = one(contiguous, ladder(rungs=(rung(1, None), rung(3, 0.0017))))
    assert found.status is Status.PASS and found.expected is None


def test_contiguous_that_was_not_measured_says_nothing() -> None:
    assert list(contiguous(ladder(rungs=(rung(1, 0.001), rung(3, None))), POLICY)) == []


# KVP203


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(0.0505, Status.PASS), (0.075, Status.PASS), (0.0751, Status.WARN), (0.2, Status.WARN), (0.201, Status.FAIL)],
)  # fmt: skip
def test_the_judged_transfer_against_the_policy(seconds: float, status: Status) -> None:
    found = one(shuffled, ladder(transfer(series((seconds,) * 5))))
    assert found.status is status and (found.remedy is None) == (status is Status.PASS)
    assert found.expected is not None and found.expected.max == (0.2 if status is Status.FAIL else 0.075)


def test_a_slow_transfer_names_rung_transport_price_and_largest_loss() -> None:
    found = one(shuffled, emulated())
    assert found.status is Status.FAIL
    assert "rung 4" in found.title and "tcp/lo, software emulation" in found.title and "1.27 s" in found.title
    assert "14,336 descriptors of 32.0 KiB, 88.6 us each" in found.notes[0]
    assert "rung 4 over rung 3" in found.notes[1]
    assert found.remedy is not None and "emulates" in found.remedy.text


def test_a_slow_zero_copy_transfer_blames_the_descriptors() -> None:
    found = one(shuffled, ladder(transfer(series((0.3,) * 5))))
    assert found.remedy is not None and "block-size" in found.remedy.text


def test_an_unknown_transport_is_said() -> None:
    found = one(shuffled, ladder(transfer(series(), protocols=())))
    assert found.status is Status.PASS and "over an unknown transport" in found.title


def test_few_samples_of_the_judged_transfer_are_said() -> None:
    found = one(shuffled, ladder(transfer(series((0.05, 0.051)))))
    assert found.measured is not None and found.measured.note == "only 2 samples"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (ladder(transfer(), reduced="8,192 tokens need 560 MiB"), "need 560 MiB"),
        (ladder(transfer(failure="decode was killed by SIGKILL.")), "killed by SIGKILL"),
        (ladder(transfer(series(tokens=512))), "was not measured"),
        (ladder(transfer(series(()))), "was not measured"),
    ],
)
def test_what_was_not_measured_is_unknown_with_its_reason(facts: LadderFacts, why: str) -> None:
    found = one(shuffled, facts)
    assert found.status is Status.UNKNOWN and why in found.title and found.measured is None


def test_push_is_judged_by_its_writes() -> None:
    run = transfer(series((0.3,) * 5), series((0.04,) * 5, op="WRITE"))
    found = one(shuffled, ladder(run, operation="WRITE"))
    assert found.status is Status.PASS and "NIXL WRITE" in found.title and "unknown transport" in found.title


# KVP204


def test_zero_copy_passes() -> None:
    found = one(transport, ladder())
    assert found.status is Status.PASS and "cuda_ipc, zero-copy (100% of the messages)" in found.title


def test_emulation_although_p2p_is_ok_fails() -> None:
    found = one(transport, emulated())
    assert found.status is Status.FAIL and "although P2P is OK" in found.title
    assert found.remedy is not None and "kvprobe transfer" in found.remedy.commands[0]
    assert any("PYTORCH_ALLOC_CONF" in note for note in found.notes)


@pytest.mark.parametrize("promised", [False, None])
def test_emulation_that_nobody_promised_away_is_a_warning(promised: bool | None) -> None:
    found = one(transport, emulated(promised_p2p=promised))
    assert found.status is Status.WARN and "although" not in found.title


def test_after_experiments_the_remedy_points_to_them() -> None:
    found = one(transport, emulated(diagnosed=True))
    assert found.remedy is not None and "KVP211" in found.remedy.text


def test_emulation_in_host_memory_names_its_own_causes() -> None:
    found = one(transport, emulated(memory="dram", promised_p2p=None))
    assert found.status is Status.WARN and "cma" in found.notes[0] and "PYTORCH" not in found.notes[0]


@pytest.mark.parametrize(("memory", "status"), [("vram", Status.UNKNOWN), ("dram", Status.WARN)])
def test_no_protocol_table_is_not_a_zero_copy_one(memory: str, status: Status) -> None:
    found = one(transport, ladder(transfer(series(), protocols=()), memory=memory))
    assert found.status is status and "not observed" in found.title


def test_only_the_other_direction_was_seen() -> None:
    found = one(transport, ladder(transfer(series(), protocols=(CUDA_IPC,)), operation="WRITE"))
    assert found.status is Status.UNKNOWN


def test_no_series_no_transport() -> None:
    assert list(transport(ladder(transfer()), POLICY)) == []


# KVP205


def test_all_bytes_arrived() -> None:
    found = one(complete, ladder(transfer(series(), skipped=("read-shuffled-32768",))))
    assert found.status is Status.PASS and found.title == "bytes verified in 1 of 1 series"
    assert found.notes == ("left out: read-shuffled-32768 (time budget)",)


def test_wrong_bytes_fail_even_when_fast() -> None:
    run = transfer(series(), failure="step read-shuffled-8192: 12 wrong words in the moved blocks.")
    found = one(complete, ladder(run))
    assert found.status is Status.FAIL and "wrong words" in found.title
    assert judge(run_rules(RULES, ladder(run), POLICY)).exit_code == 1


def test_a_side_that_died_is_unknown_and_what_it_measured_counts() -> None:
    run = transfer(series(), series((), tokens=32768), failure="decode was killed by SIGKILL.")
    found = one(complete, ladder(run))
    assert found.status is Status.UNKNOWN and "killed by SIGKILL" in found.title
    assert found.notes == ("series measured before: 2",)
    assert found.remedy is not None and "worker's log" in found.remedy.text
    assert judge(run_rules(RULES, ladder(run), POLICY)).exit_code == 3


def test_the_workers_own_remedy_and_an_interrupted_run() -> None:
    absent = transfer(failure="NIXL is not installed.", failure_remedy="pip install 'kvprobe[nixl]'")
    found = one(complete, ladder(absent))
    assert found.remedy is not None and found.remedy.text.startswith("pip install") and found.notes == ()
    stopped = one(complete, ladder(transfer(failure="prefill was interrupted.")))
    assert stopped.remedy is not None and stopped.remedy.text == "Run again."


def test_a_series_that_was_not_verified_is_unknown() -> None:
    found = one(complete, ladder(transfer(series(), series((0.001,), order="contiguous", verified=False))))
    assert found.status is Status.UNKNOWN and "1 of 2" in found.title


def test_nothing_ran() -> None:
    nothing = LadderFacts(subject="GPU0 -> GPU1", memory="vram", judged_tokens=8192)
    assert list(complete(nothing, POLICY)) == [] and list(transport(nothing, POLICY)) == []


def test_a_healthy_pair_is_go_with_nothing_to_mend() -> None:
    found = run_rules(RULES, ladder(), POLICY)
    assert judge(found, required=POLICY.required).exit_code == 0
    assert {f.status for f in found} == {Status.PASS} and not any(f.remedy for f in found)
