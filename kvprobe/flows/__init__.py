"""One module a command: which probes, models and rules, in which order. No printing, no exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from kvprobe.evidence import AnyEvidence
from kvprobe.finding import Finding
from kvprobe.policy import Policy
from kvprobe.system import System


class Progress(Protocol):
    """Where a flow says what it is doing; shown on stderr."""

    def step(self, text: str, *, index: int | None = None, total: int | None = None) -> None:
        """A new step begins: ``[4/9] NIXL READ ...``."""

    def detail(self, text: str) -> None:
        """A short-lived detail of the current step, such as a sample count."""

    def warn(self, text: str) -> None:
        """A line that stays on stderr."""


class Silent:
    """Progress that says nothing."""

    def step(self, text: str, *, index: int | None = None, total: int | None = None) -> None: ...

    def detail(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Door:
    """What every flow gets: the outside, the yardstick, and somewhere to report progress."""

    system: System
    policy: Policy
    progress: Progress = field(default_factory=Silent)


@dataclass(frozen=True)
class Draft:
    """What a flow found out; the CLI adds run, policy and verdict to make it a Report."""

    subject: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    evidence: tuple[AnyEvidence, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    fail_on: str | None = None
    required: tuple[str, ...] = ()
    """Ids that must have run for a GO; ``preflight`` passes the policy's."""
