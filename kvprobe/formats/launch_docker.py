"""``docker run`` (podman, nerdctl): the container's environment, namespaces and GPUs, and the command inside."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec

from kvprobe.formats.launch_env import read_env_file
from kvprobe.formats.launch_model import Box, Command, Setting, base_name
from kvprobe.formats.launch_shell import Script

_WITH_VALUE = {
    "-a", "--attach", "--add-host", "--annotation", "--blkio-weight", "--cap-add", "--cap-drop", "--cgroup-parent",
    "--cgroupns", "--cidfile", "-c", "--cpu-shares", "--cpus", "--cpuset-cpus", "--cpuset-mems", "--device",
    "--device-cgroup-rule", "--dns", "--dns-search", "--domainname", "--entrypoint", "-e", "--env", "--env-file",
    "--expose", "--gpus", "--group-add", "--health-cmd", "--health-interval", "--health-retries",
    "--health-start-period", "--health-timeout", "-h", "--hostname", "--ip", "--ip6", "--ipc", "--isolation", "-l",
    "--label", "--label-file", "--link", "--log-driver", "--log-opt", "--mac-address", "-m", "--memory",
    "--memory-swap", "--mount", "--name", "--net", "--network", "--network-alias", "--pid", "--pids-limit",
    "--platform", "-p", "--publish", "--pull", "--restart", "--runtime", "--security-opt", "--shm-size",
    "--stop-signal", "--stop-timeout", "--storage-opt", "--sysctl", "--tmpfs", "--ulimit", "-u", "--user",
    "--userns", "--uts", "-v", "--volume", "--volume-driver", "--volumes-from", "-w", "--workdir",
}  # fmt: skip
VLLM_IMAGES = ("vllm/vllm-openai",)
"""Images whose own entrypoint is the vLLM server: arguments alone start it."""

Inner = Callable[[tuple[str, ...], Command, Script], None]


def docker_run(command: Command, script: Script, inner: Inner) -> bool:
    """Read ``docker run ... IMAGE ARGS`` and ``docker exec C ARGS``; False if it is another docker command."""
    argv = command.argv
    verb = next((at for at, word in enumerate(argv[1:4], 1) if word in ("run", "create", "exec")), None)
    if verb is None:
        return False
    options, rest = _options(argv[verb + 1 :])
    if not rest:
        return True
    name = next((v for k, v in options if k == "--name"), "")
    env = _environment(options, command, script)
    if argv[verb] == "exec":
        inner(rest[1:], msgspec.structs.replace(command, env=env, name=rest[0]), script)
        return True
    image, args = rest[0], rest[1:]
    entrypoint = next((v for k, v in options if k == "--entrypoint"), None)
    box = _box(options, name, image)
    box = msgspec.structs.replace(box, default_entrypoint=entrypoint is None and is_vllm_image(image))
    if entrypoint:
        args = (*shlex.split(entrypoint), *args)
    hints = tuple(h for h in (name, *command.hints) if h)
    inside = msgspec.structs.replace(command, argv=args, env=env, box=box, name=name, hints=hints)
    if box.default_entrypoint:
        script.commands.append(inside)
    else:
        inner(args, inside, script)
    return True


def is_vllm_image(image: str) -> bool:
    """Whether the image's entrypoint is the vLLM server."""
    path = image.split("@")[0]
    return any(known in path for known in VLLM_IMAGES)


def _options(argv: tuple[str, ...]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    options: list[tuple[str, str]] = []
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        word = argv[at]
        at += 1
        if word.startswith("--") and "=" in word:
            key, value = word.split("=", 1)
        elif word in _WITH_VALUE or (len(word) > 2 and word[1] != "-" and f"-{word[-1]}" in _WITH_VALUE):
            key = word if word in _WITH_VALUE else f"-{word[-1]}"
            value = argv[at] if at < len(argv) else ""
            at += 1
        elif len(word) > 2 and word[1] != "-" and word[:2] in ("-e", "-p", "-v", "-w", "-u"):
            key, value = word[:2], word[2:]
        else:
            key, value = word, ""
        options.append(({"-e": "--env", "--net": "--network"}.get(key, key), value))
    return options, argv[at:]


def _environment(options: list[tuple[str, str]], command: Command, script: Script) -> dict[str, Setting]:
    env: dict[str, Setting] = {}
    for key, value in options:
        if key == "--env-file" and (text := script.resolve(value)) is not None:
            script.read_files.add(base_name(value))
            env |= read_env_file(text, base_name(value))
    for key, value in options:
        if key == "--env":
            name, equals, text = value.partition("=")
            if equals:
                env[name] = Setting(text, command.where)
            elif name in command.env:
                env[name] = command.env[name]
    return env


def _box(options: list[tuple[str, str]], name: str, image: str) -> Box:
    def last(key: str) -> str:
        return next((v for k, v in reversed(options) if k == key), "")

    devices = [v for k, v in options if k in ("--device", "-v", "--volume", "--mount")]
    return Box(
        kind="docker",
        name=name,
        image=image,
        unit=name or image,
        network_host=last("--network") == "host",
        pid=last("--pid"),
        ipc=last("--ipc"),
        shm=last("--shm-size"),
        gpus=last("--gpus").strip("\"'"),
        rdma=any("/dev/infiniband" in d for d in devices) or any(k == "--privileged" for k, _ in options),
        restart=last("--restart") not in ("", "no"),
    )
