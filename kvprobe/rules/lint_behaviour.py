"""KVP540-544: settings that let the pair start and then decide what happens under load and in later turns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.formats.kv_transfer_config import POLICIES
from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS, NIXL
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.models.pd_pairs import own_network
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import NIXL_GUIDE, before, known, merged, named, say

DEFAULT_LEASE_SECONDS = 30
_DROPS_REASONING = re.compile(
    r"qwen-?3(?!.*(?:instruct|coder|embedding|reranker|base))|qwq|deepseek-(?:r1|v3\.[1-9])|glm-?(?:4\.[5-9]|z1)|gpt-oss"
    r"|kimi-k2-thinking|magistral|nemotron|exaone-4|seed-oss|ernie-4\.5.*thinking|hunyuan-a13b|granite-3\.[23]",
    re.IGNORECASE,
)
"""Model families whose own chat templates leave reasoning of earlier turns out (cases/templates)."""


def lease(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP540: prefill keeps its blocks long enough for a decode instance that is busy."""
    found = []
    for instance in facts.instances:
        nixl = instance.nixl
        if nixl is None or "kv_lease_duration" not in nixl.extra:
            continue
        value = nixl.extra["kv_lease_duration"]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            found.append(
                say(
                    "KVP540", "kv-lease", "error", f"kv_lease_duration {value!r} is no positive number of seconds",
                    code="kv_config_invalid", where=instance.where, fix="Use 30 (the default) or more.",
                )
            )  # fmt: skip
        elif value < DEFAULT_LEASE_SECONDS and instance.role != "decode":
            found.append(
                say(
                    "KVP540", "kv-lease", "warn",
                    f"kv_lease_duration {value:g} s is below the default of {DEFAULT_LEASE_SECONDS} s\na heartbeat every {value // 6:g} s extends it by {value * 2 // 3:g} s, so a pause "
                    "of decode longer than that frees blocks that will still be read",
                    code="lease_too_short", where=instance.where, fix="Use 30 s (the default) or more.",
                    notes=("vLLM then logs `Releasing expired KV blocks`; a read after that can return wrong answers.",),
                    links=(NIXL_GUIDE,),
                )
            )  # fmt: skip
    yield from merged(found)


