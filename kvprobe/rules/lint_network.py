"""KVP520-523: addresses, ports, GPUs and namespaces of instances that run beside or far from each other."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.models.pd_instance import ANY_ADDRESS, LOOPBACK, Instance, LintFacts, Pair
from kvprobe.models.pd_pairs import own_network
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import NIXL_GUIDE, before, known, merged, say

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
        if not any(f.code for f in found):
            value = pair.prefill.setting(HOST) or ""
            found.append(
                say("KVP520", "side-channel-host", "ok", f"prefill advertises {value}", where=pair.where)
            )
    yield from merged(found)


def _advertised(side: Instance, pair: Pair) -> Iterable[Finding]:
    value = side.setting(HOST)
    other = pair.decode if side is pair.prefill else pair.prefill
    right = side.host.address if side.host and side.host.address else ""
    advice = f"{HOST}={right or 'the address of its own host'}" if not own_network(side) else (
        f"{HOST} from the pod's own IP (fieldRef: status.podIP)" if side.command.box is None or side.command.box.kind == "pod"
        else f"{HOST}={right or 'the address of its own host'}, with the side-channel port published or --network host"
    )  # fmt: skip
    if value is None or value == "":
        yield say(
            "KVP520", "side-channel-host", "error",
            f"{HOST} is not set on {side.role}, so it hands out localhost: {other.role} on another host then asks itself "
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
    elif (
        other.host
        and value in (other.host.address, other.host.name)
        and value not in (right, side.host.name if side.host else "")
    ):
        yield say(
            "KVP520", "side-channel-host", "error",
            f"{HOST}={value} on {side.role} is the address of {other.role}'s host {other.host.name}: a copied environment",
            code="side_channel_host_not_local", where=side.place(HOST), fix=f"Set {advice}.",
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
            else:
                found.append(
                    say(
                        "KVP521",
                        "ports",
                        "ok",
                        f"side-channel ports {_span(left)} and {_span(right)} do not meet",
                        where=both,
                    )
                )
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
        f"{why}; the second engine's listener dies (Address already in use) and its start hangs",
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


def gpus(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP522: no GPU is promised to two engines beyond its memory."""
    found: list[Finding] = []
    for a, b in facts.one_machine:
        left, right = a.devices, b.devices
        if left is None or right is None:
            continue
        common = [d for d in left if d in right]
        if not common:
            continue
        default = [0.9 if before(i.version, (0, 20, 0)) else 0.92 for i in (a, b)]
        shares = [_fraction(i, d) for i, d in zip((a, b), default, strict=True)]
        if None in shares or sum(s or 0 for s in shares) <= 1:
            continue
        said = [
            f"{share:g}" + ("" if i.serve.has("--gpu-memory-utilization") else " (default)")
            for i, share in zip((a, b), shares, strict=True)
        ]
        unset = [i.where for i in (a, b) if not _pinned(i)]
        found.append(
            say(
                "KVP522", "gpu-shared", "error",
                f"GPU {', '.join(common)} is used by both with memory shares {said[0]} + {said[1]} > 1: the second runs out of memory",
                code="same_gpu_overcommit", where=f"{a.where} / {b.where}",
                fix="Give each its own GPU (CUDA_VISIBLE_DEVICES), or lower --gpu-memory-utilization so that they sum to less than 1.",
                notes=(f"CUDA_VISIBLE_DEVICES is not set on {' and '.join(unset)}, so counting starts at GPU 0.",) if unset else (),
            )
        )  # fmt: skip
    yield from merged(found)


def _pinned(instance: Instance) -> bool:
    box = instance.command.box
    return instance.setting("CUDA_VISIBLE_DEVICES") is not None or bool(
        box and box.gpus.startswith("device=")
    )


def _fraction(instance: Instance, default: float) -> float | None:
    text = instance.serve.get("--gpu-memory-utilization")
    if text is None:
        return None if instance.serve.unread or instance.serve.has("--kv-cache-memory-bytes") else default
    try:
        return float(text)
    except ValueError:
        return None


def containers(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP523: containers on one machine share what CUDA IPC needs: the PID namespace and a view of both GPUs."""
    found: list[Finding] = []
    for pair in facts.pairs:
        left, right = pair.prefill.command.box, pair.decode.command.box
        if left is None or right is None or pair.one_machine is not True:
            continue
        if not (pair.prefill.uses_ucx and pair.decode.uses_ucx):
            continue
        shared = _one_pid_namespace(pair)
        blind = left.gpus.startswith("device=") and right.gpus.startswith("device=") and not (
            set(left.gpus[7:].split(",")) & set(right.gpus[7:].split(","))
        )  # fmt: skip
        if shared and not blind:
            found.append(
                say(
                    "KVP523",
                    "containers-cuda-ipc",
                    "ok",
                    "both containers share a PID namespace",
                    where=pair.where,
                )
            )
            continue
        missing = []
        if not shared:
            missing.append("have separate PID namespaces")
        if blind:
            missing.append("each see only their own GPU")
        pod = left.kind == "pod"
        fix = (
            ("shareProcessNamespace: true" if left.unit == right.unit else "hostPID: true on both") if pod
            else f"--pid=container:{left.name or 'PREFILL'} on decode (or --pid=host on both), --ipc=host"
        )  # fmt: skip
        found.append(
            say(
                "KVP523", "containers-cuda-ipc", "warn",
                f"the containers {' and '.join(missing)}, so UCX cannot use cuda_ipc between them and KV goes over TCP "
                "at under 1 GB/s, without an error",
                code="containers_no_cuda_ipc", where=pair.where,
                fix=f"Set {fix}, and give both containers both GPUs, choosing with CUDA_VISIBLE_DEVICES.",
                links=("https://github.com/openucx/ucx/issues/11978",),
            )
        )  # fmt: skip
    for instance in facts.instances:
        box = instance.command.box
        if box is None or box.kind == "pod" or box.shm or box.ipc or (instance.gpus_needed or 1) < 2:
            continue
        found.append(
            say(
                "KVP523", "containers-cuda-ipc", "info",
                "the container has Docker's 64 MiB of shared memory; NCCL between its GPUs wants more",
                code="container_shm_small", where=instance.where, fix="Add --ipc=host or --shm-size=16g.",
            )
        )  # fmt: skip
    yield from merged(found)


def _one_pid_namespace(pair: Pair) -> bool:
    left, right = pair.prefill.command.box, pair.decode.command.box
    if left is None or right is None:
        return True
    if left.kind == "pod" and left.unit == right.unit and left.pid == "shared":
        return True
    names = [{b.name, b.unit} - {""} for b in (left, right)]
    joined = [re.sub(r"^(container|service):", "", b.pid) for b in (left, right)]
    return (left.pid == right.pid == "host") or joined[1] in names[0] or joined[0] in names[1] or (
        bool(joined[0]) and joined[0] == joined[1]
    )  # fmt: skip


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP520", "side-channel-host", side_channel_host),
    Rule("KVP521", "ports", ports),
    Rule("KVP522", "gpu-shared", gpus),
    Rule("KVP523", "containers-cuda-ipc", containers),
)
