"""systemd units: ExecStart with its environment. systemd's quoting is near enough to a shell's without variables."""

from __future__ import annotations

import re
import shlex

from kvprobe.formats.launch_env import read_env_file
from kvprobe.formats.launch_model import Command, Problem, Setting, base_name
from kvprobe.formats.launch_shell import Script

_SECTION = re.compile(r"^\s*\[(Unit|Service|Install)\]\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)\b")


def looks_like_unit(text: str) -> bool:
    """A unit file with a service in it."""
    return "Service" in _SECTION.findall(text) and "ExecStart" in text


def read_unit(text: str, script: Script) -> None:
    """Add the commands of a unit file."""
    from kvprobe.formats.launch_wrappers import found

    name = base_name(script.file)
    env: dict[str, Setting] = {}
    starts: list[tuple[int, str]] = []
    description = ""
    for number, key, value in _lines(text):
        where = f"{script.file} line {number}"
        if key == "Environment":
            for word in _split(value, where, script):
                variable, equals, content = word.partition("=")
                if equals:
                    env[variable] = Setting(content, where)
        elif key == "EnvironmentFile":
            path = value.lstrip("-")
            if (content_of := script.resolve(path)) is not None:
                script.read_files.add(base_name(path))
                env |= read_env_file(content_of, base_name(path))
        elif key == "ExecStart" and value:
            starts.append((number, value))
        elif key == "Description":
            description = value
    for number, value in starts:
        words = _split(value.lstrip("@-:+!"), f"{script.file} line {number}", script)
        argv = [field for word in words for field in _expanded(word, env)]
        if argv:
            command = Command(
                argv=tuple(argv),
                env=env,
                file=script.file,
                line=number,
                name=name,
                hints=(name, description),
                raw=value,
            )
            found(command, script)


def _lines(text: str) -> list[tuple[int, str, str]]:
    out: list[tuple[int, str, str]] = []
    pending, started = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not pending and (not stripped or stripped[0] in "#;["):
            continue
        if pending and stripped[:1] in ("#", ";"):
            continue
        started = started if pending else number
        pending += stripped
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        key, equals, value = pending.partition("=")
        pending = ""
        if equals:
            out.append((started, key.strip(), value.strip()))
    return out


def _split(value: str, where: str, script: Script) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        text = f"the line cannot be split into words: {error}"
        script.problems.append(Problem(code="unclosed_quote", where=where, text=text, fix="Close the quote."))
        return []


def _expanded(word: str, env: dict[str, Setting]) -> list[str]:
    bare = _VARIABLE.fullmatch(word)
    if bare and bare[2] and bare[2] in env:
        return env[bare[2]].value.split()  # systemd splits $NAME that stands alone, ${NAME} never
    return [_VARIABLE.sub(lambda m: env[m[1] or m[2]].value if (m[1] or m[2]) in env else m[0], word)]
