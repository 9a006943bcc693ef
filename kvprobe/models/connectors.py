"""From facts of the machine to the state of each connector: ready, or what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS
from kvprobe.formats.serve_command_surface import Version, parse_version, show_version
from kvprobe.models.connector_needs import LIBRARY_REMEDIES, NEEDS, Need, Package

READY, NOT_READY, NOT_IN_VERSION, UNKNOWN = "ready", "not_ready", "not_in_version", "unknown"


class ImportOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process saw when it imported one of a package's modules."""

    module: str | None = None
    error: str | None = None
    seconds: float | None = None
    missing_libraries: tuple[str, ...] = ()


class PackageState(msgspec.Struct, frozen=True, kw_only=True):
    """One package: which distribution is installed, and whether it loads."""

    distribution: str | None = None
    version: str | None = None
    loaded: ImportOutcome | None = None
    """None: not installed, so nothing was imported."""


class PortState(msgspec.Struct, frozen=True, kw_only=True):
    """One port of a connector."""

    what: str
    host: str
    port: int
    serves: bool
    """The connector listens there itself; otherwise a server has to answer."""
    free: bool | None
    """None: could not be tried."""
    detail: str = ""


class ConfigState(msgspec.Struct, frozen=True, kw_only=True):
    """A connector's configuration file."""

    variable: str
    path: str | None
    problem: str | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Devices and memory that connectors need."""

    cuda: bool
    amd: bool
    rdma_active: tuple[str, ...] = ()
    memory_available_bytes: int | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is missing or wrong; ``kind``: version, package, library, port, config, device, substitute, option."""

    kind: str
    text: str
    fix: str = ""
    fatal: bool = True


class ConnectorState(msgspec.Struct, frozen=True, kw_only=True):
    """A connector on this machine."""

    name: str
    purpose: str
    status: str
    """``ready``, ``not_ready``, ``not_in_version``."""
    pd: bool
    hma: bool
    asked: bool
    packages: tuple[PackageState, ...] = ()
    ports: tuple[PortState, ...] = ()
    config: ConfigState | None = None
    problems: tuple[Problem, ...] = ()


def assess(
    need: Need,
    *,
    version: Version,
    machine: Machine,
    packages: Sequence[PackageState],
    ports: Sequence[PortState],
    config: ConfigState | None,
    extra: dict[str, Any],
    asked: bool,
    configured: bool = False,
) -> ConnectorState:
    """Everything that keeps the connector from working here, the decisive first.

    ``configured``: ``extra`` is the operator's kv_connector_extra_config, so what it lacks is a fault.
    """
    row = CONNECTORS[need.name]
    problems: list[Problem] = []
    if row.until is not None and version >= row.until:
        problems.append(_version_problem(f"{need.name} was removed in vLLM {show_version(row.until)}"))
    elif row.since is not None and version < row.since:
        problems.append(_version_problem(f"{need.name} came with vLLM {show_version(row.since)}"))
    gone = bool(problems)
    if not gone:
        for package, state in zip(need.packages, packages, strict=True):
            problems += _package_problems(package, state, version)
        problems += _device_problems(need, machine)
        problems += [p for port in ports if (p := _port_problem(port))]
        problems += _config_problems(need, config)
        if configured:
            problems += [
                Problem(kind="option", text=f"kv_connector_extra_config lacks {key}", fix=f"Add {key}.")
                for key in need.required_extra
                if key not in extra
            ]
            problems += _memory_problems(need, machine, extra)
        if need.substitute and (need.debug or any(p.kind in ("package", "library") for p in problems)):
            problems.append(
                Problem(
                    kind="substitute",
                    text=need.substitute,
                    fix="Do not serve users with it." if need.debug else "",
                )
            )
    fatal = [p for p in problems if p.fatal and not (p.kind == "substitute" and need.debug)]
    return ConnectorState(
        name=need.name,
        purpose=need.purpose,
        status=NOT_IN_VERSION if gone else NOT_READY if fatal else READY,
        pd=row.pd,
        hma=row.hma,
        asked=asked,
        packages=tuple(packages),
        ports=tuple(ports),
        config=config,
        problems=tuple(problems),
    )


def _version_problem(text: str) -> Problem:
    return Problem(kind="version", text=text, fix="Use another vLLM or another connector.")


