"""``--kv-transfer-config``: the JSON, or why it is none; its connectors, also inside MultiConnector."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import msgspec

from kvprobe.formats.serve_command import ServeCommand

FLAG = "--kv-transfer-config"
FIELDS = {
    "kv_connector", "kv_role", "kv_connector_extra_config", "kv_connector_module_path", "engine_id",
    "kv_buffer_device", "kv_port", "enable_permute_local_kv", "kv_load_failure_policy",
}  # fmt: skip
REMOVED_FIELDS = {"kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip"}
"""Gone in 0.32; older recipes carry them."""
ROLES = ("kv_producer", "kv_consumer", "kv_both")
POLICIES = ("fail", "recompute")
_TYPOGRAPHIC = "\u2018\u2019\u201c\u201d\u201e\u201f\u00ab\u00bb"
_DEPTH_LIMIT = 5


class KvConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The option's value. ``fault`` is ``quotes_lost``, ``typographic`` or ``invalid`` if it is no JSON object."""

    text: str
    raw: dict[str, Any] = {}
    fault: str = ""
    detail: str = ""
    recovered: bool = False
    """``raw`` is what the text was probably meant to be."""

    def field(self, name: str) -> Any:
        return self.raw.get(name)

    @property
    def connector(self) -> str:
        value = self.raw.get("kv_connector")
        return value if isinstance(value, str) else ""

    @property
    def role(self) -> str:
        value = self.raw.get("kv_role")
        return value if isinstance(value, str) else ""

    @property
    def extra(self) -> dict[str, Any]:
        value = self.raw.get("kv_connector_extra_config")
        return value if isinstance(value, dict) else {}

    @property
    def children(self) -> tuple[KvConfig, ...]:
        """The connectors of a MultiConnector."""
        items = self.extra.get("connectors")
        if self.connector != "MultiConnector" or not isinstance(items, list):
            return ()
        return tuple(KvConfig(text=self.text, raw=item) for item in items[:32] if isinstance(item, dict))

    def everyone(self, depth: int = 0) -> tuple[KvConfig, ...]:
        """Itself, or the leaves below a MultiConnector."""
        if not self.children or depth >= _DEPTH_LIMIT:
            return (self,)
        return tuple(leaf for child in self.children for leaf in child.everyone(depth + 1))


def read_config(command: ServeCommand) -> KvConfig | None:
    """The configuration of a call, also when given piece by piece; None if the option is absent."""
    text = command.get(FLAG)
    nested = command.nested.get(FLAG)
    if text is None and not command.has(FLAG):
        return None
    if text is None:
        return (
            KvConfig(text=json.dumps(nested), raw=nested)
            if nested
            else KvConfig(text="", fault="invalid", detail="it has no value")
        )
    tail = " ".join(s for s in command.strays if re.search(r"[{}:,\"']", s))
    config = parse_config(text, tail)
    if nested:
        return msgspec.structs.replace(config, raw={**config.raw, **nested})
    return config


def parse_config(text: str, tail: str = "") -> KvConfig:
    """Parse the JSON; ``tail`` are stray words that may be its other half. Never raises."""
    if len(text) > 100_000:
        return KvConfig(text=text[:100], fault="invalid", detail="it is longer than 100,000 characters")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return _faulty(text, tail, str(error))
    if not isinstance(value, dict):
        return KvConfig(text=text, fault="invalid", detail=f"it is {type(value).__name__}, not an object")
    return KvConfig(text=text, raw=value)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _faulty(text: str, tail: str, detail: str) -> KvConfig:
    whole = f"{text} {tail}".strip()
    plain = whole
    for mark in _TYPOGRAPHIC:
        plain = plain.replace(mark, '"')
    raw = _recover(plain)
    if plain != whole:
        fault = "typographic"
    elif (tail and raw) or _lost_quotes(whole, raw):
        fault = "quotes_lost"
    else:
        fault = "invalid"
    return KvConfig(text=whole, raw=raw, fault=fault, detail=detail, recovered=True)


def _lost_quotes(text: str, raw: dict[str, Any]) -> bool:
    """Bare words where JSON wants strings, or the shell's own quotes still around the text."""
    stripped = text.strip()
    if stripped.startswith(("'", '\\"', "\\'", '"{')) or '\\"' in stripped:
        return True
    return bool(raw) and '"' not in stripped and "'" not in stripped


def _recover(text: str) -> dict[str, Any]:
    """What a broken text was meant to be, for the checks after this one; empty if that cannot be told."""
    text = text.strip().strip("'").replace('\\"', '"').replace("\\'", "'").strip()
    if text.startswith('"{'):
        text = text.strip('"')
    for attempt in (text, re.sub(r",\s*([}\]])", r"\1", text)):
        try:
            value = json.loads(attempt)
            if isinstance(value, dict):
                return value
        except (ValueError, RecursionError):
            pass
    try:
        value = ast.literal_eval(text)
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return value
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        pass
    pairs = re.findall(r"[\"']?(kv_\w+|engine_id|bidirectional_kv_xfer)[\"']?\s*:\s*[\"']?([\w.-]+)", text)
    flat: dict[str, Any] = dict(pairs)
    if str(flat.pop("bidirectional_kv_xfer", "")).lower() == "true":
        flat["kv_connector_extra_config"] = {"bidirectional_kv_xfer": True}
    elif "kv_connector_extra_config" in flat:
        del flat["kv_connector_extra_config"]
    for key in ("kv_lease_duration", "kv_recompute_threshold"):
        flat.pop(key, None)
    return flat
