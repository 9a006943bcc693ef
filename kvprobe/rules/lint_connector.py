"""KVP509-512: the connector and its role, one instance at a time and side against side."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.formats import kv_transfer_config as kvc
from kvprobe.formats.kv_transfer_config_connectors import (
    CONNECTORS,
    NIXL,
    nearest_connector,
)
from kvprobe.formats.serve_command_surface import show_version
from kvprobe.models.pd_instance import Instance, LintFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, merged, named, say

_DEBUG = {
    "DecodeBenchConnector",
    "ExampleConnector",
    "ExampleHiddenStatesConnector",
    "SharedStorageConnector",
}


def config_present(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP509: prefill and decode both have a --kv-transfer-config."""
    pd = [i for i in facts.instances if i.role in ("prefill", "decode")]
    sample = next((i.pd.connector for i in pd if i.pd), "NixlConnector")
    some = any(i.kv is not None for i in pd)
    found = []
    for instance in pd:
        if instance.serve.program.kind == "dynamo" and not some:
            found.append(
                say(
                    "KVP509", "kv-config-present", "info",
                    f"no Dynamo worker has {kvc.FLAG}\nolder Dynamo releases choose NIXL themselves (--connector), newer ones do not",
                    code="kv_transfer_config_missing", where=instance.where,
                    fix="Set it on both workers, so that the connector does not depend on the release.",
                )
            )  # fmt: skip
            continue
        if instance.kv is not None or instance.serve.unread or instance.serve.has("--kv-offloading-size"):
            continue
        role = "kv_producer" if instance.role == "prefill" else "kv_consumer"
        dynamo = instance.serve.program.kind == "dynamo"
        found.append(
            say(
                "KVP509", "kv-config-present", "error",
                f"the {instance.role} instance has no {kvc.FLAG}\nit starts, and decode computes every prompt itself",
                code="kv_transfer_config_missing", where=instance.where,
                fix=f"Give it the same connector as the other side: {kvc.FLAG} "
                f'\'{{"kv_connector":"{sample}","kv_role":"{role}"}}\'.',
                notes=("Dynamo checks this on prefill workers only.",) if dynamo else (),
            )
        )  # fmt: skip
    yield from merged(found)


