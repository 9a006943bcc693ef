"""A set of launch files -> one Launch: each file by what it holds, not by what it is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kvprobe.errors import FormatError
from kvprobe.formats.launch_env import looks_like_env, looks_like_hosts, read_env_file, read_hosts
from kvprobe.formats.launch_model import Command, HostEntry, Launch, Problem, Setting, base_name
from kvprobe.formats.launch_shell import Script, read_script
from kvprobe.formats.launch_systemd import looks_like_unit, read_unit
from kvprobe.formats.launch_yaml_kinds import read_manifests

LIMIT_BYTES = 2 * 1024 * 1024
"""A launch file is text that somebody wrote; Helm's output for a whole cluster stays below 1 MB."""
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_OTHERS = (".py", ".md", ".log", ".toml", ".ipynb", ".jinja", ".j2", ".csv")
_STARTS = re.compile(r"vllm|dynamo|docker|podman|\bpython3?\s|^#!", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read_launch(files: Mapping[str, str], outside: Callable[[str], str | None] = lambda name: None) -> Launch:
    """Read every file; ``outside`` finds files that a script names and that were not passed.

    Raises FormatError for what is no text or no launch file at all.
    """
    names = {base_name(path): path for path in files}
    commands: list[tuple[str, Command]] = []
    problems: list[Problem] = []
    hosts: list[HostEntry] = []
    env_files: dict[str, dict[str, Setting]] = {}
    read: set[str] = set()
    ignored: list[str] = []

    def resolve(name: str) -> str | None:
        path = names.get(base_name(name))
        return files[path] if path is not None else outside(name)

    for path, text in files.items():
        name = base_name(path)
        _check_text(text, path)
        if looks_like_hosts(text):
            hosts += read_hosts(text)
            continue
        if looks_like_env(text, name):
            env_files[name] = read_env_file(text, name)
            continue
        script = Script(file=name, resolve=resolve)
        if looks_like_unit(text):
            read_unit(text, script)
        elif _looks_like_yaml(name, text):
            if not read_manifests(text, script):
                ignored.append(name)
        elif name.endswith(_OTHERS) or (not name.endswith(_SCRIPTS) and not _STARTS.search(text)):
            ignored.append(name)
        else:
            read_script(text, script)
        commands += [(name, c) for c in script.commands]
        problems += script.problems
        read |= script.read_files
    return Launch(
        commands=tuple(c for owner, c in commands if owner not in read or c.file != owner),
        problems=tuple(dict.fromkeys(problems)),
        hosts=tuple(hosts),
        unused_env={n: e for n, e in env_files.items() if n not in read},
        files=tuple(names),
        ignored=tuple(ignored),
    )


def read_command_line(text: str, name: str, resolve: Callable[[str], str | None]) -> Launch:
    """The command of ``--prefill "..."`` or ``--decode "..."``, as typed into a shell."""
    _check_text(text, name)
    script = Script(file=name, resolve=resolve, hints=(name.strip("-"),))
    read_script(text, script)
    return Launch(commands=tuple(script.commands), problems=tuple(script.problems), files=(name,))


def _check_text(text: str, path: str) -> None:
    if len(text) > LIMIT_BYTES:
        raise FormatError(f"{path} is larger than {LIMIT_BYTES // 1024**2} MiB; that is no launch file.")
    sample = text[:65536]
    if _CONTROL.search(text) or sample.count("\ufffd") > len(sample) // 50:
        raise FormatError(
            f"{path} is not text.", "Pass scripts, manifests, compose files, units or environment files."
        )
    if not text.strip():
        raise FormatError(f"{path} is empty.")


def _looks_like_yaml(name: str, text: str) -> bool:
    if name.endswith((".yaml", ".yml", ".json")):
        return True
    if name.endswith((*_SCRIPTS, ".service", ".env")) or text.startswith("#!"):
        return False
    return bool(re.search(r"^(apiVersion|services):", text, re.MULTILINE))