def _package_problems(package: Package, state: PackageState, version: Version) -> list[Problem]:
    names = " or ".join(dict.fromkeys(m.split(".")[0] for m in package.modules))
    if state.loaded is None:
        return [
            Problem(kind="package", text=f"{names} is not installed", fix=f"Install it: {package.install}.")
        ]
    found: list[Problem] = []
    if state.loaded.error:
        missing = state.loaded.missing_libraries
        fixes = [
            f"{lib}: {LIBRARY_REMEDIES.get(lib, 'install the package that holds it')}" for lib in missing
        ]
        what = state.distribution or names
        found.append(
            Problem(
                kind="library",
                text=f"{what} {state.version or ''} does not load: {state.loaded.error}".replace("  ", " "),
                fix="Needed " + "; ".join(fixes) + "." if fixes else f"Reinstall it: {package.install}.",
            )
        )
    for since, lowest in package.minimum:
        have = parse_version(state.version or "")
        wanted = parse_version(lowest)
        if version >= since and have and wanted and have < wanted:
            text = f"{state.distribution} {state.version} is older than {lowest}, which vLLM {show_version(since)} asks for"
            found.append(
                Problem(
                    kind="package",
                    text=text,
                    fix=f"Upgrade it: pip install -U '{state.distribution}>={lowest}'.",
                )
            )
    return found


def _device_problems(need: Need, machine: Machine) -> list[Problem]:
    if need.device == "cuda" and not machine.cuda:
        return [
            Problem(
                kind="device",
                text="no NVIDIA GPU is visible here",
                fix="Run it on the GPU node, in vLLM's container.",
            )
        ]
    if need.device == "amd" and not machine.amd:
        return [
            Problem(
                kind="device", text="no AMD GPU (/dev/kfd) is visible here", fix="It runs on AMD GPUs only."
            )
        ]
    return []


def _port_problem(port: PortState) -> Problem | None:
    if port.free is None:
        return Problem(
            kind="port", text=f"{port.what} {port.host}:{port.port} could not be tried: {port.detail}",
            fix="Name an address of this host.",
        )  # fmt: skip
    if port.serves and not port.free:
        return Problem(
            kind="port", text=f"{port.what} port {port.port} on {port.host} is in use{_detail(port)}",
            fix="Stop the other instance, or give this one another port.", fatal=True,
        )  # fmt: skip
    if not port.serves and port.free:
        return Problem(
            kind="port",
            text=f"no {port.what} answers on {port.host}:{port.port}{_detail(port)}",
            fix="Start it first.",
        )
    return None


def _detail(port: PortState) -> str:
    return f" ({port.detail})" if port.detail else ""


def _config_problems(need: Need, config: ConfigState | None) -> list[Problem]:
    if need.config_variable is None:
        return []
    if config is None or config.path is None:
        if not need.config_required:
            return []
        text = f"{need.config_variable} is not set; there is no default"
        return [
            Problem(kind="config", text=text, fix=f"export {need.config_variable}=/path/to/mooncake.json.")
        ]
    if config.problem:
        return [Problem(kind="config", text=f"{config.path}: {config.problem}", fix="Correct the file.")]
    return []


def _memory_problems(need: Need, machine: Machine, extra: dict[str, Any]) -> list[Problem]:
    """Host memory that the configuration asks for and the machine has not."""
    if machine.memory_available_bytes is None:
        return []
    wanted: float | None = None
    for key in ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
        if isinstance(extra.get(key), int | float) and not isinstance(extra.get(key), bool):
            wanted = float(extra[key])
    pool = extra.get("host_pool_gib")
    if need.name == "HiSparseConnector" and isinstance(pool, int | float) and not isinstance(pool, bool):
        if pool <= 0:
            return [
                Problem(
                    kind="option", text=f"host_pool_gib is {pool}; it must be above 0", fix="Set its size."
                )
            ]
        wanted = float(pool) * 2**30
    if wanted is None or not wanted > machine.memory_available_bytes:
        return []
    text = f"asks for {wanted / 2**30:,.1f} GiB of host memory; {machine.memory_available_bytes / 2**30:,.1f} GiB are available"
    return [Problem(kind="device", text=text, fix="Ask for less, or give the container more.")]


def default_version(installed: str | None) -> Version | None:
    """The version of an installed vLLM; None when it cannot be read."""
    return parse_version(installed) if installed and re.match(r"\d", installed) else None


def needed_modules(names: Sequence[str]) -> tuple[Package, ...]:
    """The packages of the named connectors, each once."""
    found: list[Package] = []
    for name in names:
        found += [p for p in NEEDS[name].packages if p not in found]
    return tuple(found)
