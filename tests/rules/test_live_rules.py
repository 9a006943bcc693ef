"""The judgements on a live run that the simulator cannot be made to show: other hosts, targets, ladders."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvprobe.finding import Finding, Status
from kvprobe.formats.kv_transfer_params import inspect
from kvprobe.models.paired import LengthResult, Pair, Transfer, summarize_length
from kvprobe.models.paired_facts import Conversation, Greeting, Health, LiveFacts, Prediction, TurnsResult
from kvprobe.models.paired_load import Slo, WindowResult
from kvprobe.models.statistics import Interval
from kvprobe.policy import Policy, Threshold
from kvprobe.rules import live, live_outcome, live_paths, live_prediction, live_tax
from kvprobe.rules.base import run_rules

RULES = (*live.RULES, *live_outcome.RULES, *live_tax.RULES, *live_prediction.RULES, *live_paths.RULES)
POLICY = Policy(
    name="test",
    thresholds={
        "transfer_8k_seconds": Threshold(source="t", unit="s", warn_above=0.075, fail_above=0.2),
        "engine_over_nixl": Threshold(source="t", unit="times", warn_above=1.5),
        "ttft_tax_seconds": Threshold(source="t", unit="s", fail_above=0.1),
    },
)
PARAMS = {
    "do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "r",
    "remote_host": "192.0.2.11", "remote_port": 5600,
}  # fmt: skip


def length(
    tax: float = 0.08, tokens: int = 8192, xfer: float | None = 0.05, same: bool = True
) -> LengthResult:
    pairs = [
        Pair(
            prompt_tokens=tokens,
            pd_ttft=0.2 + tax,
            colocated_ttft=0.2,
            prefill_call=0.2,
            handover=0.0,
            decode_first=tax,
            same_output=same,
        )
        for _ in range(6)
    ]
    moved = None if xfer is None else Transfer(transfers=6, xfer_seconds=xfer)
    return summarize_length(tokens, pairs, transfer=moved)


def facts(**change: Any) -> LiveFacts:
    base = LiveFacts(
        servers=(),
        prefill_host="node-a",
        decode_host="node-b",
        alone_role="decode",
        params=inspect(PARAMS),
        greeting=Greeting(host="192.0.2.11", port=5600, connected=True, zmq=True),
        lengths=(length(),),
        health=Health(failed_transfers=0.0),
    )
    return msgspec.structs.replace(base, **change)


def one(check: str, policy: Policy = POLICY, **change: Any) -> Finding:
    (found,) = [f for f in run_rules(RULES, facts(**change), policy) if f.id == check]
    return found


@pytest.mark.parametrize("host", ["localhost", "127.0.1.1", "0.0.0.0", "::1"])
def test_a_loopback_side_channel_across_hosts_cannot_work(host: str) -> None:
    found = one("KVP684", params=inspect({**PARAMS, "remote_host": host}))
    assert (found.status, found.code) == (Status.FAIL, "side_channel_host_unroutable")
    assert found.remedy is not None
    assert found.remedy.commands == ("VLLM_NIXL_SIDE_CHANNEL_HOST=node-a vllm serve ...",)


def test_a_loopback_side_channel_on_one_host_is_a_warning() -> None:
    found = one("KVP684", params=inspect({**PARAMS, "remote_host": "127.0.0.1"}), decode_host="node-a")
    assert (found.status, found.code) == (Status.WARN, "side_channel_host_loopback")


def test_the_ttft_target_is_held_against_ttft_not_tax() -> None:
    assert one("KVP690", slo=Slo(ttft_seconds=0.3)).status is Status.PASS
    found = one("KVP690", slo=Slo(ttft_seconds=0.25))
    assert (found.status, found.code) == (Status.FAIL, "ttft_slo_missed")


def test_without_a_target_the_policy_judges_else_nobody() -> None:
    assert one("KVP690").status is Status.PASS
    assert one("KVP690", lengths=(length(0.15),)).status is Status.FAIL
    assert one("KVP690", policy=Policy(name="bare")).status is Status.SKIP


def test_nothing_measured_is_unknown_with_the_reason() -> None:
    found = one("KVP690", lengths=(), stopped="decode is serving requests")
    assert found.status is Status.UNKNOWN
    assert "decode is serving requests" in found.title


def test_rung_5_against_rung_4_of_the_report() -> None:
    assert one("KVP691", rung4={8192: 0.048}).status is Status.PASS
    found = one("KVP691", rung4={8192: 0.03})  # 1.67 times, as with the RMA pipeline
    assert (found.status, found.code) == (Status.WARN, "engine_slower_than_nixl")


def test_rung_5_against_the_policy_without_a_report() -> None:
    found = one("KVP691", lengths=(length(1.4, xfer=1.29),))
    assert (found.status, found.code) == (Status.FAIL, "engine_transfer_slow")
    assert [
        f for f in run_rules(RULES, facts(lengths=(length(xfer=None),)), POLICY) if f.id == "KVP691"
    ] == []


def test_one_differing_output_is_a_warning_most_are_a_failure() -> None:
    mixed = msgspec.structs.replace(length(), same_output=5)
    assert one("KVP687", lengths=(mixed,)).status is Status.WARN
    assert one("KVP687", lengths=(length(same=False),)).status is Status.FAIL


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (Health(kv_expired=2.0, failed_transfers=1.0), "kv_lease_expired"),
        (Health(failed_transfers=1.0), "transfers_failed_counter"),
        (Health(notifications_after_expiry=1.0, kv_expired=2.0), "late_read_possible_corruption"),
    ],
)
def test_trouble_counters(health: Health, code: str) -> None:
    found = one("KVP688", health=health)
    assert (found.status, found.code) == (Status.FAIL, code)


def test_counters_that_are_not_exposed_are_not_called_fine() -> None:
    assert [f for f in run_rules(RULES, facts(health=Health()), POLICY) if f.id == "KVP688"] == []


def prediction(predicted: float, *, asked: bool) -> Prediction:
    return Prediction(
        prompt_tokens=8192,
        predicted_seconds=predicted,
        measured_seconds=0.1,
        tolerance_seconds=0.015,
        predicted_transfer_seconds=None,
        measured_transfer_seconds=None,
        source="report",
        asked=asked,
    )


@pytest.mark.parametrize(
    ("predicted", "asked", "status"),
    [(0.11, True, Status.PASS), (0.12, True, Status.WARN), (0.12, False, Status.SKIP)],
)
def test_prediction(predicted: float, asked: bool, status: Status) -> None:
    assert one("KVP694", predictions=(prediction(predicted, asked=asked),)).status is status


def window(way: str, p99: float, gaps: int = 4000) -> WindowResult:
    return WindowResult(
        way=way, rate=1.0, seconds=10.0, streams=2, gaps=gaps, itl_p50=0.005, itl_p99=p99, itl_max=p99,
        arrived=10, finished=10, ttft_p50=0.3, ttft_p99=0.3, good=None, goodput_per_second=None,
    )  # fmt: skip


def test_interference() -> None:
    calm, stalled = window("pd", 0.010), window("colocated", 0.170)
    assert one("KVP693", windows=(calm, stalled)).status is Status.PASS
    alike = one("KVP693", windows=(window("pd", 0.0063), window("colocated", 0.0057)))
    assert alike.status is Status.PASS, "0.6 ms more in the p99 of some hundred gaps tells nothing"
    assert "(longest " in alike.title
    worse = one("KVP693", windows=(window("pd", 0.2), window("colocated", 0.006)))
    assert (worse.status, worse.code) == (Status.WARN, "itl_not_better")
    assert one("KVP693", windows=(calm, stalled), slo=Slo(tpot_seconds=0.005)).status is Status.FAIL
    assert one("KVP693", windows=(window("pd", 0.01, gaps=50), stalled)).status is Status.SKIP


def test_bidirectional_on_decode_alone_hangs_turn_2() -> None:
    hung = Conversation(
        label="c", read_back=True, turns=(), offered=True, failed_role="prefill", failed_turn=2
    )
    found = one("KVP696", turns=TurnsResult(conversations=(hung,)))
    assert (found.status, found.code) == (Status.FAIL, "bidirectional_one_side")


def moved(tokens: int, *descriptors: float) -> LengthResult:
    mean = Transfer(
        transfers=len(descriptors), xfer_seconds=0.05, descriptors=sum(descriptors) / len(descriptors)
    )
    return msgspec.structs.replace(length(tokens=tokens), transfer=mean, descriptors=descriptors)


@pytest.mark.parametrize(
    ("lengths", "planned", "status"),
    [
        ((moved(512, 896, 896), moved(8192, 14336, 14319)), {}, Status.PASS),
        ((moved(512, 896, 28), moved(8192, 14336, 14336)), {}, Status.WARN),
        ((moved(512, 28, 28), moved(8192, 28, 28)), {}, Status.WARN),
        ((moved(8192, 28, 28),), {8192: 14336.0}, Status.WARN),
        ((moved(8192, 14336, 14336),), {8192: 14336.0}, Status.PASS),
    ],
)
def test_blocks_in_order_are_told(
    lengths: tuple[LengthResult, ...], planned: dict[int, float], status: Status
) -> None:
    found = one("KVP699", lengths=lengths, planned=planned)
    assert (found.status, found.code) == (status, "blocks_in_order" if status is Status.WARN else None)
    assert found.remedy is None or "rung 4" in found.remedy.text


@pytest.mark.parametrize("lengths", [(moved(8192, 28, 28),), (length(),), ()])
def test_nothing_is_said_of_blocks_that_nothing_can_be_held_against(
    lengths: tuple[LengthResult, ...],
) -> None:
    assert "KVP699" not in {f.id for f in run_rules(RULES, facts(lengths=lengths), POLICY)}


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"predicted_seconds": 0.11}, Status.PASS, "+10 %"),
        ({"predicted_seconds": 0.15}, Status.WARN, "+50 %"),
        ({"predicted_seconds": 0.15, "interval": Interval(low=0.08, high=0.2, confidence=0.95, resamples=9)}, Status.SKIP, "too few pairs"),
        ({"predicted_seconds": 0.15, "seen_descriptors": 28.0}, Status.PASS, "110 ms with the measured transfer"),
        ({"predicted_seconds": 0.19, "seen_descriptors": 28.0}, Status.WARN, "150 ms with the measured transfer"),
        ({"predicted_seconds": 0.15, "seen_descriptors": 14_000.0}, Status.WARN, "+50 %"),
    ],
)  # fmt: skip
def test_a_prediction_is_judged_where_it_can_be(change: dict[str, Any], status: Status, says: str) -> None:
    base = Prediction(
        prompt_tokens=8192,
        predicted_seconds=0.1,
        measured_seconds=0.1,
        tolerance_seconds=0.015,
        predicted_transfer_seconds=0.05,
        measured_transfer_seconds=0.01,
        source="a report",
        planned_descriptors=14_336.0,
        seen_descriptors=14_336.0,
    )
    found = one("KVP694", predictions=(msgspec.structs.replace(base, **change),))
    assert found.status is status
    assert says in found.title
    assert any("the transfer has +40.0 ms" in note for note in found.notes)
