"""What a recording must not tell: who, where, and with which password."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from typing import Any

_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
_STAND_INS = {"serial": "0", "peer_hostname": "node-b"}
"""Keys whose value names a machine, wherever they stand."""


class Redactor:
    """Replaces host names, users, UUIDs, serials, MAC and IP addresses, the same one by the same stand-in."""

    _UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
    _IPV4 = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
    _MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)

    def __init__(self, hidden: Mapping[str, str] | None = None) -> None:
        self._hidden = dict(hidden or {})
        names = {socket.gethostname(), socket.gethostname().split(".")[0]} - {"", "localhost"}
        self._host = re.compile(
            "|".join(rf"\b{re.escape(n)}\b" for n in sorted(names, key=len, reverse=True)) or r"$^"
        )
        user = getpass.getuser()
        self._home = re.compile(rf"/home/{re.escape(user)}\b")
        self._seen: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {
                key: _STAND_INS[key] if key in _STAND_INS and item else self(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        text = hide_passwords(text)
        for name, instead in self._hidden.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
        text = self._host.sub("node-a", text)
        text = self._home.sub("/home/user", text)
        text = self._UUID.sub(lambda m: self._number(m[0], "00000000-0000-4000-8000-{:012d}"), text)
        text = self._MAC.sub(lambda m: self._number(m[0], "02:00:00:00:00:{:02x}"), text)
        return self._IPV4.sub(self._address, text)

    def _address(self, match: re.Match[str]) -> str:
        parts = [int(p) for p in match[0].split(".")]
        if any(p > 255 for p in parts) or parts[0] in (0, 127, 255) or match[0].startswith("192.0.2."):
            return match[0]
        return self._number(match[0], "192.0.2.{}")

    def _number(self, text: str, form: str) -> str:
        if text not in self._seen:
            self._seen[text] = form.format(sum(1 for v in self._seen.values() if v[:4] == form[:4]) + 1)
        return self._seen[text]


def hide_passwords(text: str) -> str:
    """``http://user:secret@host`` -> ``http://***@host``, wherever a URL stands in the text."""
    return _USERINFO.sub(r"\1***@", text)
