"""Typed thresholds, required checks and waivers, from TOML; never code."""

from __future__ import annotations

import datetime
import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from kvprobe.errors import UsageError
from kvprobe.finding import Finding, Status

SCHEMA = "kvprobe.policy/v1"
OPTIONAL = ("ttft_tax_seconds", "compare_noise", "compare_tail_noise")
"""Thresholds that the default profile leaves open; a rule that finds none set does not judge by it."""
BOUNDS = ("warn_above", "fail_above", "warn_below", "fail_below")


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

    schema: Literal["kvprobe.policy/v1"] = "kvprobe.policy/v1"
    name: str
    description: str = ""
    extends: str | None = None
    """The profile whose values hold where this one is silent."""
    source: str = "built-in"
    required: tuple[str, ...] = ()
    fail_on: Literal["fail", "warn"] = "fail"
    thresholds: dict[str, Threshold] = {}
    waivers: tuple[Waiver, ...] = ()
    origins: dict[str, str] = {}
    """Dotted key -> the profile or file that set it; what ``config show`` tells."""

    def threshold(self, key: str) -> Threshold:
        """The threshold ``key``. Raises UsageError when the policy does not set it."""
        try:
            return self.thresholds[key]
        except KeyError:
            raise UsageError(
                f"Policy {self.name!r} sets no threshold {key!r}.", did_you_mean(key, self.thresholds)
            ) from None

    def cite(self, key: str) -> str:
        """How a report names the source of a threshold; :func:`cited_key` reads it back."""
        return f"policy {self.name}: {key} ({self.threshold(key).source})"


def cited_key(source: str) -> str | None:
    """The threshold that :meth:`Policy.cite` named in an ``Expected.source``; None for other yardsticks."""
    match = re.match(r"policy [^:]+: ([a-z0-9_]+) \(", source)
    return match[1] if match else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``Did you mean 'x'?``, or nothing when nothing is near."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"Did you mean {near[0]!r}?" if near else ""


