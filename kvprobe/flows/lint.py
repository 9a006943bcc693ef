"""``lint``: launch files -> instances and pairs -> rules. Looks at no GPU and runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvprobe.errors import FormatError, KvprobeError, UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Finding, Status
from kvprobe.flows import Door, Draft
from kvprobe.formats.launch_env import parse_host
from kvprobe.formats.launch_files import LIMIT_BYTES, read_command_line, read_launch
from kvprobe.formats.launch_model import HostEntry, Launch
from kvprobe.formats.launch_yaml import load_documents
from kvprobe.formats.serve_command_surface import NEWEST, Version, parse_version, show_version
from kvprobe.models.pd_instance import Instance, LintFacts
from kvprobe.models.pd_pairs import gather, own_network
from kvprobe.probes.connectors import installed
from kvprobe.rules import (
    lint_around,
    lint_behaviour,
    lint_config,
    lint_connector,
    lint_gpus,
    lint_hash,
    lint_network,
    lint_pair,
    lint_text,
    lint_transport,
)
from kvprobe.rules.base import Rule, run_rules
from kvprobe.rules.lint_base import outcome
from kvprobe.system import System

RULES: tuple[Rule[LintFacts], ...] = (
    *lint_text.RULES, *lint_config.RULES, *lint_connector.RULES, *lint_hash.RULES, *lint_pair.RULES,
    *lint_network.RULES, *lint_gpus.RULES, *lint_transport.RULES, *lint_behaviour.RULES, *lint_around.RULES,
)  # fmt: skip
_LAUNCH_FILES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".env", ".service", "hosts.txt")
_SEVERITY = {
    Status.FAIL: "error",
    Status.WARN: "warn",
    Status.UNKNOWN: "warn",
    Status.PASS: "info",
    Status.SKIP: "info",
}


def lint(door: Door, params: dict[str, Any]) -> Draft:
    """Read all inputs and judge every instance and every pair. Raises UsageError without any input."""
    paths = tuple(path for given in params["files"] for path in _expanded(door.system, given))
    if not (paths or params["prefill"] or params["decode"]):
        raise UsageError(
            "lint needs launch files, or --prefill and --decode command lines.", "See kvprobe lint --help."
        )
    version, told = _version(params["vllm_version"], door.system)
    hosts = tuple(_host(text) for text in params["host"])
    door.progress.step(f"reading {len(paths) or 'the'} launch {'file' if len(paths) == 1 else 'files'}")
    texts = {path: door.system.read_text(path, limit_bytes=LIMIT_BYTES) for path in paths}
    beside = _beside(door.system, paths)
    launches: list[tuple[Launch, str | None]] = []
    if texts:
        launches.append((read_launch(texts, beside), None))
    for role in ("prefill", "decode"):
        for at, text in enumerate(params[role], 1):
            name = f"--{role}" if len(params[role]) == 1 else f"--{role} {at}"
            launches.append((read_command_line(text, name, beside), role))
    facts = gather(launches, hosts, (version, told), _config_reader(texts, beside))
    if not facts.instances and not facts.problems and not (facts.proxies or facts.benches):
        raise FormatError(
            f"No vLLM launch was found in {', '.join(paths) or 'the command lines'}.",
            "lint understands `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `python -m dynamo.vllm` and the "
            "vllm/vllm-openai image, in scripts, compose files, Kubernetes manifests and systemd units.",
        )
    findings = tuple(run_rules(RULES, facts, door.policy))
    return Draft(
        subject=_subject(facts, version),
        findings=findings,
        evidence=(_evidence(facts, paths, params),),
        result=_result(facts, findings, version),
    )


def _expanded(system: System, path: str) -> list[str]:
    """A folder's launch files, standard input for ``-``, else the path itself. Raises UsageError for an empty folder."""
    if path == "-":
        return ["/dev/stdin"]
    if system.path_kind(path) != "dir":
        return [path]
    found = [f"{path.rstrip('/')}/{name}" for name in system.list_dir(path) if name.endswith(_LAUNCH_FILES)]
    if not found:
        raise UsageError(f"{path} holds no launch files ({', '.join(_LAUNCH_FILES)}).")
    return found


