"""The findings: what is WARN, what is FAIL, and what never is GO."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.assets import profile_path
from kvprobe.finding import Finding, Status, judge
from kvprobe.formats.vllm_log import Interval
from kvprobe.models.log_facts import CacheDifference, LogFacts, Recompute
from kvprobe.models.log_meaning import assessment, judged_seconds, meaning
from kvprobe.models.log_summary import Aggregate
from kvprobe.policy import Policy, parse_policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.logs import RULES

DEFAULT = parse_policy(profile_path("default").read_text(), "profile default")


def sums(
    n: int = 10, ms: float = 30.0, mib: float = 448.0, post: float = 0.1, descriptors: float = 512.0
) -> Aggregate:
    a = Aggregate()
    a.add(
        Interval(
            num_successful_transfers=n,
            avg_xfer_time_ms=ms,
            p90_xfer_time_ms=ms,
            avg_post_time_ms=ms * post,
            p90_post_time_ms=ms * post,
            avg_mib_per_transfer=mib,
            throughput_mib_per_s=mib / ms * 1e3,
            avg_num_descriptors=descriptors,
        )
    )
    return a


def facts(a: Aggregate | None = None, **changes: Any) -> LogFacts:
    total = a or Aggregate()
    values = {
        "origin": "log",
        "sources": ("decode.log",),
        "total": total,
        "warm": total,
        "meaning": meaning(total),
    }
    return LogFacts(**{**values, **changes})


def findings(told: LogFacts, policy: Policy = DEFAULT) -> dict[str, Finding]:
    return {f.id: f for f in run_rules(RULES, told, policy)}


def test_nothing_to_judge_is_unknown_and_says_where_to_look() -> None:
    found = findings(facts())
    assert found["KVP401"].status is Status.UNKNOWN and found["KVP401"].remedy
    assert judge(list(found.values())).exit_code == 3
    only = findings(facts(others=("OffloadingConnector",)))["KVP401"]
    assert only.status is Status.UNKNOWN and "OffloadingConnector" in only.title


@pytest.mark.parametrize(
    ("ms", "mib", "status"),
    [
        (30.0, 448.0, Status.PASS),
        (150.0, 448.0, Status.WARN),
        (1297.5, 448.0, Status.FAIL),
        (300.0, 4096.0, Status.PASS),
        (3000.0, 4096.0, Status.FAIL),
    ],
)
def test_time_is_judged_per_gib_beyond_one(ms: float, mib: float, status: Status) -> None:
    assert findings(facts(sums(ms=ms, mib=mib)))["KVP402"].status is status


def test_transfers_without_times_are_unknown() -> None:
    a = Aggregate()
    a.add(Interval(num_successful_transfers=5))
    found = findings(facts(a))
    assert (found["KVP401"].status, found["KVP402"].status) == (Status.PASS, Status.UNKNOWN)


def test_zeros_are_never_fast() -> None:
    a = Aggregate()
    a.add(Interval(num_successful_transfers=0, avg_xfer_time_ms=0.0, num_failed_transfers=3))
    found = findings(facts(a))
    assert "KVP402" not in found and judged_seconds(a) is None
    assert found["KVP401"].title.startswith("0 successful transfers, 3 failed")
    assert assessment(a, a, [], 0.2)["verdict"] == "transfers_failing"


def test_descriptors_warn_only_where_the_transfer_is_not_fast() -> None:
    slow, fast = (
        sums(ms=173.794, mib=313.0, post=0.743, descriptors=40064.0),
        sums(ms=50.0, post=0.86, descriptors=14336.0),
    )
    found = findings(facts(slow))["KVP403"]
    assert found.status is Status.WARN and "40,064 descriptors of 8.00 KiB" in found.title
    assert "block-size" in (found.remedy.text if found.remedy else "")
    assert findings(facts(fast))["KVP403"].status is Status.PASS
    assert assessment(slow, slow, [], 0.2)["verdict"] == "descriptor_bound"


@pytest.mark.parametrize(
    ("a", "bound", "looks"),
    [
        (sums(ms=1297.5, post=0.01, descriptors=28672.0), "bytes", "TCP software emulation"),
        (
            sums(ms=50.0, post=0.86, descriptors=14336.0),
            "descriptors",
            "CUDA IPC or RDMA held back by descriptors",
        ),
        (sums(ms=2.0, post=0.2, descriptors=28.0), "bytes", "NVLink"),
        (Aggregate(), "unknown", None),
    ],
)
def test_what_the_numbers_look_like(a: Aggregate, bound: str, looks: str | None) -> None:
    found = meaning(a)
    assert (found.bound, found.looks_like) == (bound, looks)


def test_damaged_lines_and_silent_zeros_warn() -> None:
    found = findings(facts(sums(), damaged=3, silent_zeros=2))
    assert found["KVP405"].status is Status.WARN and found["KVP409"].status is Status.WARN
    few = sums()
    few.intervals = 1000
    assert findings(facts(few, damaged=1))["KVP405"].status is Status.PASS


@pytest.mark.parametrize(
    ("computed", "status"), [(100.0, Status.PASS), (80_000.0, Status.WARN), (900_000.0, Status.FAIL)]
)
def test_decode_that_computes_prompts(computed: float, status: Status) -> None:
    one = Recompute(url="u", engine="0", computed=computed, external=800_000.0, cached=0.0, requests=100.0)
    assert findings(facts(sums(), origin="/metrics", recompute=(one,)))["KVP407"].status is status
    empty = Recompute(url="u", engine="0", computed=0.0, external=0.0, cached=0.0, requests=None)
    assert "KVP407" not in findings(facts(sums(), recompute=(empty,)))


def test_cache_configuration() -> None:
    assert "KVP408" not in findings(facts(sums()))
    assert findings(facts(sums(), cache_differences=()))["KVP408"].status is Status.PASS
    layout = CacheDifference(name="kv_cache_layout", prefill="LBHNC", decode="LBNHC")
    block = CacheDifference(name="block_size", prefill="16", decode="64")
    assert findings(facts(sums(), cache_differences=(layout,)))["KVP408"].status is Status.FAIL
    assert findings(facts(sums(), cache_differences=(block,)))["KVP408"].status is Status.WARN


def test_a_policy_without_these_thresholds_still_works() -> None:
    bare = Policy(name="bare")
    found = findings(facts(sums(ms=900.0)), bare)
    assert found["KVP402"].status is Status.PASS and found["KVP402"].expected is None
