"""Docker Compose: each service is a container with a command, an environment and namespaces."""

from __future__ import annotations

import shlex
from typing import Any

from kvprobe.formats.launch_docker import is_vllm_image
from kvprobe.formats.launch_env import read_env_file
from kvprobe.formats.launch_model import Box, Command, Problem, Setting, base_name
from kvprobe.formats.launch_shell import Script
from kvprobe.formats.launch_shell_expand import Variables, substitute


def read_compose(document: dict[str, Any], script: Script) -> None:
    """Add the command of every service to the script."""
    variables = Variables()
    if (text := script.resolve(".env")) is not None:
        script.read_files.add(".env")
        variables.values |= {k: s.value for k, s in read_env_file(text, ".env").items()}
    for name, service in document["services"].items():
        if isinstance(service, dict):
            _service(str(name), service, variables, script)


def _service(name: str, service: dict[str, Any], variables: Variables, script: Script) -> None:
    from kvprobe.formats.launch_wrappers import found

    where = f"{script.file} {name}"
    image = _text(service.get("image"), variables)
    entrypoint = _words(service.get("entrypoint"), variables, where, script)
    argv = _words(service.get("command"), variables, where, script)
    default = service.get("entrypoint") is None and is_vllm_image(image)
    command = Command(
        argv=(*entrypoint, *argv),
        env=_environment(service, variables, where, script),
        file=script.file,
        name=name,
        hints=(name, str(service.get("container_name") or "")),
        box=_box(name, service, image, default),
        raw=str(service.get("command") or ""),
    )
    if default:
        script.commands.append(command)
    elif command.argv:
        found(command, script)


def _text(value: Any, variables: Variables) -> str:
    return "" if value is None else substitute(str(value).replace("$$", "\0"), variables).replace("\0", "$")


def _words(value: Any, variables: Variables, where: str, script: Script) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(item, variables) for item in value)
    if value is None:
        return ()
    try:
        return tuple(shlex.split(_text(value, variables)))
    except ValueError as error:
        script.problems.append(
            Problem(
                code="unclosed_quote",
                where=where,
                text=f"the command of service {where} cannot be split into words: {error}",
                fix="Close the quote, or write the command as a YAML list.",
            )
        )
        return ()


def _environment(
    service: dict[str, Any], variables: Variables, where: str, script: Script
) -> dict[str, Setting]:
    env: dict[str, Setting] = {}
    files = service.get("env_file") or []
    for entry in files if isinstance(files, list) else [files]:
        path = str(entry.get("path", "")) if isinstance(entry, dict) else str(entry)
        if (text := script.resolve(path)) is not None:
            script.read_files.add(base_name(path))
            env |= read_env_file(text, base_name(path))
    given = service.get("environment") or {}
    if isinstance(given, list):
        given = dict(str(item).partition("=")[::2] for item in given)
    if isinstance(given, dict):
        for key, value in given.items():
            text = str(value).lower() if isinstance(value, bool) else _text(value, variables)
            env[str(key)] = Setting(text, where)
    return env


def _box(name: str, service: dict[str, Any], image: str, default_entrypoint: bool) -> Box:
    devices = str(service.get("devices") or "") + str(service.get("volumes") or "")
    return Box(
        kind="compose",
        name=str(service.get("container_name") or name),
        image=image,
        unit=name,
        network_host=service.get("network_mode") == "host",
        pid=str(service.get("pid") or ""),
        ipc=str(service.get("ipc") or ""),
        shm=str(service.get("shm_size") or ""),
        gpus=_gpus(service),
        rdma="/dev/infiniband" in devices or service.get("privileged") is True,
        restart=str(service.get("restart") or "no") != "no",
        default_entrypoint=default_entrypoint,
    )


def _gpus(service: dict[str, Any]) -> str:
    if isinstance(service.get("gpus"), str):
        return str(service["gpus"])
    deploy = service.get("deploy")
    node: Any = deploy if isinstance(deploy, dict) else {}
    for key in ("resources", "reservations"):
        node = node.get(key) if isinstance(node, dict) else None
    devices = node.get("devices") if isinstance(node, dict) else None
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict):
            ids = device.get("device_ids")
            if isinstance(ids, list):
                return "device=" + ",".join(str(i) for i in ids)
            return str(device.get("count") or "all")
    return ""