def _version(text: str | None, system: System) -> tuple[Version | None, str]:
    if text is None:
        here = parse_version(installed(system).get("vllm", ""))
        return here, "installed here" if here else ""
    version = parse_version(text)
    if version is None:
        raise UsageError(f"--vllm-version {text!r} is not a version such as 0.33.0.")
    return version, "--vllm-version"


def _host(text: str) -> HostEntry:
    role, equals, name = text.partition("=")
    entry = parse_host(role.strip(), name) if equals else None
    if entry is None:
        raise UsageError(
            f"--host {text!r} is not ROLE=NAME or 'ROLE=NAME (ADDRESS)', such as prefill=node-a."
        )
    return entry


def _beside(system: System, paths: tuple[str, ...]) -> Callable[[str], str | None]:
    """Finds a file that a script names: beside the scripts that were passed, nowhere else."""
    folders = list(dict.fromkeys(str(Path(path).parent) for path in paths))

    def find(name: str) -> str | None:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or "$" in name:
            return None
        for folder in folders:
            try:
                if system.path_kind(Path(folder) / relative) == "file":
                    return system.read_text(Path(folder) / relative, limit_bytes=LIMIT_BYTES)
            except KvprobeError:
                return None
        return None

    return find


def _config_reader(
    texts: dict[str, str], beside: Callable[[str], str | None]
) -> Callable[[str], dict[str, Any] | None]:
    by_name = {Path(path).name: text for path, text in texts.items()}

    def read(path: str) -> dict[str, Any] | None:
        text = by_name.get(Path(path).name) or beside(path)
        documents = load_documents(text, path) if text else []
        return documents[0] if documents and isinstance(documents[0], dict) else None

    return read


def _subject(facts: LintFacts, version: Version | None) -> dict[str, Any]:
    models = list(dict.fromkeys(i.serve.model for i in facts.instances if i.serve.model))
    used = [i.version for i in facts.instances if i.version] or [version or NEWEST]
    return {
        "model": ", ".join(models[:3]),
        "headline": f"vLLM {', '.join(dict.fromkeys(show_version(v) for v in used))}",
        "prefill": [i.where for i in facts.instances if i.role == "prefill"],
        "decode": [i.where for i in facts.instances if i.role == "decode"],
    }


def _evidence(facts: LintFacts, paths: tuple[str, ...], params: dict[str, Any]) -> Evidence[Any]:
    given = [f"--{role}" for role in ("prefill", "decode") if params[role]]
    return Evidence(
        id="launch",
        kind="launch_configuration",
        origin=Origin.READ,
        source=", ".join((*paths, *given)),
        facts={"instances": [_instance(i) for i in facts.instances]},
    )


def _instance(instance: Instance) -> dict[str, Any]:
    ports = instance.side_channel_ports
    return {
        "where": instance.where,
        "role": instance.role,
        "role_from": instance.role_from,
        "program": instance.serve.program.name,
        "model": instance.serve.model,
        "vllm_version": show_version(instance.version) if instance.version else None,
        "vllm_version_from": instance.version_from or None,
        "host": instance.host.name if instance.host else "own address" if own_network(instance) else None,
        "connector": instance.kv.connector if instance.kv else None,
        "kv_role": instance.kv.role if instance.kv else None,
        "tensor_parallel_size": instance.size("--tensor-parallel-size"),
        "data_parallel_size": instance.size("--data-parallel-size"),
        "http_port": instance.http_port,
        "side_channel_ports": [ports[0], ports[-1]] if ports else None,
        "devices": list(instance.devices) if instance.devices is not None else None,
        "replicas": instance.replicas,
    }


def _result(facts: LintFacts, findings: tuple[Finding, ...], version: Version | None) -> dict[str, Any]:
    return {
        "verdict": outcome(findings),
        "findings": [
            {
                "id": f.id,
                "code": f.code,
                "severity": _SEVERITY[f.status],
                "where": f.where,
                "title": f.title,
                "fix": f.remedy.text if f.remedy else None,
                "notes": list(f.notes),
            }
            for f in findings
            if f.code is not None
        ],
        "vllm_version": show_version(version or NEWEST),
        "vllm_version_assumed": version is None and any(i.version is None for i in facts.instances),
        "instances": [_instance(i) for i in facts.instances],
        "proxies": [p.command.where for p in facts.proxies],
        "benchmarks": [b.command.where for b in facts.benches],
    }
