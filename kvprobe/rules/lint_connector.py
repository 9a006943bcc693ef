"""KVP507-512: the connector's own configuration, one instance at a time and side against side."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding
from kvprobe.formats import kv_transfer_config as kvc
from kvprobe.formats.kv_transfer_config_connectors import (
    CONNECTORS,
    EXTRA_KEY_SINCE,
    NIXL,
    nearest_connector,
    nearest_key,
)
from kvprobe.formats.serve_command_surface import NEWEST, show_version
from kvprobe.models.pd_instance import Instance, LintFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import NIXL_GUIDE, before, merged, named, say

_TYPES: dict[str, tuple[type, ...]] = {
    "kv_connector": (str,), "kv_role": (str,), "kv_connector_extra_config": (dict,), "engine_id": (str,),
    "kv_connector_module_path": (str,), "kv_buffer_device": (str,), "kv_port": (int, float, str),
    "enable_permute_local_kv": (bool, int, str), "kv_load_failure_policy": (str,),
}  # fmt: skip
_DEBUG = {
    "DecodeBenchConnector",
    "ExampleConnector",
    "ExampleHiddenStatesConnector",
    "SharedStorageConnector",
}


def fields_known(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP507: --kv-transfer-config holds only fields of this vLLM's KVTransferConfig, with the right types."""
    found = []
    for instance in facts.instances:
        for config in _all(instance):
            found += _fields(instance, config)
    yield from merged(found)


def _all(instance: Instance) -> Iterable[kvc.KvConfig]:
    if instance.kv is not None and not instance.serve.unread:
        yield instance.kv
        yield from instance.kv.children
    elif instance.kv is not None:
        yield instance.kv


def _fields(instance: Instance, config: kvc.KvConfig) -> list[Finding]:
    version = instance.version
    removed = [k for k in config.raw if k in kvc.REMOVED_FIELDS and not before(version, (0, 32, 0))]
    too_new = [k for k in config.raw if (k, True) in (
        ("kv_load_failure_policy", before(version, (0, 13, 0))), ("enable_permute_local_kv", before(version, (0, 11, 2))),
    )]  # fmt: skip
    odd = [k for k in config.raw if k not in kvc.FIELDS and k not in kvc.REMOVED_FIELDS]
    out = []
    if removed:
        out.append(
            say(
                "KVP507", "kv-config-fields", "error",
                f"{', '.join(removed)} {'was' if len(removed) == 1 else 'were'} removed from KVTransferConfig in vLLM 0.32; "
                f"{named(version)} answers: Unexpected keyword argument",
                code="kv_config_unknown_field", where=instance.where,
                fix=f"Delete {', '.join(removed)} from {kvc.FLAG}; nothing replaces {'it' if len(removed) == 1 else 'them'}.",
                links=(NIXL_GUIDE,),
            )
        )  # fmt: skip
    for key in odd:
        near = difflib.get_close_matches(key, kvc.FIELDS, 1, 0.75)
        inner = next((c.name for c in CONNECTORS.values() if c.name in NIXL and key in (c.keys or ())), None)
        fix = (
            f"Move {key} into kv_connector_extra_config." if inner
            else f"Write {near[0]}." if near
            else f"Delete it, or move it into kv_connector_extra_config if {config.connector or 'the connector'} reads it."
        )  # fmt: skip
        out.append(
            say(
                "KVP507", "kv-config-fields", "error",
                f"{key!r} is no field of KVTransferConfig; {named(version)} answers: Unexpected keyword argument",
                code="kv_config_unknown_field", where=instance.where, fix=fix,
            )
        )  # fmt: skip
    for key in too_new:
        out.append(
            say(
                "KVP507", "kv-config-fields", "error",
                f"{key} does not exist yet in {named(version)}, which answers: Unexpected keyword argument",
                code="vllm_too_old", where=instance.where,
                fix=f"Use {'0.13' if 'policy' in key else '0.11.2'} or later on both sides, or leave it out.",
            )
        )  # fmt: skip
    for key, value in config.raw.items():
        right = _TYPES.get(key)
        if (
            right
            and value is not None
            and (not isinstance(value, right) or (bool not in right and isinstance(value, bool)))
        ):
            out.append(
                say(
                    "KVP507", "kv-config-fields", "error",
                    f"{key} is {_json_type(value)} where KVTransferConfig wants {_json_type(right[0]())}",
                    code="kv_config_invalid", where=instance.where, fix=f"Correct the value of {key}.",
                )
            )  # fmt: skip
    return out


