"""KVP507-508: the fields and extra keys of --kv-transfer-config, as this vLLM reads them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding
from kvprobe.formats import kv_transfer_config as kvc
from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS, EXTRA_KEY_SINCE, NIXL, nearest_key
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
                f"{', '.join(removed)} {'was' if len(removed) == 1 else 'were'} removed from KVTransferConfig in vLLM 0.32\n"
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
    out += [
            say(
                "KVP507", "kv-config-fields", "error",
                f"{key} does not exist yet in {named(version)}, which answers: Unexpected keyword argument",
                code="vllm_too_old", where=instance.where,
                fix=f"Use {'0.13' if 'policy' in key else '0.11.2'} or later on both sides, or leave it out.",
            )
        for key in too_new
    ]  # fmt: skip
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
                    near, misplaced = nearest_key(key, row), key in kvc.FIELDS
                    fix = (
                        f"Move {key} out, beside kv_connector."
                        if misplaced
                        else f"Write {near}."
                        if near
                        else "Remove it."
                    )
                    found.append(
                        say(
                            "KVP508", "kv-extra-keys", "warn" if near or misplaced else "info",
                            f"{config.connector} reads no {key!r} in kv_connector_extra_config, and vLLM says nothing of it",
                            code="kv_config_unknown_field", where=instance.where, fix=fix,
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


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP507", "kv-config-fields", fields_known),
    Rule("KVP508", "kv-extra-keys", extra_keys),
)
