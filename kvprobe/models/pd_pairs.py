"""Which instances belong together and which share a host: from options, hosts files, proxies, names and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from kvprobe.errors import FormatError
from kvprobe.formats.kv_transfer_config import read_config
from kvprobe.formats.launch_model import Command, HostEntry, Launch, Problem, Setting, is_dynamic
from kvprobe.formats.serve_command import ServeCommand, parse_command
from kvprobe.formats.serve_command_surface import Version, parse_version
from kvprobe.models.pd_instance import ANY_ADDRESS, LOOPBACK, Helper, Instance, LintFacts, Pair, role_of
from kvprobe.models.pd_roles import local_proxy, with_role

_INSTANCE_LIMIT = 128
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def gather(
    launches: Iterable[tuple[Launch, str | None]],
    hosts: tuple[HostEntry, ...],
    version: tuple[Version | None, str],
    config_file: Callable[[str], dict[str, Any] | None] = lambda path: None,
) -> LintFacts:
    """Instances, pairs, proxies and benchmarks of all inputs.

    Each launch comes with the role that ``--prefill``/``--decode`` gave it; ``version`` holds where no image tag
    says another, with its source.
    """
    instances: list[Instance] = []
    proxies: list[Helper] = []
    benches: list[Helper] = []
    renders: list[Helper] = []
    problems: list[Problem] = []
    ignored: list[str] = []
    for launch, role in launches:
        problems += launch.problems
        ignored += launch.ignored
        hosts = (*hosts, *launch.hosts)
        for command in launch.commands:
            command = _with_loose_env(command, launch.unused_env)
            its_version, its_source = _version(command, version)
            default = command.box is not None and command.box.default_entrypoint
            serve = parse_command(command.argv, its_version, config_file, default_entrypoint=default)
            if serve is None:
                continue
            kind = serve.program.kind
            if kind == "proxy":
                proxies.append(Helper(command=command, serve=serve))
            elif kind == "bench":
                benches.append(Helper(command=command, serve=serve))
            elif kind == "render":
                renders.append(Helper(command=command, serve=serve))
            elif kind in ("serve", "dynamo"):
                instances.append(_instance(command, serve, role, its_version, its_source))
    if len(instances) > _INSTANCE_LIMIT:
        raise FormatError(
            f"{len(instances):,} vLLM instances are more than the {_INSTANCE_LIMIT} that lint compares."
        )
    instances = [with_role(i, proxies, instances) for i in instances]
    instances = [msgspec.structs.replace(i, host=_host(i, hosts)) for i in instances]
    variants = tuple((a, b) for a, b in _couples(instances) if _alternatives(a, b))
    dropped = {id(b) for _, b in variants}
    together = [(a, b) for a, b in _couples(instances) if id(a) not in dropped and id(b) not in dropped]
    local = local_proxy(proxies)
    return LintFacts(
        instances=tuple(instances),
        pairs=tuple(_pairs(instances, local)),
        proxies=tuple(proxies),
        benches=tuple(benches),
        renders=tuple(renders),
        problems=tuple(problems),
        ignored=tuple(ignored),
        variants=variants,
        one_port_space=tuple((a, b) for a, b in together if one_host(a, b, local)),
        one_machine=tuple((a, b) for a, b in together if one_machine(a, b, local)),
    )


def _couples(items: list[Instance]) -> list[tuple[Instance, Instance]]:
    return [(a, b) for at, a in enumerate(items) for b in items[at + 1 :]]


def _with_loose_env(command: Command, loose: Mapping[str, dict[str, Setting]]) -> Command:
    """An environment file that nobody was seen to read belongs to the role in its name, or to all."""
    extra: dict[str, Setting] = {}
    for name, settings in loose.items():
        its_role = role_of(name)
        mine = next((r for h in (*command.hints, command.name, command.file) if (r := role_of(h))), None)
        if its_role is None or mine is None or its_role == mine:
            extra |= settings
    return msgspec.structs.replace(command, env={**extra, **command.env}) if extra else command


def _version(command: Command, given: tuple[Version | None, str]) -> tuple[Version | None, str]:
    image = command.box.image if command.box else ""
    path, _, tag = image.partition("@")[0].rpartition(":")
    if path and "vllm" in path and "dynamo" not in path and (found := parse_version(tag)):
        return found, f"image {image}"
    if "dynamo" in path:
        return None, f"image {image}"
    return given


def _instance(
    command: Command, serve: ServeCommand, role: str | None, version: Version | None, source: str
) -> Instance:
    return Instance(
        command=command,
        serve=serve,
        role=role,
        role_from=f"--{role}" if role else "",
        version=version,
        version_from=source,
        kv=read_config(serve),
    )


def _host(instance: Instance, hosts: tuple[HostEntry, ...]) -> HostEntry | None:
    name, file = instance.command.name, instance.command.file
    for entry in hosts:
        if entry.role and entry.role in (name, file, file.rsplit(".", 1)[0]):
            return entry
    for entry in hosts:
        if entry.role == instance.role:
            # `--host` has the name, a hosts file may add the address and what the fabric is.
            more = [h for h in hosts if h.role == entry.role and h.name == entry.name]
            address = next((h.address for h in more if h.address), "")
            return HostEntry(
                role=entry.role,
                name=entry.name,
                address=address,
                note=" ".join(h.note for h in more if h.note),
            )
    ssh = next((h.removeprefix("host=") for h in instance.command.hints if h.startswith("host=")), None)
    return HostEntry(role=instance.role or "", name=ssh) if ssh else None


def own_network(instance: Instance) -> bool:
    """It has an address of its own: a pod, or a container on a bridge."""
    box = instance.command.box
    if box is not None:
        return not box.network_host
    return instance.host is not None and instance.host.name == "pod"


def one_host(a: Instance, b: Instance, local: bool = False) -> bool | None:
    """Whether two instances share one network namespace, so that ports collide and localhost works."""
    if own_network(a) or own_network(b):
        left, right = a.command.box, b.command.box
        return bool(
            left
            and right
            and left.kind == "pod"
            and left.unit == right.unit
            and a.command.file == b.command.file
        )
    return one_machine(a, b, local)


def one_machine(a: Instance, b: Instance, local: bool = False) -> bool | None:
    """Whether two instances run on one machine; None if nobody said."""
    left, right = a.command.box, b.command.box
    local = local and left is None and right is None
    if left and right and left.kind == right.kind == "pod":
        if left.unit == right.unit and a.command.file == b.command.file:
            return True
        if left.node and right.node:
            return left.node == right.node
    if a.host and b.host and "pod" not in (a.host.name, b.host.name):
        return a.host.name == b.host.name or bool(a.host.address and a.host.address == b.host.address)
    if left and right and left.kind == "pod":
        return None
    if (a.host is None) != (b.host is None):
        return None
    theirs = [_advertised(a), _advertised(b)]
    if all(theirs) and theirs[0] != theirs[1]:
        return False
    if left and right and left.kind == right.kind == "compose" and a.command.file == b.command.file:
        return True
    if a.command.file and a.command.file == b.command.file and left is None and right is None:
        # In one script, but not beside each other: two paragraphs of instructions, or two hosts' commands.
        beside = a.command.background and not (a.command.elsewhere or b.command.elsewhere)
        return True if beside or local else None
    if a.command.file == b.command.file and left and right and left.kind == right.kind == "docker":
        return True
    return True if local or (all(theirs) and theirs[0] == theirs[1]) or _complementary(a, b) else None


def _complementary(a: Instance, b: Instance) -> bool:
    """Different GPUs and different ports written out on both: nobody does that across hosts."""
    if a.command.elsewhere or b.command.elsewhere or (a.command.box is None) != (b.command.box is None):
        return False
    named = [set((i.setting("CUDA_VISIBLE_DEVICES") or "").split(",")) - {""} for i in (a, b)]
    return bool(named[0] and named[1] and not named[0] & named[1] and a.http_port != b.http_port)


def _advertised(instance: Instance) -> str:
    text = instance.setting("VLLM_NIXL_SIDE_CHANNEL_HOST") or ""
    return "" if not text or is_dynamic(text) or LOOPBACK.match(text) or ANY_ADDRESS.match(text) else text


def _alternatives(a: Instance, b: Instance) -> bool:
    """The same place, the same port and the same GPUs in two files: two versions of one instance, not two instances."""
    return (
        a.role == b.role
        and a.command.file != b.command.file
        and a.http_port == b.http_port
        and a.setting("CUDA_VISIBLE_DEVICES") == b.setting("CUDA_VISIBLE_DEVICES")
        and not own_network(a)
        and not own_network(b)
        and (a.host.name if a.host else "") == (b.host.name if b.host else "")
        and a.command.box == b.command.box
    )


def _pairs(instances: list[Instance], local: bool) -> list[Pair]:
    """Every prefill with every decode; a file that holds both sides is a deployment of its own."""
    sides = {role: [i for i in instances if i.role == role] for role in ("prefill", "decode")}
    files = {role: {i.command.file for i in found} for role, found in sides.items()}
    whole = files["prefill"] & files["decode"]
    loose = {role: [i for i in found if i.command.file not in whole] for role, found in sides.items()}

    def together(p: Instance, d: Instance) -> bool:
        if p.command.file == d.command.file:
            return True
        if p.command.file in whole and d.command.file in whole:
            return False
        # Half a deployment goes with the other halves; with a whole one only where there is no other half.
        return (p in loose["prefill"] or not loose["prefill"]) and (
            d in loose["decode"] or not loose["decode"]
        )

    return [
        Pair(prefill=p, decode=d, one_host=one_host(p, d, local), one_machine=one_machine(p, d, local))
        for p in sides["prefill"]
        for d in sides["decode"]
        if together(p, d)
    ]
