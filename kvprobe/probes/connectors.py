"""What connectors need and the machine has: packages that load, free ports, configuration files, devices."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from kvprobe.errors import ProbeError
from kvprobe.formats.mooncake_config import problem_of
from kvprobe.models.connector_needs import NEEDS, Need, Package, Port
from kvprobe.models.connectors import ConfigState, ImportOutcome, Machine, PackageState, PortState
from kvprobe.probes import packages
from kvprobe.processes import WorkerJob
from kvprobe.system import System

_IMPORT_SECONDS = 90.0
_CONNECT_SECONDS = 1.0
_RDMA = "/sys/class/infiniband"


def installed(system: System) -> dict[str, str]:
    """Distributions that connectors need, and vLLM itself -> version."""
    needed = {d for n in NEEDS.values() for p in n.packages for d in p.distributions}
    return packages.installed(system, sorted(needed | {"vllm", "torch"}))


def load(system: System, package: Package, versions: Mapping[str, str]) -> PackageState:
    """Import the package in a child process, if one of its distributions is installed. Never raises."""
    here = next((d for d in package.distributions if d in versions), None)
    if here is None:
        return PackageState()
    job = WorkerJob(
        name="import",
        module="kvprobe.workers.connector_import",
        args={"modules": list(package.modules), "libraries": list(package.libraries), "then": package.then},
    )
    (outcome,) = system.run_workers(
        [job], deadline_seconds=_IMPORT_SECONDS, key={"probe": "import", "modules": list(package.modules)}
    )
    if outcome.result is not None:
        loaded = ImportOutcome(
            **{**outcome.result, "missing_libraries": tuple(outcome.result["missing_libraries"])}
        )
    else:
        loaded = ImportOutcome(error=f"importing it ended the process ({outcome.error})")
    return PackageState(distribution=here, version=versions[here], loaded=loaded)


def ports(
    system: System, need: Need, extra: Mapping[str, Any], ranks: int, environment: Mapping[str, str]
) -> tuple[PortState, ...]:
    """Try the connector's ports: bind those it listens on (one per data-parallel rank), call those that must answer."""
    found = []
    for port in need.ports:
        host = environment.get(port.host_variable or "", "") or "127.0.0.1"
        first = _number(port, extra, environment)
        if first is None:
            told = environment.get(port.variable or "") or extra.get(port.extra_key or "")
            found.append(
                PortState(
                    what=port.what,
                    host=host,
                    port=0,
                    serves=port.serves,
                    free=None,
                    detail=f"{told!r} is not a port",
                )
            )
            continue
        count = ranks if port.serves and port.variable == "VLLM_NIXL_SIDE_CHANNEL_PORT" else 1
        found += [_try(system, port, host, number) for number in range(first, min(first + count, 65536))]
    return tuple(found)


def _number(port: Port, extra: Mapping[str, Any], environment: Mapping[str, str]) -> int | None:
    value: Any = port.default
    if port.variable and environment.get(port.variable):
        value = environment[port.variable]
    elif port.extra_key and port.extra_key in extra:
        value = extra[port.extra_key]
    text = str(value)
    return int(text) if re.fullmatch(r"\d{1,5}", text) and 0 < int(text) < 65536 else None


def _try(system: System, port: Port, host: str, number: int) -> PortState:
    def bind() -> list[Any]:
        try:
            with socket.socket(_family(host), socket.SOCK_STREAM) as sock:
                # As zmq and asyncio servers do: a port in TIME_WAIT is free for them.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, number))
                sock.listen(1)
            return [True, ""]
        except OSError as error:
            return [False if error.errno == errno.EADDRINUSE else None, error.strerror or str(error)]

    def connect() -> list[Any]:
        try:
            with socket.create_connection((host, number), timeout=_CONNECT_SECONDS):
                return [False, ""]
        except OSError as error:
            return [True, error.strerror or str(error)]

    free, detail = system.observe("port", [host, number, port.serves], bind if port.serves else connect)
    return PortState(what=port.what, host=host, port=number, serves=port.serves, free=free, detail=detail)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def config(system: System, need: Need, environment: Mapping[str, str]) -> ConfigState | None:
    """The connector's configuration file, read and checked. Never raises."""
    if need.config_variable is None:
        return None
    path = environment.get(need.config_variable)
    if not path:
        return ConfigState(variable=need.config_variable, path=None)
    try:
        text = system.read_text(path, limit_bytes=1024 * 1024)
    except ProbeError as error:
        return ConfigState(
            variable=need.config_variable, path=path, problem=error.reason.removeprefix(f"{path} ")
        )
    problem = (
        problem_of(text, path) if need.config_variable == "MOONCAKE_CONFIG_PATH" else _yaml_problem(text)
    )
    return ConfigState(variable=need.config_variable, path=path, problem=problem)


def _yaml_problem(text: str) -> str | None:
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        return f"not valid YAML{f' (line {mark.line + 1})' if mark else ''}"
    return None if isinstance(value, dict) else "not a mapping of settings"


def environment(system: System) -> dict[str, str]:
    """The variables that decide ports and configuration files."""
    names = {p.variable for n in NEEDS.values() for p in n.ports} | {
        p.host_variable for n in NEEDS.values() for p in n.ports
    }
    names |= {n.config_variable for n in NEEDS.values()} | {"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"}
    return system.environ(sorted(name for name in names if name))


def machine(system: System) -> Machine:
    """Devices and free host memory."""
    active = [d for d in system.list_dir(_RDMA) if _active(system, d)]
    return Machine(
        cuda=system.path_kind("/dev/nvidiactl") != "absent" or system.path_kind("/dev/dxg") != "absent",
        amd=system.path_kind("/dev/kfd") != "absent",
        rdma_active=tuple(active),
        memory_available_bytes=_available(system),
    )


def _active(system: System, device: str) -> bool:
    base = f"{_RDMA}/{device}/ports"
    return any("ACTIVE" in (_text(system, f"{base}/{p}/state") or "") for p in system.list_dir(base))


def _available(system: System) -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _text(system, "/proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _text(system: System, path: str) -> str | None:
    try:
        return system.read_text(path)
    except ProbeError:
        return None


def load_all(
    system: System, packages: Sequence[Package], versions: Mapping[str, str]
) -> dict[Package, PackageState]:
    """Each package once, however many connectors need it."""
    return {package: load(system, package, versions) for package in packages}