def failure_policy(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP541: what happens when KV does not arrive is a choice, and its price is known."""
    found = []
    for instance in facts.instances:
        for config in {
            id(c): c for c in (*((instance.kv,) if instance.kv else ()), *instance.connectors)
        }.values():
            value = config.field("kv_load_failure_policy")
            if value is None:
                continue
            if value not in POLICIES:
                found.append(
                    say(
                        "KVP541", "kv-failure-policy", "error",
                        f"kv_load_failure_policy {str(value)[:40]!r} does not exist; the policies are fail and recompute",
                        code="failure_policy_invalid", where=instance.where, fix="Use fail (the default since 0.17) or recompute.",
                    )
                )  # fmt: skip
            elif value == "recompute" and (instance.role != "prefill" or instance.bidirectional):
                found.append(
                    say(
                        "KVP541", "kv-failure-policy", "warn",
                        "kv_load_failure_policy recompute: decode does prefill's work when KV fails\nfaults then show as tail "
                        "latency instead of errors",
                        code="failure_policy_recompute", where=instance.where,
                        fix="Know the price, and watch for `Recovered from KV load failure`; fail (the default since 0.17) answers HTTP 500 instead.",
                    )
                )  # fmt: skip
    for instance in facts.instances:
        version = instance.version
        default_was_recompute = not before(version, (0, 13, 0)) and before(version, (0, 17, 0))
        if (
            instance.role == "decode"
            and instance.pd
            and default_was_recompute
            and instance.pd.field("kv_load_failure_policy") is None
        ):
            found.append(
                say(
                    "KVP541", "kv-failure-policy", "info",
                    f"{named(version)} recomputes on decode when KV fails (the default became fail in 0.17)",
                    code="failure_policy_recompute", where=instance.where, fix="Set kv_load_failure_policy to say which you want.",
                )
            )  # fmt: skip
    yield from merged(found)


def bidirectional(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP542: bidirectional transfer is on at both sides, in pull mode, with a template that keeps the reasoning."""
    found: list[Finding] = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        sides = [pair.prefill.bidirectional, pair.decode.bidirectional]
        if not any(sides) or before(pair.decode.version, (0, 22, 0)):
            continue  # an older vLLM does not read the key; KVP508 says so
        if not all(sides):
            has, lacks = (pair.decode, pair.prefill) if sides[1] else (pair.prefill, pair.decode)
            what = (
                "turn 2 waits on prefill for a read that is never posted, and hangs" if sides[1]
                else "decode returns no kv_transfer_params, so the feature does nothing"
            )  # fmt: skip
            found.append(
                say(
                    "KVP542", "bidirectional", "error" if sides[1] else "warn",
                    f"bidirectional_kv_xfer is on at {has.role} only: {what}",
                    code="bidirectional_one_side", where=lacks.where, fix="Set it on both instances, or on neither.",
                )
            )  # fmt: skip
        if "NixlPushConnector" in (pair.prefill.nixl.connector, pair.decode.nixl.connector):
            found.append(
                say(
                    "KVP542", "bidirectional", "error",
                    "NixlPushConnector refuses bidirectional_kv_xfer: vLLM does not start",
                    code="connector_refuses_option", where=pair.where, fix="Use NixlConnector (pull), or remove the key.",
                )
            )  # fmt: skip
        if all(sides):
            found.append(_template(pair))
    yield from merged(found)


def _template(pair: Pair) -> Finding:
    model = pair.decode.serve.model or ""
    parser = pair.decode.serve.get("--reasoning-parser") or pair.decode.serve.get(
        "--structured-outputs-config.reasoning_parser"
    )
    template = pair.decode.serve.get("--chat-template")
    family = _DROPS_REASONING.search(model) if known(model) else None
    check = f"kvprobe template {template or 'MODEL_DIRECTORY'}"
    text = "decode's KV of prompt + thinking + answer is taken by position in turn 2"
    where = pair.where
    keeps = re.search(
        r"[\"'](?:preserve_thinking[\"']\s*:\s*true|clear_thinking[\"']\s*:\s*false)",
        pair.decode.serve.get("--default-chat-template-kwargs") or "",
    )
    if family and not template and not keeps:
        return say(
            "KVP542", "bidirectional", "error",
            f"bidirectional_kv_xfer is on, and {model}'s own template leaves out earlier <think> text\n{text}: wrong KV without any error",
            code="bidirectional_with_dropping_template", where=where,
            fix="Turn bidirectional_kv_xfer off, or use a template that keeps reasoning and have the client send it back.",
            commands=(check,), links=("https://github.com/vllm-project/vllm/issues/43094",),
        )  # fmt: skip
    if parser or family:
        return say(
            "KVP542", "bidirectional", "warn",
            f"bidirectional_kv_xfer is on with a thinking model ({model or parser}), and its template was not checked\n"
            f"{text}; whether the template keeps earlier <think> text is not known here",
            code="bidirectional_with_dropping_template", where=where, fix="Check the template before turning it on.",
            commands=(check,), links=("https://github.com/vllm-project/vllm/issues/43094",),
        )  # fmt: skip
    return say(
        "KVP542", "bidirectional", "info",
        f"bidirectional_kv_xfer is on: only templates that render turn 1 again exactly are safe\n{text}",
        code="bidirectional_template_unchecked", where=where, fix="Check the template.", commands=(check,),
    )  # fmt: skip


def multi_connector(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP543: a MultiConnector's children are complete, compatible and no child brings an engine_id."""
    found: list[Finding] = []
    for instance in facts.instances:
        kv = instance.kv
        if kv is None or kv.connector != "MultiConnector":
            continue
        problems: list[tuple[str, str]] = []
        if not kv.children:
            problems.append(
                (
                    "MultiConnector has no list of connectors",
                    'Set kv_connector_extra_config: {"connectors": [...]}.',
                )
            )
        if any("engine_id" in child.raw for child in kv.children):
            problems.append(
                (
                    "a connector inside MultiConnector has an engine_id: vLLM fails with a TypeError",
                    "Move engine_id to the outer level.",
                )
            )
        if sum(child.connector in NIXL for child in kv.children) > 1:
            problems.append(
                (
                    "MultiConnector holds more than one NIXL connector: only one can hand out handshake metadata",
                    "Keep one.",
                )
            )
        for text, fix in problems:
            found.append(
                say(
                    "KVP543",
                    "multi-connector",
                    "error",
                    text,
                    code="multi_connector_invalid",
                    where=instance.where,
                    fix=fix,
                )
            )
        bare = [
            c.connector for c in kv.children if c.connector in CONNECTORS and not CONNECTORS[c.connector].hma
        ]
        if bare:
            found.append(
                say(
                    "KVP543", "multi-connector", "info",
                    f"{', '.join(bare)} turns the hybrid KV cache manager off for this instance",
                    code="hma_auto_disabled", where=instance.where, fix="Pass --disable-hybrid-kv-cache-manager on both sides.",
                )
            )  # fmt: skip
    yield from merged(found)


def engine_ids(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP544: no two engines have the same engine_id; decode keeps its peers by it."""
    found: list[Finding] = []
    seen: dict[str, Instance] = {}
    dropped = {id(second) for _, second in facts.variants}
    for instance in facts.instances:
        value = instance.kv.field("engine_id") if instance.kv else None
        if not isinstance(value, str) or not known(value) or id(instance) in dropped:
            continue
        if value in seen:
            found.append(
                _shared(f"engine_id {value[:40]!r} is used twice", f"{seen[value].where} / {instance.where}")
            )
        elif instance.replicas > 1 and own_network(instance):
            found.append(
                _shared(
                    f"engine_id {value[:40]!r} is the same in all {instance.replicas} replicas",
                    instance.where,
                )
            )
        seen[value] = instance
    yield from merged(found)


def _shared(what: str, where: str) -> Finding:
    return say(
        "KVP544", "engine-id", "error",
        f"{what}: decode tells its peers apart by it and would read from the wrong one",
        code="engine_id_shared", where=where, fix="Leave engine_id out; vLLM makes a unique one.",
    )  # fmt: skip


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP540", "kv-lease", lease),
    Rule("KVP541", "kv-failure-policy", failure_policy),
    Rule("KVP542", "bidirectional", bidirectional),
    Rule("KVP543", "multi-connector", multi_connector),
    Rule("KVP544", "engine-id", engine_ids),
)
