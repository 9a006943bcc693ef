"""Tuning: what is tried in which order, who wins, what the winner is set with and what it costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvprobe.models.kv_layout import KvLayout, LayoutOptions, resolve
from kvprobe.models.transfer import Setup
from kvprobe.models.tuning import Cut, Planned, Way, cuts, promising_first, ways
from kvprobe.models.tuning_rank import Candidate, candidate_of, costs, flags, rank, winner
from tests.ladders import model, plan, series


@pytest.fixture
def layout() -> KvLayout:
    return resolve(model(), LayoutOptions(gpu_arch="sm90"))


def way(name: str = "READ as now", changes: int = 0, operation: str = "READ", settings: tuple[str, ...] = (), **setup: Any) -> Way:  # fmt: skip
    return Way(name=name, setup=Setup(**setup), operation=operation, changes=changes, settings=settings)


def cut(block_size: int = 16, **more: Any) -> Cut:
    flag = () if block_size == 16 else (f"--block-size {block_size}",)
    told = {"name": f"blocks of {block_size}", "flags": flag, "plan": plan(8192, block_size), **more}
    return Cut(block_size=block_size, **told)


def candidate(
    seconds: float, *, by: Way | None = None, cut_: Cut | None = None, copies: float = 0.0
) -> Candidate:
    staged = {"stage_out_seconds": (copies / 2,) * 3, "stage_in_seconds": (copies / 2,) * 3} if copies else {}
    return candidate_of(by or way(), cut_ or cut(), series((seconds,) * 3, **staged), "cuda_ipc, zero-copy", None)  # fmt: skip


def test_what_runs_now_comes_first_and_unsetting_is_the_smaller_change() -> None:
    now, *tried = ways(Setup(), {"UCX_TLS": "tcp"}, "READ")
    by_name = {w.name: w for w in tried}
    assert now.changes == 0 and now.settings == ()
    assert by_name["without UCX_TLS"].changes == 1 and by_name["8 NIXL threads"].changes == 2
    assert by_name["WRITE instead of READ"].operation == "WRITE"


def test_under_emulation_another_path_is_tried_before_the_direction() -> None:
    _, *tried = ways(Setup(), {"UCX_TLS": "^cuda_ipc"}, "READ")
    slow = [w.name for w in promising_first(tried, emulated=True)]
    fast = [w.name for w in promising_first(tried, emulated=False)]
    assert slow[0] == fast[0] == "without UCX_TLS"
    assert slow.index("UCX_RMA_PPLN_ENABLE=y") < slow.index("WRITE instead of READ")
    assert fast.index("8 NIXL threads") < fast.index("kv_buffer_device=cpu")
    assert sorted(slow) == sorted(w.name for w in tried)


def test_the_least_tax_wins() -> None:
    best = candidate(0.008, cut_=cut(128))
    assert winner([candidate(0.05), best, candidate(0.03, cut_=cut(32))]) is best


def test_among_near_equals_the_smaller_change_wins_then_the_smaller_blocks() -> None:
    now, other = candidate(0.010, cut_=cut(256)), candidate(0.0095, cut_=cut(256), by=way("x", 2))
    assert winner([other, now]) is now
    small, large = candidate(0.0105, cut_=cut(128)), candidate(0.010, cut_=cut(256))
    assert winner([large, small]) is small


def test_what_cannot_be_chosen_never_wins_and_ranks_last() -> None:
    packed = candidate(0.001, cut_=cut(256, packed=True, available=False, why_not="not in this vLLM"))
    slow = candidate(0.05)
    assert winner([packed, slow]) is slow and rank([packed, slow]) == (slow, packed)
    assert winner([packed]) is None and winner([]) is None


def test_staging_copies_count() -> None:
    staged = candidate(0.02, by=way("host", 2, kv_buffer_device="cpu"), copies=0.1)
    assert staged.whole_seconds == pytest.approx(0.12)
    plain = candidate(0.1)
    assert staged.tax is not None and plain.tax is not None
    assert staged.tax.p50_seconds - plain.tax.p50_seconds == pytest.approx(0.02)
    assert [t.name for t in staged.tax.terms[-2:]] == ["host staging on prefill", "host staging on decode"]
    assert winner([staged, plain]) is plain


def test_what_runs_now_needs_no_flag() -> None:
    assert flags(candidate(0.05)) == []
    assert flags(candidate(0.05, by=way(operation="WRITE")), "WRITE") == []


def test_flags_can_be_copied() -> None:
    changed = way("x", 2, env={"UCX_TLS": None, "UCX_RMA_PPLN_ENABLE": "y"})
    assert flags(candidate(0.01, by=changed, cut_=cut(128))) == [
        "unset UCX_TLS",
        "export UCX_RMA_PPLN_ENABLE=y",
        "--block-size 128",
    ]


def test_the_transfer_config_is_written_for_both_sides() -> None:
    host = way("host", 2, kv_buffer_device="cpu", backend={"num_threads": "8"})
    lines = flags(candidate(0.01, by=host))
    assert [line.split(":")[0] for line in lines] == ["prefill", "decode"]
    configs = [json.loads(line.split("'")[1]) for line in lines]
    assert [c["kv_role"] for c in configs] == ["kv_producer", "kv_consumer"]
    assert configs[0]["kv_buffer_device"] == "cpu"
    assert configs[0]["kv_connector_extra_config"] == {"num_threads": 8}


@pytest.mark.parametrize(("now", "then", "name"), [("READ", "WRITE", "NixlPushConnector"), ("WRITE", "READ", "NixlConnector")])  # fmt: skip
def test_another_direction_is_another_connector(now: str, then: str, name: str) -> None:
    lines = flags(candidate(0.01, by=way(operation=then)), now)
    assert all(f'"kv_connector": "{name}"' in line for line in lines) and len(lines) == 2


def test_visible_gpus_are_set_on_each_side() -> None:
    lines = ("prefill: export CUDA_VISIBLE_DEVICES=0,1", "decode: export CUDA_VISIBLE_DEVICES=1,0")
    assert flags(candidate(0.01, by=way("both", 1, visibility="both", settings=lines))) == list(lines)


@pytest.mark.parametrize(
    ("version", "setting"), [("0.28.1", "enable_cross_layers_blocks"), ("0.16.0", "enable_cross_layers_blocks")]
)  # fmt: skip
def test_packed_layers_where_vllm_had_them(layout: KvLayout, version: str, setting: str) -> None:
    (found,) = cuts(layout, [Planned(block_size=64, packed=True, plan=plan(8192, 64))], version)
    assert found.available and found.slug == "64-packed"
    lines = flags(candidate(0.01, cut_=found))
    assert lines[0] == "--block-size 64" and setting in lines[1]


@pytest.mark.parametrize("version", ["0.29.0", "0.33.0", "1.2", None, "nonsense"])
def test_packed_layers_are_measured_only_for_a_gqa_model_of_a_newer_vllm(
    layout: KvLayout, version: str | None
) -> None:
    (found,) = cuts(layout, [Planned(block_size=16, packed=True, plan=plan())], version)
    assert not found.available and "MLA" in (found.why_not or "")


def test_fp8_wins_only_when_allowed(layout: KvLayout) -> None:
    planned = [Planned(block_size=16, plan=plan()), Planned(block_size=16, kv_cache_dtype="fp8", plan=plan())]
    now, half = cuts(layout, planned, None)
    assert now.name.endswith("(now)") and now.flags == () and now.available
    assert not half.available and "--allow-fp8" in (half.why_not or "")
    allowed = cuts(layout, planned, None, allow_dtype=True)[1]
    assert allowed.available and allowed.flags == ("--kv-cache-dtype fp8",) and allowed.why_not is None


def test_costs_are_numbers(layout: KvLayout) -> None:
    told = costs(candidate(0.008, cut_=cut(128)), layout, 16)
    assert "63.5 tokens or 3.47 MiB" in told[0] and "7.5 tokens or 420 KiB" in told[0]
    assert "multiples of 128" in told[1] and len(told) == 2
    assert costs(candidate(0.05), layout, 16) == []


def test_costs_of_ways(layout: KvLayout) -> None:
    staged = candidate(0.02, by=way("h", 2, kv_buffer_device="cpu"), copies=0.19)
    assert "95 ms later per prompt" in costs(staged, layout, 16)[0]
    pushed = candidate(0.02, by=way("w", 2, operation="WRITE"))
    assert "no bidirectional" in costs(pushed, layout, 16)[0]
    pipeline = candidate(0.02, by=way("p", 2, env={"UCX_RMA_PPLN_ENABLE": "y"}))
    assert "pinned host memory" in costs(pipeline, layout, 16)[0]
    assert "numerics" in costs(candidate(0.02, cut_=cut(16, kv_cache_dtype="fp8")), layout, 16)[0]