def parse_policy(text: str, source: str, load: Callable[[str], Policy] | None = None) -> Policy:
    """Read a policy or profile TOML on top of the profile that it ``extends``.

    ``load`` gives that profile by name; without it the text must stand alone. Raises UsageError that names
    the file and the wrong key.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source} is not valid TOML: {error}.") from error
    base_name = data.get("extends")
    if base_name is not None and not isinstance(base_name, str):
        raise UsageError(f"{source}: extends must be the name of a profile.")
    base = load(base_name) if base_name and load else None
    if "name" not in data and base is None:
        raise UsageError(f"{source}: a policy needs a name.", 'Add for example: name = "our-cluster".')
    return overlay(base, data, source)


def overlay(base: Policy | None, data: dict[str, Any], source: str) -> Policy:
    """``data`` on top of ``base``: thresholds field by field, waivers added, everything else replaced.

    Raises UsageError that names the source and the wrong key, with a suggestion.
    """
    allowed = [f for f in Policy.__struct_fields__ if f not in ("source", "origins")]
    for key in data:
        if key not in allowed:
            raise UsageError(f"{source}: unknown key {key!r}.", did_you_mean(key, allowed))
    start = msgspec.to_builtins(base, builtin_types=(datetime.date,)) if base else {}
    origins = dict(base.origins) if base else {}
    for key, value in data.items():
        if key in ("thresholds", "waivers"):
            continue
        start[key] = value
        if key != "schema":
            origins[key] = source
    start["thresholds"] = _thresholds(
        start.get("thresholds", {}), data.get("thresholds", {}), source, origins
    )
    waivers = data.get("waivers", [])
    if not isinstance(waivers, list):
        raise UsageError(f"{source}: waivers is a list; write [[waivers]] above each one.")
    for index, waiver in enumerate(waivers):
        _check_fields(waiver, Waiver, f"{source}: waivers[{index}]")
        origins[f"waivers.{waiver.get('check')}"] = source
    start["waivers"] = [*start.get("waivers", []), *waivers]
    try:
        policy = msgspec.convert({"name": source, **start, "source": source, "origins": origins}, Policy)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{source}: {error}.") from error
    _check(policy, source)
    return policy


def _thresholds(known: dict[str, Any], new: Any, source: str, origins: dict[str, str]) -> dict[str, Any]:
    if not isinstance(new, dict):
        raise UsageError(f"{source}: thresholds is a table; write [thresholds.NAME] above each one.")
    merged = {key: dict(value) for key, value in known.items()}
    for key, value in new.items():
        where = f"{source}: thresholds.{key}"
        _check_fields(value, Threshold, where)
        if known and key not in known and key not in OPTIONAL:
            raise UsageError(f"{source}: unknown threshold {key!r}.", did_you_mean(key, (*known, *OPTIONAL)))
        if "source" not in value and any(bound in value for bound in BOUNDS):
            value = {**value, "source": f"set in {source}"}
        merged[key] = {**merged.get(key, {}), **value}
        origins.update({f"thresholds.{key}.{name}": source for name in value})
    return merged


def _check_fields(value: Any, kind: type[msgspec.Struct], where: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a table.")
    for key in value:
        if key not in kind.__struct_fields__:
            raise UsageError(f"{where}: unknown key {key!r}.", did_you_mean(key, kind.__struct_fields__))


def _check(policy: Policy, source: str) -> None:
    for key, threshold in policy.thresholds.items():
        bounds = {name: getattr(threshold, name) for name in BOUNDS}
        if any(value is not None and math.isnan(value) for value in bounds.values()):
            raise UsageError(f"{source}: thresholds.{key} holds nan, which nothing can be held against.")
        for warn, fail, sign in (("warn_above", "fail_above", 1), ("warn_below", "fail_below", -1)):
            low, high = bounds[warn], bounds[fail]
            if low is not None and high is not None and sign * low > sign * high:
                raise UsageError(
                    f"{source}: thresholds.{key}: {fail} = {high:g} is passed before {warn} = {low:g}."
                )
    for waiver in policy.waivers:
        if not waiver.reason.strip():
            raise UsageError(f"{source}: the waiver of {waiver.check} gives no reason.")
    for check in (*policy.required, *(w.check for w in policy.waivers)):
        if not re.fullmatch(r"KVP\d{3}", check):
            raise UsageError(f"{source}: {check!r} is not the id of a check, such as KVP203.")


_WAIVED = re.compile(r"(fail|warn), waived until ")


def apply_waivers(findings: tuple[Finding, ...], policy: Policy, today: datetime.date) -> tuple[Finding, ...]:
    """Turn waived FAIL and WARN findings into PASS with the reason; an expired waiver only leaves a note."""
    out = []
    for finding in findings:
        waiver = next((w for w in policy.waivers if w.check == finding.id), None)
        if waiver is None or finding.status not in (Status.FAIL, Status.WARN):
            out.append(finding)
        elif waiver.until < today:
            note = f"waiver expired on {waiver.until}: {waiver.reason}"
            out.append(msgspec.structs.replace(finding, notes=(*finding.notes, note)))
        else:
            note = f"{finding.status.value}, waived until {waiver.until} ({policy.source}): {waiver.reason}"
            out.append(msgspec.structs.replace(finding, status=Status.PASS, notes=(*finding.notes, note)))
    return tuple(out)


def waiver_note(finding: Finding) -> str | None:
    """The note that :func:`apply_waivers` left on a finding that it turned into PASS; None if it did not."""
    return next((note for note in finding.notes if _WAIVED.match(note)), None)


def without_waivers(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Undo :func:`apply_waivers`, so that a stored report can be judged by another policy."""
    out = []
    for finding in findings:
        status, notes = finding.status, []
        for note in finding.notes:
            match = _WAIVED.match(note)
            if match:
                status = Status(match[1])
            elif not note.startswith("waiver expired on "):
                notes.append(note)
        out.append(msgspec.structs.replace(finding, status=status, notes=tuple(notes)))
    return tuple(out)


def rejudge(findings: tuple[Finding, ...], policy: Policy) -> tuple[tuple[Finding, ...], int]:
    """Hold every figure that names its threshold against ``policy`` instead; also how many did.

    A finding without a threshold (a wrong template, a missing capability) keeps its status: no policy sets
    it. So does one that failed although its figure kept the bound: something else failed it.
    """
    out = []
    moved = 0
    for finding in without_waivers(findings):
        threshold = _threshold_of(finding, policy)
        value = finding.measured.value if finding.measured else None
        if threshold is None or isinstance(value, bool) or not isinstance(value, int | float):
            out.append(finding)
            continue
        moved += 1
        status = threshold.status(value)
        expected = msgspec.structs.replace(
            finding.expected,  # type: ignore[type-var]
            source=policy.cite(str(cited_key(finding.expected.source))),  # type: ignore[union-attr]
            max=_outer(threshold.warn_above, threshold.fail_above),
            min=_outer(threshold.warn_below, threshold.fail_below),
        )
        notes = finding.notes
        if status is not finding.status:
            notes = (*notes, f"judged again by policy {policy.name}; was {finding.status.value}")
        out.append(msgspec.structs.replace(finding, status=status, expected=expected, notes=notes))
    return tuple(out), moved


def _threshold_of(finding: Finding, policy: Policy) -> Threshold | None:
    expected, measured = finding.expected, finding.measured
    if expected is None or measured is None or finding.status in (Status.SKIP, Status.UNKNOWN):
        return None
    value = measured.value
    if finding.status is Status.FAIL and isinstance(value, int | float):
        kept_max = expected.max is None or value <= expected.max
        kept_min = expected.min is None or value >= expected.min
        if kept_max and kept_min:
            return None
    return policy.thresholds.get(cited_key(expected.source) or "")


def _outer(warn: float | None, fail: float | None) -> float | None:
    return fail if fail is not None else warn
