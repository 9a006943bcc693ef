"""Typed thresholds, required checks and waivers, from TOML; never code."""

from __future__ import annotations

import datetime
import difflib
import tomllib
from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.finding import Finding, Status

SCHEMA = "kvprobe.policy/v1"


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on one quantity in its base unit, with the source of the figures."""

    source: str
    unit: str = ""
    warn_above: float | None = None
    fail_above: float | None = None
    warn_below: float | None = None
    fail_below: float | None = None

    def status(self, value: float) -> Status:
        """FAIL, WARN or PASS for a measured value."""
        if (self.fail_above is not None and value > self.fail_above) or (
            self.fail_below is not None and value < self.fail_below
        ):
            return Status.FAIL
        if (self.warn_above is not None and value > self.warn_above) or (
            self.warn_below is not None and value < self.warn_below
        ):
            return Status.WARN
        return Status.PASS


class Waiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception that must explain itself and must end."""

    check: str
    reason: str
    until: datetime.date


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the verdict is held against."""

    schema: str = SCHEMA
    name: str
    description: str = ""
    source: str = "built-in"
    required: tuple[str, ...] = ()
    fail_on: str = "fail"
    thresholds: dict[str, Threshold] = {}
    waivers: tuple[Waiver, ...] = ()

    def threshold(self, key: str) -> Threshold:
        """The threshold ``key``. Raises UsageError when the policy does not set it."""
        try:
            return self.thresholds[key]
        except KeyError:
            near = difflib.get_close_matches(key, self.thresholds, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"Policy {self.name!r} sets no threshold {key!r}.{hint}") from None

    def cite(self, key: str) -> str:
        """How a report names the source of a threshold."""
        return f"policy {self.name}: {key} ({self.threshold(key).source})"


def parse_policy(text: str, source: str) -> Policy:
    """Read a policy or profile TOML. Raises UsageError that names the file and the wrong key."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return msgspec.convert({**data, "source": source}, Policy, strict=False)
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"{source}: {error}.") from error


def apply_waivers(findings: tuple[Finding, ...], policy: Policy, today: datetime.date) -> tuple[Finding, ...]:
    """Turn waived FAIL and WARN findings into PASS with the reason; an expired waiver becomes a WARN note."""
    out = []
    for finding in findings:
        waiver = next((w for w in policy.waivers if w.check == finding.id), None)
        if waiver is None or finding.status not in (Status.FAIL, Status.WARN):
            out.append(finding)
        elif waiver.until < today:
            note = f"waiver expired on {waiver.until}: {waiver.reason}"
            status = max(finding.status, Status.WARN, key=lambda s: s.rank)
            out.append(msgspec.structs.replace(finding, status=status, notes=(*finding.notes, note)))
        else:
            note = f"waived until {waiver.until} ({policy.source}): {waiver.reason}"
            out.append(msgspec.structs.replace(finding, status=Status.PASS, notes=(*finding.notes, note)))
    return tuple(out)
