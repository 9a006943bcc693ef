"""KVP601 to KVP619: the predicted TTFT tax against the policy and against the operator's own target."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.evidence import Origin
from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.ttft import TaxEstimate
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds

TAX = "ttft_tax_seconds"
_REMEDY = Remedy(
    text="Lower the largest term first: fewer descriptors (block size, layout) or a faster transport for the "
    "transfer, no host buffer for staging. If TTFT is the hard limit, serve colocated with chunked prefill.",
    commands=("kvprobe tune", "vllm serve MODEL --enable-chunked-prefill --max-num-batched-tokens 2048"),
)


class BudgetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator can afford, and what P/D is predicted to take."""

    estimates: tuple[TaxEstimate, ...]
    """By prompt length; empty: no transfer was measured or modelled."""
    judged_tokens: int
    ttft_slo_seconds: float | None = None
    base_ttft_seconds: float | None = None
    """TTFT without P/D at the judged prompt length; None: not told."""

    @property
    def judged(self) -> TaxEstimate | None:
        return next((e for e in self.estimates if e.prompt_tokens == self.judged_tokens), None)


def tax_within_policy(facts: BudgetFacts, policy: Policy) -> Iterable[Finding]:
    """KVP601: the predicted TTFT tax stays inside the policy's threshold, if it sets one."""
    if TAX not in policy.thresholds:
        return
    threshold = policy.threshold(TAX)
    estimate = facts.judged
    if estimate is None:
        yield _unknown("KVP601", "ttft-tax-within-policy", facts)
        return
    status = threshold.status(estimate.p50_seconds)
    limit = threshold.fail_above if threshold.fail_above is not None else threshold.warn_above
    yield Finding(
        id="KVP601",
        name="ttft-tax-within-policy",
        status=status,
        title=f"P/D is predicted to add {format_seconds(estimate.p50_seconds)} to the TTFT of "
        f"{estimate.prompt_tokens:,} tokens",
        measured=_quantity(estimate),
        expected=Expected(source=policy.cite(TAX), max=limit, unit="s"),
        remedy=None if status is Status.PASS else _REMEDY,
        notes=_notes(estimate),
        code=None if status is Status.PASS else "ttft_tax_above_policy",
    )


def ttft_slo(facts: BudgetFacts, policy: Policy) -> Iterable[Finding]:
    """KVP602: TTFT without P/D plus the predicted tax stays below the operator's --ttft-slo."""
    slo = facts.ttft_slo_seconds
    if slo is None:
        return
    estimate = facts.judged
    if estimate is None:
        yield _unknown("KVP602", "ttft-slo", facts)
        return
    expected = Expected(source="--ttft-slo", max=slo, unit="s")
    base = facts.base_ttft_seconds
    if base is None and estimate.p50_seconds <= slo:
        yield Finding(
            id="KVP602",
            name="ttft-slo",
            status=Status.UNKNOWN,
            title=f"The tax of {format_seconds(estimate.p50_seconds)} fits into {format_seconds(slo)}, but how much "
            "the prefill itself takes was not told",
            measured=_quantity(estimate),
            expected=expected,
            remedy=Remedy(
                text="Give the TTFT you have today at this prompt length, or measure both on the running servers.",
                commands=(
                    "kvprobe preflight ... --base-ttft 210ms",
                    "kvprobe live --prefill URL --decode URL",
                ),
            ),
            notes=_notes(estimate),
        )
        return
    total, late = (base or 0.0) + estimate.p50_seconds, (base or 0.0) + estimate.p90_seconds
    status = Status.FAIL if total > slo else Status.WARN if late > slo else Status.PASS
    parts = (
        f"{format_seconds(base)} + {format_seconds(estimate.p50_seconds)} tax"
        if base is not None
        else "the tax alone"
    )
    title = f"TTFT of {estimate.prompt_tokens:,} tokens through P/D: {format_seconds(total)} ({parts})"
    if status is Status.WARN:
        title += f", p90 {format_seconds(late)}, above the target"
    yield Finding(
        id="KVP602",
        name="ttft-slo",
        status=status,
        title=title,
        measured=Quantity(value=total, unit="s", statistic="p50", note="predicted"),
        expected=expected,
        remedy=None if status is Status.PASS else _REMEDY,
        notes=_notes(estimate),
        code=None if status is Status.PASS else "ttft_slo_missed",
    )


def _quantity(estimate: TaxEstimate) -> Quantity:
    return Quantity(value=estimate.p50_seconds, unit="s", statistic="p50", note="predicted, not measured")


def _notes(estimate: TaxEstimate) -> tuple[str, ...]:
    """Each term with its origin."""
    notes = tuple(
        f"{t.name}: {format_seconds(t.seconds)}, {t.origin.value} ({t.source})" for t in estimate.terms
    )
    if any(t.origin is Origin.ASSUMED for t in estimate.terms):
        notes += (
            "`kvprobe live` and `kvprobe calibrate` replace the assumed terms by this deployment's own",
        )
    return notes


def _unknown(check: str, name: str, facts: BudgetFacts) -> Finding:
    return Finding(
        id=check,
        name=name,
        status=Status.UNKNOWN,
        title=f"No transfer of {facts.judged_tokens:,} tokens is known, so the TTFT tax cannot be predicted",
        remedy=Remedy(
            text="Measure the transfer on this node.", commands=("kvprobe preflight --model MODEL",)
        ),
    )


RULES: tuple[Rule[BudgetFacts], ...] = (
    Rule("KVP601", "ttft-tax-within-policy", tax_within_policy),
    Rule("KVP602", "ttft-slo", ttft_slo),
)
