"""KVP211, KVP212: what an experiment showed about a slow transfer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds, significant


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment of ``result.diagnosis``."""

    name: str
    kind: str
    explains: str
    settings: tuple[str, ...] = ()
    seconds: float | None = None
    staging_seconds: float | None = None
    samples: int = 0
    speedup: float | None = None
    transport: str | None = None
    failure: str | None = None

    @property
    def line(self) -> str:
        """``without UCX_TLS: 17.2 ms, 21 times faster (5 samples, cuda_ipc, zero-copy)``."""
        if self.seconds is None:
            return f"{self.name}: not measured, {self.failure}"
        staged = f" + {format_seconds(self.staging_seconds)} staging copies" if self.staging_seconds else ""
        over = f", {self.transport}" if self.transport else ""
        return f"{self.name}: {format_seconds(self.seconds)}{staged}, {significant(self.speedup or 0)} times as fast ({self.samples} samples{over})"


class DiagnosisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``result.diagnosis``."""

    operation: str
    prompt_tokens: int
    baseline_seconds: float
    baseline_samples: int
    experiments: tuple[Tried, ...] = ()
    explained_by: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def explaining(self, kind: str) -> Tried | None:
        return next(
            (e for n in self.explained_by for e in self.experiments if (e.name, e.kind) == (n, kind)), None
        )


def cause(facts: DiagnosisFacts, policy: Policy) -> Iterable[Finding]:
    """KVP211: the cause of a slow transfer was found by experiment."""
    found = facts.explaining("cause")
    notes = tuple(e.line for e in facts.experiments if e is not found)
    if facts.left_out:
        notes += (f"not tried (time): {', '.join(facts.left_out)}",)
    base = f"{facts.operation} of {facts.prompt_tokens:,} tokens, {format_seconds(facts.baseline_seconds)}"
    if not facts.experiments:
        yield Finding(
            id="KVP211",
            name="cause-by-experiment",
            status=Status.SKIP,
            title=f"no experiment was run on the slow transfer ({base})",
            notes=notes,
        )
        return
    if found is None:
        yield Finding(
            id="KVP211",
            name="cause-by-experiment",
            status=Status.WARN,
            title=f"no experiment found the cause of the slow transfer ({base})",
            remedy=Remedy(
                text="Look at the worker's UCX log and at PID namespaces, IOMMU and driver; a remedy may still go round it (KVP212)."
            ),
            notes=notes,
        )
        return
    yield Finding(
        id="KVP211",
        name="cause-by-experiment",
        status=Status.WARN,
        title=f"cause found by experiment: {found.name} makes it {significant(found.speedup or 0)} times as fast ({base} before)",
        measured=Quantity(
            value=found.seconds, unit="s", statistic="median", samples=found.samples, note=found.transport
        ),
        remedy=Remedy(text=found.explains[0].upper() + found.explains[1:] + ".", commands=found.settings),
        notes=notes,
    )


def way_round(facts: DiagnosisFacts, policy: Policy) -> Iterable[Finding]:
    """KVP212: a way round the slow transfer was measured."""
    found = facts.explaining("remedy")
    if found is None or facts.explaining("cause") is not None:
        return
    yield Finding(
        id="KVP212",
        name="way-round-by-experiment",
        status=Status.WARN,
        title=f"a way round, measured: {found.line}",
        measured=Quantity(
            value=found.seconds, unit="s", statistic="median", samples=found.samples, note=found.transport
        ),
        remedy=Remedy(
            text=f"{found.explains[0].upper()}{found.explains[1:]}; `kvprobe tune` weighs it against the rest.",
            commands=found.settings,
        ),
    )


RULES: tuple[Rule[DiagnosisFacts], ...] = (
    Rule("KVP211", "cause-by-experiment", cause),
    Rule("KVP212", "way-round-by-experiment", way_round),
)
