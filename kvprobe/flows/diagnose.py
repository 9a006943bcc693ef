"""Diagnosis by experiment: runs the short list of changes that could explain a slow transfer."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door
from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.experiments import WATCHED, Experiment, Trial, explanations, suspects
from kvprobe.models.prompt_steps import step_groups
from kvprobe.models.statistics import median
from kvprobe.models.transfer import Series, Setup, Step, TransferFacts
from kvprobe.probes import transfer

_SET_UP_SECONDS = 8.0
"""What starting two sides costs at least; an experiment that cannot even start in time is left out."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried against which baseline, and what explains it."""

    operation: str
    prompt_tokens: int
    baseline_seconds: float
    baseline_samples: int
    trials: tuple[Trial, ...] = ()
    left_out: tuple[str, ...] = ()
    """Experiments that the budget did not allow."""

    @property
    def explained_by(self) -> tuple[Trial, ...]:
        return explanations(self.baseline_seconds, self.trials)


def diagnose(
    door: Door,
    setup: Setup,
    planned: DescriptorPlan,
    baseline: Series,
    *,
    budget_seconds: float,
) -> tuple[Diagnosis, list[AnyEvidence]]:
    """Try the suspects on the baseline's prompt length; the first cause that explains ends the search for causes.

    ``baseline`` must have warm samples of the same plan and operation.
    """
    environ = door.system.environ(WATCHED)
    started = door.system.now()
    trials: list[Trial] = []
    left_out: list[str] = []
    evidence: list[AnyEvidence] = []
    found_cause = False
    listed = suspects(setup, environ, baseline.op)
    base = median(baseline.seconds)
    for number, experiment in enumerate(listed):
        used = (door.system.now() - started).total_seconds()
        if found_cause and experiment.kind == "cause":
            continue
        if used + _SET_UP_SECONDS > budget_seconds or door.system.interrupted:
            left_out.append(experiment.name)
            continue
        door.progress.step(f"experiment: {experiment.name}", index=number + 1, total=len(listed))
        trial, seen = run_trial(door, experiment, planned, base, f"experiment-{number + 1}")
        trials.append(trial)
        evidence.append(seen)
        found_cause |= experiment.kind == "cause" and bool(explanations(base, [trial]))
    diagnosis = Diagnosis(
        operation=baseline.op,
        prompt_tokens=baseline.prompt_tokens,
        baseline_seconds=base,
        baseline_samples=len(baseline.seconds),
        trials=tuple(trials),
        left_out=tuple(left_out),
    )
    return diagnosis, evidence


def run_trial(
    door: Door, experiment: Experiment, planned: DescriptorPlan, base_seconds: float, evidence_id: str
) -> tuple[Trial, AnyEvidence]:
    """Measure one changed set-up: shuffled blocks, at least three warm samples."""
    step = Step(
        id=f"{experiment.operation.lower()}-shuffled-{planned.prompt_tokens}",
        op=experiment.operation,
        order="shuffled",
        prompt_tokens=planned.prompt_tokens,
        groups=step_groups(planned),
        samples=5,
        min_samples=3,
        max_seconds=2.0,
    )
    seen = transfer.measure(
        door.system,
        experiment.setup,
        [step],
        budget_seconds=max(5.0, base_seconds * 8),
        evidence_id=evidence_id,
    )
    return read_trial(experiment, seen.facts), seen


def read_trial(experiment: Experiment, facts: TransferFacts) -> Trial:
    """The trial's figures; a failure keeps its reason."""
    series = next((s for s in facts.series if s.seconds), None)
    transport = facts.transport(experiment.operation)
    if series is None or facts.failure:
        return Trial(experiment=experiment, seconds=None, failure=facts.failure or "no sample")
    staging = (
        median(series.stage_out_seconds) + median(series.stage_in_seconds)
        if series.stage_out_seconds
        else 0.0
    )
    return Trial(
        experiment=experiment,
        seconds=median(series.seconds),
        samples=len(series.seconds),
        staging_seconds=staging,
        transport=transport.label if transport else None,
    )


def describe(diagnosis: Diagnosis) -> dict[str, Any]:
    """``result.diagnosis``."""
    return {
        "operation": diagnosis.operation,
        "prompt_tokens": diagnosis.prompt_tokens,
        "baseline_seconds": diagnosis.baseline_seconds,
        "baseline_samples": diagnosis.baseline_samples,
        "experiments": [_row(trial, diagnosis.baseline_seconds) for trial in diagnosis.trials],
        "explained_by": [t.experiment.name for t in diagnosis.explained_by],
        "left_out": list(diagnosis.left_out),
    }


def _row(trial: Trial, base: float) -> dict[str, Any]:
    whole = trial.whole_seconds
    return {
        "name": trial.experiment.name,
        "kind": trial.experiment.kind,
        "explains": trial.experiment.explains,
        "settings": list(trial.experiment.settings),
        "seconds": trial.seconds,
        "staging_seconds": trial.staging_seconds or None,
        "samples": trial.samples,
        "speedup": base / whole if whole else None,
        "transport": trial.transport,
        "failure": trial.failure,
    }
