"""KVP920 to KVP929: what the run itself and its policy have to answer for."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding, Remedy, Status
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule


def expired_waivers(today: datetime.date, policy: Policy) -> Iterable[Finding]:
    """KVP920: no waiver of the policy has passed its end date."""
    for waiver in policy.waivers:
        if waiver.until < today:
            yield Finding(
                id="KVP920",
                name="waiver-expired",
                status=Status.WARN,
                title=f"the waiver of {waiver.check} ended on {waiver.until}: {waiver.reason}",
                where=policy.source,
                remedy=Remedy(text="Mend what it excused and remove it, or renew it with a new end date."),
                code="waiver_expired",
            )


def crashed(error: Exception, policy: Policy) -> Iterable[Finding]:
    """KVP921: kvprobe itself did not crash."""
    kind = type(error).__name__
    yield Finding(
        id="KVP921",
        name="internal-error",
        status=Status.UNKNOWN,
        title=f"internal error, {kind}: {error}".strip(),
        remedy=Remedy(text="Run again with -v for the traceback, add --record DIR, and report both."),
        code="internal_error",
    )


def interrupted(facts: None, policy: Policy) -> Iterable[Finding]:
    """KVP922: the run was not interrupted before it had an answer."""
    yield Finding(
        id="KVP922",
        name="interrupted",
        status=Status.UNKNOWN,
        title="the run was interrupted before it had an answer",
        remedy=Remedy(text="Run it again; a scheduler that ended it needs a longer time limit or --budget."),
        code="interrupted",
    )


RULES: tuple[Rule[Any], ...] = (
    Rule("KVP920", "waiver-expired", expired_waivers),
    Rule("KVP921", "internal-error", crashed),
    Rule("KVP922", "interrupted", interrupted),
)
