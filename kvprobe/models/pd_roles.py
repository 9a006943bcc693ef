"""Which instance is prefill and which decode, and where a proxy sends its requests."""

from __future__ import annotations

import re

import msgspec

from kvprobe.models.pd_instance import LOOPBACK, Helper, Instance, role_of

_KV_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def with_role(instance: Instance, proxies: list[Helper], everyone: list[Instance]) -> Instance:
    """The instance with its role and how that is known: options, names, the proxy's ports, then kv_role."""
    if instance.role:
        return instance
    mode = next(
        (o.value for o in instance.serve.options if o.written.split("=")[0] == "--disaggregation-mode"), None
    )
    if mode in ("prefill", "decode"):
        return msgspec.structs.replace(instance, role=mode, role_from="--disaggregation-mode")
    flags = [o.written for o in instance.serve.options]
    if instance.serve.program.kind == "dynamo" and "--is-prefill-worker" in flags:
        return msgspec.structs.replace(instance, role="prefill", role_from="--is-prefill-worker")
    hints = [*instance.command.hints, instance.command.name, instance.command.file]
    for hint in hints:
        if found := role_of(hint):
            return msgspec.structs.replace(instance, role=found, role_from=f"the name {hint!r}")
    if found := _role_in_proxy(instance, proxies, everyone):
        return msgspec.structs.replace(instance, role=found, role_from="the proxy's ports")
    for config in instance.connectors:
        if config.role in _KV_ROLES:
            return msgspec.structs.replace(instance, role=_KV_ROLES[config.role], role_from="kv_role")
    return msgspec.structs.replace(instance, role=None, role_from="nothing tells it")


def targets(proxy: Helper) -> dict[str, list[tuple[str, str]]]:
    """``prefill`` and ``decode`` -> (host, port) that the proxy sends to, as far as its options tell."""
    found: dict[str, dict[str, list[str]]] = {"prefill": {}, "decode": {}}
    words = proxy.command.argv
    for at, word in enumerate(words):
        key, _, inline = word.partition("=")
        role = role_of(key.replace("-", " ").replace("_", " ")) if key.startswith("--") else None
        if role is None:
            continue
        values = [inline] if inline else []
        for value in () if inline else words[at + 1 :]:
            if value.startswith("--"):
                break
            values.append(value)
        what = "port" if "port" in key else "host" if "host" in key or "addr" in key else "url"
        found[role].setdefault(what, []).extend(values)
    out: dict[str, list[tuple[str, str]]] = {}
    for role, lists in found.items():
        hosts, ports = lists.get("host", []), lists.get("port", [])
        pairs = [
            (hosts[min(n, len(hosts) - 1)] if hosts else "localhost", port) for n, port in enumerate(ports)
        ]
        for url in lists.get("url", []):
            bare = re.sub(r"^https?://", "", url).split("/")[0]
            host, colon, port = bare.rpartition(":")
            if colon and port.isdigit():
                pairs.append((host, port))
        out[role] = pairs
    return out


def _role_in_proxy(instance: Instance, proxies: list[Helper], everyone: list[Instance]) -> str | None:
    port = str(instance.http_port)
    if sum(i.http_port == instance.http_port for i in everyone) > 1:
        return None
    roles = {
        role
        for proxy in proxies
        for role, found in targets(proxy).items()
        if any(p == port for _, p in found)
    }
    return roles.pop() if len(roles) == 1 else None


def local_proxy(proxies: list[Helper]) -> bool:
    """A proxy that reaches both sides through localhost: they run where it runs."""
    return any(
        all(found and all(LOOPBACK.match(host) for host, _ in found) for found in targets(proxy).values())
        for proxy in proxies
        if proxy.command.box is None
    )
