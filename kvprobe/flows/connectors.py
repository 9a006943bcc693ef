"""``kvprobe connectors``: packages, ports, files and devices of every connector, and Mooncake beside NIXL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.formats.kv_transfer_config import KvConfig, parse_config
from kvprobe.formats.kv_transfer_config_connectors import nearest_connector
from kvprobe.formats.serve_command_surface import NEWEST, Version, parse_version, show_version
from kvprobe.models import mooncake as plans
from kvprobe.models.connector_composition import composition_problems, with_composition
from kvprobe.models.connector_facts import ConnectorFacts, result_of
from kvprobe.models.connector_needs import NEEDS, OUT_OF_SCOPE
from kvprobe.models.connectors import (
    ConnectorState,
    Machine,
    assess,
    default_version,
    needed_modules,
)
from kvprobe.models.descriptors import plan
from kvprobe.models.kv_layout import LayoutOptions, resolve
from kvprobe.models.mooncake import LIMIT_MAX
from kvprobe.models.prompt_steps import step_groups
from kvprobe.models.transfer import Setup, StepGroup, TransferFacts
from kvprobe.probes import connectors as look
from kvprobe.probes import mooncake, transfer
from kvprobe.probes.model_config import load_model_config
from kvprobe.rules.base import run_rules
from kvprobe.rules.connectors import RULES

_MOONCAKE = "MooncakeConnector"


class ConnectorsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvprobe connectors` was asked."""

    names: tuple[str, ...] = ()
    kv_transfer_config: str | None = None
    vllm_version: str | None = None
    dp: int = 1
    measure: str = "auto"
    model: str | None = None
    prompt_tokens: int = 2048
    samples: int = 10
    budget: float = 20.0


def run(door: Door, params: dict[str, Any]) -> Draft:
    """The flow; ``params`` are the options of :mod:`kvprobe.cli.connectors`. Raises UsageError."""
    request = msgspec.convert(params, ConnectorsRequest, strict=False)
    config = _config(door, request.kv_transfer_config)
    asked = _asked(request.names, config)
    groups = _groups(door, request)
    door.progress.step("Packages, ports, files, devices")
    versions = look.installed(door.system)
    version, source = _version(request.vllm_version, versions.get("vllm"))
    machine = look.machine(door.system)
    states = _states(door, request, config, asked, version, versions, machine)
    composition = composition_problems(config) if config and config.connector == "MultiConnector" else []
    states = tuple(with_composition(s, composition) if s.name == "MultiConnector" else s for s in states)
    facts = ConnectorFacts(
        vllm=show_version(version),
        vllm_source=source,
        states=states,
        asked=asked,
        composition=tuple(composition),
        multi=bool(config and config.connector == "MultiConnector"),
        plan=f"{request.prompt_tokens:,} tokens of {request.model or plans.DEFAULT_PLAN}",
        mooncake_over_tcp=_over_tcp(config, machine),
    )
    measured, evidence = _measure(door, request, facts, groups)
    return Draft(
        subject={
            "headline": f"vLLM {facts.vllm} ({source})",
            "vllm_version": facts.vllm,
            "asked": list(asked),
        },
        findings=tuple(run_rules(RULES, measured, door.policy)),
        evidence=(_machine_evidence(states, versions), *evidence),
        result=result_of(measured),
    )


def _config(door: Door, text: str | None) -> KvConfig | None:
    if text is None:
        return None
    if text.startswith("@"):
        text = door.system.read_text(text[1:], limit_bytes=1024 * 1024)
    config = parse_config(text)
    if config.fault:
        raise UsageError(
            f"--kv-transfer-config is not a JSON object: {config.detail}.", "Quote it with single quotes."
        )
    if not config.connector:
        raise UsageError("--kv-transfer-config names no kv_connector.")
    return config


def _asked(names: tuple[str, ...], config: KvConfig | None) -> tuple[str, ...]:
    found = list(names)
    if config is not None:
        found += [config.connector, *(leaf.connector for leaf in config.everyone() if leaf.connector)]
    for name in found:
        if name in NEEDS:
            continue
        outside = next(
            (k for k in OUT_OF_SCOPE if name.lower() in k.lower() or name.lower().startswith("ascend")), None
        )
        if outside:
            raise UsageError(f"{name} is out of scope: {OUT_OF_SCOPE[outside]}.")
        near = nearest_connector(name)
        hint = f"Did you mean {near}?" if near else f"Known: {', '.join(NEEDS)}."
        raise UsageError(f"vLLM registers no connector {name!r}.", hint)
    return tuple(dict.fromkeys(found))


def _version(told: str | None, installed: str | None) -> tuple[Version, str]:
    if told is not None:
        version = parse_version(told)
        if version is None:
            raise UsageError(f"--vllm-version {told!r} is not a version such as 0.33.0.")
        return version, "told"
    found = default_version(installed)
    return (found, "installed here") if found else (NEWEST, "assumed: no vLLM is installed here")


