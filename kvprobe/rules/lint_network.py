"""KVP520-521: addresses and ports of instances that run beside or far from each other."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.models.pd_instance import ANY_ADDRESS, LOOPBACK, Instance, LintFacts, Pair
from kvprobe.models.pd_pairs import own_network
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import NIXL_GUIDE, known, merged, say

HOST, PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
_DOCKER_BRIDGE = re.compile(r"^172\.17\.")


def _apart(pair: Pair) -> bool:
    """The sides do not share a loopback: other hosts, pods, containers on a bridge."""
    return pair.one_host is False


def side_channel_host(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP520: across hosts, prefill advertises an address that decode can reach."""
    found: list[Finding] = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        if pair.one_host is None:
            found.append(
                say(
                    "KVP520", "side-channel-host", "skip",
                    "nobody says on which hosts prefill and decode run, so addresses and ports were not compared",
                    where=pair.where, fix="Pass --host prefill=NAME --host decode=NAME (pod: an address of its own each).",
                )
            )  # fmt: skip
            continue
        if not _apart(pair):
            continue
        found += _advertised(pair.prefill, pair)
        if pair.decode.bidirectional or pair.decode.nixl.connector == "NixlPushConnector":
            found += _advertised(pair.decode, pair)
        else:
            found += _copied(pair.decode, pair)
        if not any(f.code for f in found):
            value = pair.prefill.setting(HOST) or ""
            found.append(
                say("KVP520", "side-channel-host", "ok", f"prefill advertises {value}", where=pair.where)
            )
    yield from merged(found)


def _right_address(side: Instance) -> str:
    own = f"{HOST}={(side.host.address if side.host else '') or 'the address of its own host'}"
    if not own_network(side):
        return own
    if side.command.box is None or side.command.box.kind == "pod":
        return f"{HOST} from the pod's own IP (fieldRef: status.podIP)"
    return f"{own}, with the side-channel port published or --network host"


def _advertised(side: Instance, pair: Pair) -> Iterable[Finding]:
    value = side.setting(HOST)
    other = pair.decode if side is pair.prefill else pair.prefill
    advice = _right_address(side)
    if value is None or value == "":
        yield say(
            "KVP520", "side-channel-host", "error",
            f"{HOST} is not set on {side.role}, so it hands out localhost\n{other.role} on another host then asks itself "
            "(engine ID mismatch or a timeout)",
            code="side_channel_host_missing", where=side.where,
            fix=f"Set {advice}; and its own address on {other.role} too.", links=(NIXL_GUIDE,),
        )  # fmt: skip
        return
    if not known(value):
        return
    if LOOPBACK.match(value) or ANY_ADDRESS.match(value):
        yield say(
            "KVP520", "side-channel-host", "error",
            f"{HOST}={value} on {side.role} is the address it hands out, and {other.role} on another host cannot reach it",
            code="side_channel_host_unroutable", where=side.place(HOST), fix=f"Set {advice}.", links=(NIXL_GUIDE,),
        )  # fmt: skip
    elif _DOCKER_BRIDGE.match(value):
        yield say(
            "KVP520", "side-channel-host", "warn",
            f"{HOST}={value} on {side.role} is in Docker's default bridge network, which other hosts cannot reach",
            code="side_channel_host_unroutable", where=side.place(HOST), fix=f"Set {advice}.",
        )  # fmt: skip
    else:
        yield from _copied(side, pair)


def _copied(side: Instance, pair: Pair) -> Iterable[Finding]:
    """The other host's address cannot be bound here, whichever side asks the other (``Cannot assign requested address``)."""
    value = side.setting(HOST)
    other = pair.decode if side is pair.prefill else pair.prefill
    own = (side.host.address, side.host.name) if side.host else ()
    if value and other.host and value in (other.host.address, other.host.name) and value not in own:
        yield say(
            "KVP520", "side-channel-host", "error",
            f"{HOST}={value} on {side.role} is the address of {other.role}'s host {other.host.name}: a copied environment\n"
            f"{side.role} cannot bind it and hangs at start (Cannot assign requested address)",
            code="side_channel_host_not_local", where=side.place(HOST), fix=f"Set {_right_address(side)}.",
        )  # fmt: skip


