"""What a rule says, and how findings roll up into a verdict."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from kvprobe.errors import ExitCode as ExitCode


class Status(enum.Enum):
    """Ordered by how much it matters (``rank``), so that the worst is the roll-up.

    UNKNOWN outranks WARN (what was not measured must not look fine) and FAIL outranks
    UNKNOWN (a proven fault stays a proven fault).
    """

    SKIP = "skip"
    PASS = "pass"
    WARN = "warn"
    UNKNOWN = "unknown"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        return list(Status).index(self)


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that can stand alone: value in a base unit, statistic and sample count."""

    value: float | int | str | bool | None
    """None: not measured. Never 0 for unknown."""
    unit: str = ""
    """``s``, ``B``, ``B/s``, ``ratio``, ``tokens``, ``descriptors`` ... empty for words."""
    statistic: str | None = None
    """``median``, ``p90``, ``max`` ...; None for a single reading."""
    samples: int | None = None
    note: str | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The yardstick a figure was held against, and who set it."""

    source: str
    """``policy default: transfer_8k_seconds (vLLM P/D guide)``, ``rung 1 of the same run`` ..."""
    min: float | None = None
    max: float | None = None
    value: float | int | str | bool | None = None
    unit: str = ""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: one sentence, and commands or settings that can be copied."""

    text: str
    commands: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The outcome of one rule on one subject."""

    id: str
    """Stable id ``KVPnnn``; never reused."""
    name: str
    """Stable kebab-case name of the check, such as ``nixl-read-scattered``."""
    status: Status
    title: str
    """One line that leads directly to the problem, with figures and units."""
    measured: Quantity | None = None
    expected: Expected | None = None
    remedy: Remedy | None = None
    links: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """Ids of the evidence it stands on."""
    where: str | None = None
    """File and line, GPU pair or endpoint that it is about."""
    notes: tuple[str, ...] = ()
    """Further facts, one sentence each; shown with ``-v`` or under a failure."""
    code: str | None = None
    """A label for machines, such as ``side_channel_port_collision``."""


class VerdictStatus(enum.Enum):
    GO = "go"
    NO_GO = "no_go"
    UNKNOWN = "unknown"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision. It owns the exit code."""

    status: VerdictStatus
    exit_code: int
    reasons: tuple[str, ...] = ()
    """One line each, worst first: ``KVP203 NIXL READ ... 1,290 ms``."""


def judge(
    findings: Sequence[Finding],
    *,
    required: Iterable[str] = (),
    fail_on: str = "fail",
) -> Verdict:
    """Roll findings up: the worst status wins.

    No finding at all is UNKNOWN, and so is a ``required`` check (id) that is absent or was skipped:
    silence is not consent. ``fail_on="warn"`` turns warnings into NO-GO.
    """
    reasons: list[tuple[int, str]] = [
        (f.status.rank, f"{f.id} {f.title}") for f in findings if f.status.rank > Status.PASS.rank
    ]
    worst = max((f.status for f in findings), key=lambda s: s.rank, default=Status.SKIP)
    for check in required:
        seen = [f.status for f in findings if f.id == check]
        if all(s is Status.SKIP for s in seen):
            why = "was skipped" if seen else "did not run"
            reasons.append((Status.UNKNOWN.rank, f"{check} is required by the policy and {why}"))
            worst = max(worst, Status.UNKNOWN, key=lambda s: s.rank)
    if worst is Status.SKIP:
        worst = Status.UNKNOWN
        reasons.append((Status.UNKNOWN.rank, "nothing could be checked"))
    if worst is Status.WARN and fail_on == "warn":
        worst = Status.FAIL
    lines = tuple(text for _, text in sorted(reasons, key=lambda r: -r[0]))
    if worst is Status.FAIL:
        return Verdict(status=VerdictStatus.NO_GO, exit_code=ExitCode.NO_GO, reasons=lines)
    if worst is Status.UNKNOWN:
        return Verdict(status=VerdictStatus.UNKNOWN, exit_code=ExitCode.UNKNOWN, reasons=lines)
    return Verdict(status=VerdictStatus.GO, exit_code=ExitCode.GO, reasons=lines)
