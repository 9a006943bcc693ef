"""What each rule says of facts made by the models themselves; the command's tests cover the rest."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.finding import Finding, Status
from kvprobe.models.kv_layout import LayoutOptions, ModelConfig, NoKvCache, Refused, resolve
from kvprobe.models.kv_layout.against_log import Logged, compare
from kvprobe.models.kv_layout.specs import SpecComparison
from kvprobe.policy import Policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.kv_size import RULES, KvSizeFacts
from kvprobe.units import MIB

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4,
    "hidden_size": 4096, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
}  # fmt: skip


def judged(facts: KvSizeFacts) -> dict[str, Finding]:
    return {f.id: f for f in run_rules(RULES, facts, Policy(name="test"))}


def facts(config: dict[str, Any] = LLAMA, **more: Any) -> KvSizeFacts:
    options = LayoutOptions(**more.pop("options", {}))
    return KvSizeFacts(model="m", layout=resolve(ModelConfig(name="m", config=config), options), **more)


def test_a_size_names_bytes_dtype_and_tp() -> None:
    found = judged(facts(options={"tp": 2}))["KVP110"]
    assert found.status is Status.PASS
    assert found.title == "m: 4,096 B a token on each rank, bfloat16, TP 2"
    assert found.measured is not None and found.measured.value == 4096


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (Refused("m: no rule.", "unknown_architecture", "Ask vLLM."), Status.UNKNOWN, "unknown_architecture"),
        (NoKvCache("m: an encoder."), Status.PASS, "no_kv_cache"),
    ],
)
def test_a_refusal_has_a_code_and_nothing_else_is_judged(refusal: Refused, status: Status, code: str) -> None:
    found = judged(KvSizeFacts(model="m", refusal=refusal))
    assert list(found) == ["KVP110"]
    assert (found["KVP110"].status, found["KVP110"].code) == (status, code)


def test_copies_are_told_only_where_tp_makes_them() -> None:
    assert "KVP112" not in judged(facts())
    assert judged(facts(options={"tp": 4}))["KVP112"].title == "TP divides the cache without copies"
    copied = judged(facts(options={"tp": 8}))["KVP112"]
    assert "16,384 B a token on all ranks" in copied.title
    assert copied.notes == ("Copied: full attention.",)


def test_recurrent_models_are_told_which_setting_both_sides_need() -> None:
    config = {
        "architectures": ["JambaForCausalLM"], "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "attn_layer_period": 8,
        "attn_layer_offset": 4,
    }  # fmt: skip
    found = judged(facts(config))["KVP111"]
    assert found.status is Status.PASS
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in found.notes[0]


@pytest.mark.parametrize(
    ("mib", "lengths", "status"),
    [
        (16.0, [2048], Status.PASS),
        (12.0, [2048], Status.PASS),
        (24.0, [2048], Status.WARN),
        (250.0, [2048], Status.FAIL),
    ],
)
def test_the_log_rule_follows_the_agreement(mib: float, lengths: list[int], status: Status) -> None:
    base = facts()
    assert base.layout is not None
    agreement = compare(base.layout, [Logged(line=7, transfers=3, bytes_per_transfer=mib * MIB)], lengths)
    found = judged(facts(agreement=agreement, log="decode.log"))["KVP114"]
    assert (found.status, found.where) == (status, "decode.log:7")


@pytest.mark.parametrize(
    ("comparison", "status"),
    [
        (SpecComparison(version="0.33.0"), Status.PASS),
        (SpecComparison(version="0.34.0", differences=("a", "b")), Status.FAIL),
        (SpecComparison(error="vLLM cannot be imported here."), Status.UNKNOWN),
    ],
)
def test_the_second_opinion(comparison: SpecComparison, status: Status) -> None:
    found = judged(facts(comparison=comparison))["KVP115"]
    assert found.status is status
    if status is Status.FAIL:
        assert found.notes == ("b",)
