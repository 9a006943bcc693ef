"""Programs that start programs: env, nohup, bash -c, ssh, docker run. What is inside is what counts."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from kvprobe.formats.launch_docker import docker_run
from kvprobe.formats.launch_model import Command, Setting, base_name
from kvprobe.formats.launch_shell import Script, read_script
from kvprobe.formats.serve_command import program_at

_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh", "ash"}
_TALKERS = {
    "echo", "printf", "pkill", "pgrep", "grep", "pip", "pip3", "which", "kill", "killall", "cat", "man", "rm", "ls",
    "mkdir", "tail", "test", "[", "[[", "trap", "alias", "git", "cd", "sed", "awk", "wait", "sleep", "read", "jq",
}  # fmt: skip
_SPREADERS = {
    "srun",
    "mpirun",
    "mpiexec",
    "pdsh",
    "clush",
    "kubectl",
    "oc",
    "qsub",
    "bsub",
    "salloc",
    "sbatch",
}
_REMOTE_ARGUMENT = {"ssh": set("bcDEeFIiJLlmOopQRSWw")}


def found(command: Command, script: Script, stdin: str = "") -> None:
    """Add ``command``, or what it starts, to the script's commands."""
    argv = command.argv
    head = base_name(argv[0])
    if head in _TALKERS and not (head == "cat" and "apiVersion:" in stdin):
        return
    if head in ("docker", "podman", "nerdctl") and docker_run(command, script, inner=_inside):
        return
    if head in ("kubectl", "oc", "cat") and stdin:
        from kvprobe.formats.launch_yaml_kinds import read_manifests

        read_manifests(stdin, script)
        return
    if head in _SHELLS:
        _shell(command, script, stdin)
        return
    if head == "ssh":
        _ssh(command, script, stdin)
        return
    if head in ("tmux", "screen", "su", "parallel") and (inside := _quoted_program(argv)):
        _nested(inside, command, script)
        return
    text = script.resolve(argv[0]) if argv[0].endswith((".sh", ".bash")) or argv[0].startswith("./") else None
    if text is not None:
        _script_file(text, argv, command, script)
        return
    _inside(argv, command, script)


def _inside(argv: tuple[str, ...], command: Command, script: Script) -> None:
    """Take wrappers off the front until a program is reached that is worth keeping."""
    env = dict(command.env)
    for at, word in enumerate(argv[:200]):
        if program_at(argv[at:]) is not None:
            script.commands.append(msgspec.structs.replace(command, argv=argv[at:], env=env))
            return
        base = base_name(word)
        if base in _SPREADERS:
            command = msgspec.structs.replace(command, elsewhere=True)
        if base in _SHELLS and len(argv) > at + 1:
            _shell(msgspec.structs.replace(command, argv=argv[at:], env=env), script, "")
            return
        if at and base in ("docker", "podman"):
            found(msgspec.structs.replace(command, argv=argv[at:], env=env), script)
            return
        if match := _ASSIGNMENT.match(word):
            env[match[1]] = Setting(match[2], command.where)
    if command.box is not None and command.box.default_entrypoint:
        script.commands.append(command)


def _shell(command: Command, script: Script, stdin: str) -> None:
    argv = command.argv
    for at, word in enumerate(argv[1:], 1):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            if at + 1 < len(argv):
                _nested(argv[at + 1], command, script, argv[at + 3 :], strays=argv[at + 2 :])
            return
        if not word.startswith("-"):
            text = script.resolve(word)
            if text is not None:
                _script_file(text, argv[at:], command, script)
            return
    if stdin:
        _nested(stdin, command, script)


def _ssh(command: Command, script: Script, stdin: str) -> None:
    argv, at = command.argv, 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at][1:] in _REMOTE_ARGUMENT["ssh"] else 1
    if at >= len(argv):
        return
    host = argv[at].rsplit("@", 1)[-1]
    remote = msgspec.structs.replace(command, hints=(*command.hints, f"host={host}"), env={})
    text = " ".join(argv[at + 1 :])
    if text and not (stdin and base_name(argv[at + 1]) in _SHELLS):
        _nested(text, remote, script)
    elif stdin:
        _nested(stdin, remote, script)


def _quoted_program(argv: tuple[str, ...]) -> str:
    return next(
        (word for word in reversed(argv) if " " in word and re.search(r"vllm|dynamo|docker", word)), ""
    )


def _nested(
    text: str,
    command: Command,
    script: Script,
    positional: tuple[str, ...] = (),
    strays: tuple[str, ...] = (),
) -> None:
    """A script inside a word; ``strays`` are words that fell out of it because its quotes ended early."""
    if strays and any("vllm" in s or s.startswith("--") for s in strays):
        text = f"{text} {' '.join(strays)}"
    inner = _inner(command, script)
    inner.variables.positional = positional
    read_script(text, inner, command.line or 1)


def _script_file(text: str, argv: tuple[str, ...], command: Command, script: Script) -> None:
    name = base_name(argv[0])
    script.read_files.add(name)
    inner = _inner(command, script)
    inner.file = name
    inner.variables.positional = argv[1:]
    inner.hints = (name, *argv[1:], *command.hints)
    read_script(text, inner)


def _inner(command: Command, script: Script) -> Script:
    variables = type(script.variables)({k: s.value for k, s in command.env.items()})
    return replace(
        script,
        variables=variables,
        exported=dict(command.env),
        export_all=False,
        functions={},
        called=set(),
        hints=command.hints,
        box=command.box,
        name=command.name,
        repeats=command.repeats,
        background=command.background,
        elsewhere=command.elsewhere,
        depth=script.depth + 1,
    )