def ports(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP521: instances that share a host listen on different ports, data-parallel ranks included."""
    found: list[Finding] = []
    for a, b in facts.one_port_space:
        both = f"{a.where} / {b.where}"
        left, right = a.side_channel_ports, b.side_channel_ports
        if left is not None and right is not None:
            common = sorted(set(left) & set(right))
            if common:
                found.append(_side_channel(a, b, left, right, common[0]))
        if a.http_port is not None and a.http_port == b.http_port and not _headless(a) and not _headless(b):
            found.append(
                say(
                    "KVP521", "ports", "error",
                    f"both listen on HTTP port {a.http_port} of one host: the second does not start",
                    code="http_port_collision", where=both, fix=f"Give one a different --port, such as {a.http_port + 100}.",
                )
            )  # fmt: skip
        for one, two in ((a, b), (b, a)):
            side = one.side_channel_ports
            if side is not None and two.http_port in side:
                found.append(
                    say(
                        "KVP521", "ports", "error",
                        f"HTTP port {two.http_port} of one instance is a side-channel port ({_span(side)}) of the other",
                        code="side_channel_port_collision", where=both, fix=f"Move {PORT} or --port.",
                    )
                )  # fmt: skip
        found += _mooncake(a, b, both)
    for instance in facts.instances:
        found += _encoder(instance)
    if facts.one_port_space and not found:
        count = len(facts.one_port_space)
        yield say(
            "KVP521",
            "ports",
            "ok",
            f"no port is used twice on one host ({count} pair{'s' * (count > 1)} of instances compared)",
        )
    yield from merged(found)


def _headless(instance: Instance) -> bool:
    return instance.serve.has("--headless")


def _span(ports: range) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _side_channel(a: Instance, b: Instance, left: range, right: range, port: int) -> Finding:
    unset = [i for i in (a, b) if i.setting(PORT) is None]
    ranks = max(len(left), len(right))
    why = f"{PORT} is set on neither, so both use {port}" if len(unset) == 2 else f"port {port} is in both"
    if ranks > 1:
        why = f"side-channel ports {_span(left)} and {_span(right)} overlap at {port}: each data-parallel rank listens on {PORT} + rank"
    second = left[-1] + 1 if ranks == 1 else left[0] + max(10, ranks)
    file = (
        f"{a.command.file} {a.role}+{b.role}"
        if a.command.file == b.command.file
        else f"{a.where} / {b.where}"
    )
    return say(
        "KVP521", "ports", "error",
        f"{why}\nthe second engine's listener dies (Address already in use) and its start hangs",
        code="side_channel_port_collision", where=file,
        fix=f"Set {PORT}={left[0]} on one and {PORT}={second} on the other"
        + (f", at least {ranks} apart (data_parallel_size)." if ranks > 1 else "."),
        links=(NIXL_GUIDE,),
    )  # fmt: skip


def _encoder(instance: Instance) -> Iterable[Finding]:
    side = instance.side_channel_ports
    if side is None or not instance.serve.has("--ec-transfer-config"):
        return
    text = instance.setting("VLLM_EC_SIDE_CHANNEL_PORT") or "5601"
    if text.isdigit() and int(text) in side:
        yield say(
            "KVP521", "ports", "error",
            f"the encoder-cache port {text} lies in this instance's own NIXL side-channel ports {_span(side)}",
            code="side_channel_port_collision", where=instance.where,
            fix=f"Set VLLM_EC_SIDE_CHANNEL_PORT or {PORT} so that they are apart.",
        )  # fmt: skip


def _mooncake(a: Instance, b: Instance, both: str) -> Iterable[Finding]:
    servers = [
        i.pd is not None and i.pd.connector == "MooncakeConnector" and i.role == "prefill" for i in (a, b)
    ]
    numbers = [i.setting("VLLM_MOONCAKE_BOOTSTRAP_PORT") or "8998" for i in (a, b)]
    if all(servers) and numbers[0] == numbers[1]:
        yield say(
            "KVP521", "ports", "error",
            f"both prefill instances start a Mooncake bootstrap server on port {numbers[0]} of one host",
            code="bootstrap_port_collision", where=both, fix="Set a different VLLM_MOONCAKE_BOOTSTRAP_PORT on one.",
        )  # fmt: skip


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP520", "side-channel-host", side_channel_host),
    Rule("KVP521", "ports", ports),
)
