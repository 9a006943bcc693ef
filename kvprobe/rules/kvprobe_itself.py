"""KVP9xx: what went wrong inside kvprobe's own run."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.errors import KvprobeError
from kvprobe.finding import Finding, Remedy, Status
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule


def not_measured(error: KvprobeError, policy: Policy) -> Iterable[Finding]:
    """KVP901: the run could not obtain what it needs, so it ends UNKNOWN."""
    remedy = Remedy(text=error.remedy, commands=error.commands) if error.remedy or error.commands else None
    yield Finding(id="KVP901", name="not-measured", status=Status.UNKNOWN, title=error.reason, remedy=remedy)


RULES: tuple[Rule[KvprobeError], ...] = (Rule("KVP901", "not-measured", not_measured),)