def _json_type(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")


def extra_keys(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP508: every key of kv_connector_extra_config is read by the connector; vLLM ignores others without a word."""
    found = []
    for instance in facts.instances:
        for config in instance.connectors:
            row = CONNECTORS.get(config.connector)
            if row is None:
                continue
            for key in config.extra:
                if row.keys is not None and key not in row.keys:
                    near = nearest_key(key, row)
                    found.append(
                        say(
                            "KVP508", "kv-extra-keys", "warn" if near else "info",
                            f"{config.connector} reads no {key!r} in kv_connector_extra_config, and vLLM says nothing of it",
                            code="kv_config_unknown_field", where=instance.where,
                            fix=f"Write {near}." if near else "Remove it.",
                        )
                    )  # fmt: skip
                since = EXTRA_KEY_SINCE.get(key)
                if config.connector in NIXL and since and before(instance.version, since):
                    found.append(
                        say(
                            "KVP508", "kv-extra-keys", "warn",
                            f"{key} is read from vLLM {show_version(since)} on; {named(instance.version)} ignores it without a word",
                            code="vllm_too_old", where=instance.where,
                            fix=f"Use vLLM {show_version(since)} or later on both sides, or remove the key.",
                        )
                    )  # fmt: skip
                if (
                    key == "enable_cross_layers_blocks"
                    and config.connector in NIXL
                    and not before(instance.version, (0, 29, 0))
                ):
                    found.append(
                        say(
                            "KVP508", "kv-extra-keys", "info",
                            f"{named(instance.version or NEWEST)} ignores enable_cross_layers_blocks (0.16 to 0.28 read it)",
                            code="kv_config_unknown_field", where=instance.where,
                            fix="Set VLLM_KV_CACHE_LAYOUT=BLHNC on both sides instead.",
                        )
                    )  # fmt: skip
            missing = [k for k in row.required if k not in config.extra]
            if missing:
                found.append(
                    say(
                        "KVP508", "kv-extra-keys", "error",
                        f"{config.connector} cannot start without {', '.join(missing)} in kv_connector_extra_config",
                        code="connector_setting_missing", where=instance.where, fix=f"Set {', '.join(missing)}.",
                    )
                )  # fmt: skip
            if (
                config.connector == "MooncakeStoreConnector"
                and instance.setting("MOONCAKE_CONFIG_PATH") is None
            ):
                found.append(
                    say(
                        "KVP508", "kv-extra-keys", "error",
                        "MooncakeStoreConnector needs MOONCAKE_CONFIG_PATH, which is not set here",
                        code="connector_setting_missing", where=instance.where,
                        fix="Set MOONCAKE_CONFIG_PATH to the store's JSON file.",
                    )
                )  # fmt: skip
    yield from merged(found)


def config_present(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP509: prefill and decode both have a --kv-transfer-config."""
    pd = [i for i in facts.instances if i.role in ("prefill", "decode")]
    sample = next((i.pd.connector for i in pd if i.pd), "NixlConnector")
    found = []
    for instance in pd:
        if instance.kv is not None or instance.serve.unread or instance.serve.has("--kv-offloading-size"):
            continue
        role = "kv_producer" if instance.role == "prefill" else "kv_consumer"
        dynamo = instance.serve.program.kind == "dynamo"
        found.append(
            say(
                "KVP509", "kv-config-present", "error",
                f"the {instance.role} instance has no {kvc.FLAG}: it starts, and decode computes every prompt itself",
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
                if "kv_role" in config.raw or not config.raw:
                    continue
                continue
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
                f"kv_role is missing beside {config.connector}; vLLM answers: Please specify kv_role when kv_connector is set",
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
                    f"kv_both works with {config.connector} but is deprecated",
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
                    f"prefill uses {shown[0]} and decode {shown[1]}: neither understands the other's kv_transfer_params",
                    code="connector_mismatch", where=pair.where, fix="Use the same connector on both sides.",
                )
            )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP507", "kv-config-fields", fields_known),
    Rule("KVP508", "kv-extra-keys", extra_keys),
    Rule("KVP509", "kv-config-present", config_present),
    Rule("KVP510", "connector-known", connector_known),
    Rule("KVP511", "kv-role", roles),
    Rule("KVP512", "same-connector", same_connector),
)