def _over_tcp(config: KvConfig | None, machine: Machine) -> bool:
    """Whether Mooncake would use TCP here: told to, or without an RDMA device it falls back by itself."""
    told = [leaf.extra.get("mooncake_protocol") for leaf in config.everyone()] if config else []
    return "tcp" in told or not machine.rdma_active


def _groups(door: Door, request: ConnectorsRequest) -> tuple[StepGroup, ...] | None:
    if request.model is None:
        return None
    config = load_model_config(door.system, request.model)
    return step_groups(plan(resolve(config.facts, LayoutOptions()), request.prompt_tokens))


def _states(
    door: Door,
    request: ConnectorsRequest,
    config: KvConfig | None,
    asked: tuple[str, ...],
    version: Version,
    versions: dict[str, str],
    machine: Machine,
) -> tuple[ConnectorState, ...]:
    names = asked or tuple(NEEDS)
    wanted = needed_modules([*names, _MOONCAKE] if request.measure == "on" else names)
    loaded = look.load_all(door.system, wanted, versions)
    environment = look.environment(door.system)
    configs = {leaf.connector: leaf.extra for leaf in config.everyone()} if config else {}
    found = []
    for name in names:
        need, extra = NEEDS[name], configs.get(name, {})
        found.append(
            assess(
                need,
                version=version,
                machine=machine,
                packages=[loaded[p] for p in need.packages],
                ports=look.ports(door.system, need, extra, request.dp, environment),
                config=look.config(door.system, need, environment),
                extra=extra,
                asked=name in asked,
                configured=name in configs,
            )
        )
    return tuple(found)


def _measure(
    door: Door, request: ConnectorsRequest, facts: ConnectorFacts, groups: tuple[StepGroup, ...] | None
) -> tuple[ConnectorFacts, list[AnyEvidence]]:
    note = _why_not(door, request, facts)
    if note is not None:
        return msgspec.structs.replace(facts, measure_note=note), []
    events = _reporter(door)
    seconds = request.budget / 2
    write = plans.steps(request.prompt_tokens, groups, "WRITE", request.samples, seconds)
    allow = request.measure == "on"
    door.progress.step("Mooncake WRITE over TCP loopback: does its queue take a request?")
    trial = [msgspec.structs.replace(s, samples=1, min_samples=1) for s in write if s.order == "shuffled"]
    default = mooncake.measure(
        door.system,
        trial,
        budget_seconds=request.budget,
        allow_open=allow,
        on_event=events,
        evidence_id="mooncake-default",
    )
    limit = LIMIT_MAX if default.facts.refused_batch is not None else None
    door.progress.step("Mooncake WRITE over TCP loopback")
    best = mooncake.measure(
        door.system,
        write,
        budget_seconds=request.budget,
        queue_limit=limit,
        allow_open=allow,
        on_event=events,
    )
    evidence: list[AnyEvidence] = [default, best]
    beside = _nixl(door, request, groups, events, seconds)
    if beside is not None:
        evidence.append(beside)
    return (
        msgspec.structs.replace(
            facts,
            mooncake=best.facts,
            mooncake_default=default.facts,
            nixl=beside.facts if beside else None,
        ),
        evidence,
    )


def _why_not(door: Door, request: ConnectorsRequest, facts: ConnectorFacts) -> str | None:
    if request.measure == "off":
        return "--measure off"
    if request.measure == "on":
        return None
    state = facts.state(_MOONCAKE)
    if state is None:
        return "Mooncake was not asked for (--measure on)"
    package = state.packages[0] if state.packages else None
    if package is None or package.loaded is None:
        return "Mooncake is not installed (pip install mooncake-transfer-engine)"
    return f"Mooncake does not load: {package.loaded.error}" if package.loaded.error else None


def _nixl(
    door: Door,
    request: ConnectorsRequest,
    groups: tuple[StepGroup, ...] | None,
    events: Callable[[dict[str, Any]], None],
    seconds: float,
) -> Evidence[TransferFacts] | None:
    door.progress.step("NIXL READ over TCP loopback")
    read = plans.steps(request.prompt_tokens, groups, "READ", request.samples, seconds)
    setup = Setup(memory="dram", env={"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"})
    return transfer.measure(
        door.system, setup, read, budget_seconds=request.budget, on_event=events, evidence_id="nixl-beside"
    )


def _reporter(door: Door) -> Callable[[dict[str, Any]], None]:
    def report(event: dict[str, Any]) -> None:
        if event["event"] == "sample":
            door.progress.detail(f"{event['step']}: {event['total_seconds'] * 1e3:,.1f} ms")

    return report


def _machine_evidence(states: tuple[ConnectorState, ...], versions: dict[str, str]) -> AnyEvidence:
    return Evidence(
        id="connectors",
        kind="connectors",
        origin=Origin.READ,
        source="package metadata, imports in child processes, ports bound on this host, /dev, /sys",
        facts=states,
        versions=versions,
    )
