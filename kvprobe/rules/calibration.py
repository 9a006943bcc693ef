"""KVP697 and KVP698: whether a calibration explains the runs it was made from."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.calibration import Fitted, Sample
from kvprobe.models.statistics import FEW_SAMPLES
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds


class CalibrationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One fit a vLLM version, with the samples it was made from."""

    fits: tuple[Fitted, ...]
    samples: tuple[tuple[Sample, ...], ...]

    @property
    def errors(self) -> tuple[tuple[Sample, float], ...]:
        """Each sample with predicted minus measured."""
        return tuple(
            pair
            for fitted, samples in zip(self.fits, self.samples, strict=True)
            for pair in zip(samples, fitted.errors, strict=True)
        )

    @property
    def worst(self) -> tuple[Sample, float]:
        return max(self.errors, key=lambda pair: abs(pair[1]) / pair[0].tolerance_seconds)

    @property
    def worst_error_seconds(self) -> float:
        return self.worst[1]

    @property
    def worst_in_tolerances(self) -> float:
        sample, error = self.worst
        return abs(error) / sample.tolerance_seconds


def explains_its_runs(facts: CalibrationFacts, policy: Policy) -> Iterable[Finding]:
    """KVP697: the fitted terms give every measured tax back, within 15 % or 10 ms."""
    sample, error = facts.worst
    good = facts.worst_in_tolerances <= 1
    yield Finding(
        id="KVP697",
        name="calibration-explains",
        status=Status.PASS if good else Status.WARN,
        title=f"The worst of {len(facts.errors)} lengths is {format_seconds(abs(error))} off "
        f"({sample.prompt_tokens:,} tokens, measured {format_seconds(sample.tax_seconds)})",
        measured=Quantity(value=error, unit="s", note="predicted minus measured"),
        expected=Expected(
            source="15 % of the measured tax, at least 10 ms", max=sample.tolerance_seconds, unit="s"
        ),
        remedy=None
        if good
        else Remedy(
            text="The servers were not alike in all runs, or busy: measure again, with more requests."
        ),
        code=None if good else "calibration_off",
    )


def enough_samples(facts: CalibrationFacts, policy: Policy) -> Iterable[Finding]:
    """KVP698: there are enough pairs and prompt lengths to tell the terms apart."""
    few = [s for samples in facts.samples for s in samples if s.requests < FEW_SAMPLES]
    fixed = [f for f in facts.fits if f.hop_fixed]
    if not few and not fixed:
        return
    parts = [f"{len(few)} prompt lengths with fewer than {FEW_SAMPLES} pairs"] if few else []
    if fixed:
        parts.append("a single prompt length, so the second hop keeps its built-in value")
    yield Finding(
        id="KVP698",
        name="calibration-samples",
        status=Status.WARN,
        title="Thin base: " + "; ".join(parts),
        remedy=Remedy(
            text="Measure three or more prompt lengths with at least 8 pairs each.",
            commands=("kvprobe live --prefill URL --decode URL --prompt-tokens 512,2048,8192 --requests 8",),
        ),
        code="calibration_thin",
    )


RULES: tuple[Rule[CalibrationFacts], ...] = (
    Rule("KVP697", "calibration-explains", explains_its_runs),
    Rule("KVP698", "calibration-samples", enough_samples),
)