def connector_known(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP510: the connector is registered in this vLLM."""
    found = []
    for instance in facts.instances:
        for config in instance.connectors:
            name, version = config.connector, instance.version
            if config.field("kv_connector_module_path"):
                continue
            if not name:
                continue  # nothing is transferred, or the text is no JSON: KVP506 and KVP509 say so
            row = CONNECTORS.get(name)
            if row is None:
                near = nearest_connector(name)
                found.append(
                    say(
                        "KVP510", "connector-known", "error",
                        f"{named(version)} knows no connector {name!r}; it answers: Unsupported connector type: {name}",
                        code="connector_unknown", where=instance.where,
                        fix=f"Write {near}." if near else "Use a registered name, or set kv_connector_module_path.",
                    )
                )  # fmt: skip
            elif row.until and not before(version, row.until):
                found.append(
                    say(
                        "KVP510", "connector-known", "error",
                        f"{name} was removed in vLLM {show_version(row.until)}; {named(version)} answers: Unsupported connector type",
                        code="connector_unknown", where=instance.where, fix="Use NixlConnector.",
                    )
                )  # fmt: skip
            elif row.since and before(version, row.since):
                found.append(
                    say(
                        "KVP510", "connector-known", "error",
                        f"{name} came with vLLM {show_version(row.since)}; {named(version)} answers: Unsupported connector type",
                        code="vllm_too_old", where=instance.where,
                        fix=f"Use vLLM {show_version(row.since)} or later on both sides.",
                    )
                )  # fmt: skip
            elif name in _DEBUG:
                fake = name == "DecodeBenchConnector"
                found.append(
                    say(
                        "KVP510", "connector-known", "warn",
                        f"{name} fills the cache with invented KV: answers are wrong" if fake else f"{name} is for debugging",
                        code="fake_kv_connector" if fake else "debug_connector", where=instance.where,
                        fix="Use NixlConnector or MooncakeConnector to serve users.",
                    )
                )  # fmt: skip
    yield from merged(found)


def roles(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP511: kv_role is given, exists, and fits what the instance does."""
    found = []
    for instance in facts.instances:
        for config in (
            *instance.connectors,
            *((instance.kv,) if instance.kv and instance.kv.children else ()),
        ):
            if not config.connector and not config.raw.get("kv_role"):
                continue
            found += _role(instance, config)
    yield from merged(found)


def _role(instance: Instance, config: kvc.KvConfig) -> list[Finding]:
    right = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(
        instance.role or "", "kv_producer or kv_consumer"
    )
    role = config.field("kv_role")
    if role is None:
        return [
            say(
                "KVP511", "kv-role", "error",
                f"kv_role is missing beside {config.connector}\nvLLM answers: Please specify kv_role when kv_connector is set",
                code="kv_role_missing", where=instance.where, fix=f'Add "kv_role": "{right}".',
            )
        ]  # fmt: skip
    if role not in kvc.ROLES:
        return [
            say(
                "KVP511", "kv-role", "error",
                f"kv_role {str(role)[:40]!r} does not exist; the roles are {', '.join(kvc.ROLES)}",
                code="kv_role_invalid", where=instance.where, fix=f"Write {right}.",
            )
        ]  # fmt: skip
    if role == "kv_both":
        if config.connector in NIXL:
            return [
                say(
                    "KVP511", "kv-role", "info",
                    f"kv_both works with {config.connector} on {instance.role or 'this instance'} but is deprecated",
                    code="kv_both_deprecated", where=instance.where, fix=f"Write {right}.",
                )
            ]  # fmt: skip
        return []
    known_otherwise = instance.role in ("prefill", "decode") and instance.role_from != "kv_role"
    if known_otherwise and role != right and config is not None and CONNECTORS.get(config.connector, _PD).pd:
        hard = config.connector not in ("NixlConnector", "NixlPullConnector")
        return [
            say(
                "KVP511", "kv-role", "error" if hard else "warn",
                f"the {instance.role} instance ({instance.role_from}) has kv_role {role}, not {right} "
                "(kv_producer is prefill, kv_consumer is decode)",
                code="kv_role_mismatch", where=instance.where, fix=f"Write {right}.",
                notes=() if hard else (
                    "With NIXL pull the proxy decides who does what, so this works by luck; push mode, PCP and "
                    "multimodal consumers go by the role.",
                ),
            )
        ]  # fmt: skip
    return []


_PD = CONNECTORS["NixlConnector"]


def same_connector(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP512: prefill and decode use the same connector in the same direction."""
    found = []
    for pair in facts.pairs:
        left, right = pair.prefill.pd, pair.decode.pd
        if (
            pair.prefill.kv is None
            or pair.decode.kv is None
            or not (pair.prefill.kv.connector and pair.decode.kv.connector)
        ):
            continue
        names = [
            "NixlPullConnector" if c and c.connector == "NixlConnector" else c.connector if c else ""
            for c in (left, right)
        ]
        shown = [
            c.connector if c else i.kv.connector if i.kv else ""
            for c, i in ((left, pair.prefill), (right, pair.decode))
        ]
        unknown = [n for n in shown if n not in CONNECTORS]
        if names[0] == names[1] and names[0]:
            found.append(
                say("KVP512", "same-connector", "ok", f"both sides use {shown[0]}", where=pair.where)
            )
        elif not unknown and (names[0] or names[1]):
            found.append(
                say(
                    "KVP512", "same-connector", "error",
                    f"prefill uses {shown[0]} and decode {shown[1]} (kv_connector)\nneither understands the other's kv_transfer_params",
                    code="connector_mismatch", where=pair.where, fix="Use the same connector on both sides.",
                )
            )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP509", "kv-config-present", config_present),
    Rule("KVP510", "connector-known", connector_known),
    Rule("KVP511", "kv-role", roles),
    Rule("KVP512", "same-connector", same_connector),
)
