"""Environment files (``KEY=VALUE`` lines, as for docker and systemd) and hosts files (``role name address`` lines)."""

from __future__ import annotations

import re

from kvprobe.formats.launch_model import HostEntry, Setting

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=(.*)$")
_ADDRESS = re.compile(r"^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:]+)$")
_HOST = re.compile(r"^\s*([A-Za-z][\w.-]*)\s*(?:\(\s*([^)]*)\s*\))?\s*$")


def looks_like_env(text: str, name: str = "") -> bool:
    """Only assignments, blank lines and comments, and at least one assignment.

    A launch written on one line begins with assignments too, so a value with a bare blank counts in ``*.env`` only.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    values = [match[2].strip() for line in lines if (match := _LINE.match(line))]
    if not lines or len(values) < len(lines):
        return False
    return name.endswith(".env") or not any(re.search(r"\s", v) and v[0] not in "'\"" for v in values)


def read_env_file(text: str, file: str) -> dict[str, Setting]:
    """The assignments of an environment file. Quotes around a whole value are taken off."""
    found: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (match := _LINE.match(line)):
            continue
        value = match[2].strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[match[1]] = Setting(value, f"{file} line {number}")
    return found


def looks_like_hosts(text: str) -> bool:
    """Every line is ``role name address``."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and all(len(w) >= 3 and _ADDRESS.match(w[2].strip("()")) for w in lines)


def read_hosts(text: str) -> tuple[HostEntry, ...]:
    """The lines of a hosts file."""
    entries = []
    for line in text.splitlines():
        words = line.split(maxsplit=3)
        if len(words) < 3 or line.lstrip().startswith("#"):
            continue
        note = words[3].strip("() ") if len(words) > 3 else ""
        entries.append(
            HostEntry(role=words[0].lower(), name=words[1], address=words[2].strip("()"), note=note)
        )
    return tuple(entries)


def parse_host(role: str, text: str) -> HostEntry | None:
    """``node-a`` or ``node-a (192.0.2.11)``; None if it is neither."""
    text = text.strip()
    if _ADDRESS.match(text):
        return HostEntry(role=role, name=text, address=text)
    match = _HOST.match(text)
    if not match:
        return None
    return HostEntry(role=role, name=match[1], address=(match[2] or "").strip())
