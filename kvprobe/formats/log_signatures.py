"""Log failures as data (``checks/signatures/*.toml``): what to look for, what it means, what to do first.

A signature is found by its literals, decided by its pattern. ``near`` must match within the 4 KiB around the line;
``preceded_by`` means that the nearest earlier line with its literal must match (tables print their title first).
``consequence_of`` names codes or ``topic:NAME``: where one of those was seen too, this is its consequence and not
a cause of its own. ``derived`` signatures carry the texts of what is concluded from counters and combinations.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from kvprobe.errors import UsageError

SEVERITIES = ("fail", "warn", "info")


class PrecededBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    literal: str
    pattern: str


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One kind of failure."""

    code: str
    """Stable label, as in the reports' ``failures[].code``."""
    topic: str
    title: str
    severity: str
    """``fail``: lost or possibly wrong; ``warn``: recovered, slow or advice; ``info``: a note."""
    cause: str
    remedy: str
    source: str
    literals: tuple[str, ...] = ()
    pattern: str = ""
    near: str = ""
    preceded_by: PrecededBy | None = None
    commands: tuple[str, ...] = ()
    consequence_of: tuple[str, ...] = ()
    count_by: str = ""
    """A key of the line's context dict: entries with the same value count once."""
    side: str = ""
    since: str = ""
    until: str = ""
    derived: bool = False
    samples: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def near_regex(self) -> re.Pattern[str] | None:
        return re.compile(self.near) if self.near else None

    @cached_property
    def preceding_regex(self) -> re.Pattern[str] | None:
        return re.compile(self.preceded_by.pattern) if self.preceded_by else None

    def matches(self, text: str, before: str, after: str) -> re.Match[str] | None:
        """The pattern's match on a plain line, if its surroundings agree."""
        match = self.regex.search(text)
        if match is None:
            return None
        if self.near_regex and not self.near_regex.search(f"{before}\n{text}\n{after}"):
            return None
        if self.preceded_by and self.preceding_regex and match.groupdict().get("via"):
            lines = f"{before}\n{text}".splitlines()
            title = next((x for x in reversed(lines) if self.preceded_by.literal in x), "")
            if not self.preceding_regex.search(title):
                return None
        return match


def parse_signatures(texts: Mapping[str, str]) -> tuple[Signature, ...]:
    """All signatures of the files (name -> TOML text). Raises UsageError that names file and fault."""
    found: list[Signature] = []
    for name, text in sorted(texts.items()):
        try:
            data: dict[str, Any] = tomllib.loads(text)
            topic = data["topic"]
            entries = data.get("signature", [])
            mine = [msgspec.convert({"topic": topic, **entry}, Signature, strict=False) for entry in entries]
            for signature in mine:
                _check(signature)
        except (
            tomllib.TOMLDecodeError,
            msgspec.MsgspecError,
            KeyError,
            TypeError,
            ValueError,
            re.error,
        ) as error:
            raise UsageError(f"{name} is not a file of log signatures: {error}.") from error
        found += mine
    codes = [s.code for s in found]
    twice = sorted({c for c in codes if codes.count(c) > 1})
    if twice:
        raise UsageError(f"The signature {twice[0]} exists twice in {', '.join(sorted(texts))}.")
    return tuple(found)


def _check(signature: Signature) -> None:
    if signature.severity not in SEVERITIES:
        raise ValueError(
            f"{signature.code}: severity {signature.severity!r} is not one of {', '.join(SEVERITIES)}"
        )
    if signature.derived == bool(signature.literals):
        raise ValueError(f"{signature.code}: give literals and a pattern, or derived = true")
    if not signature.derived and any(len(x) < 6 or "\n" in x for x in signature.literals):
        raise ValueError(f"{signature.code}: literals need six characters or more, on one line")
    if signature.regex.groups > 20 or signature.near_regex or signature.preceding_regex:
        return
