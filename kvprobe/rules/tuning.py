"""KVP220, KVP221: what tuning found."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.tuning_rank import Candidate, costs, flags, winner
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds, significant

_WORTH_IT = 1.1


class TuneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured."""

    candidates: tuple[Candidate, ...]
    baseline: Candidate
    layout: KvLayout
    left_out: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def gain(facts: TuneFacts, policy: Policy) -> Iterable[Finding]:
    """KVP220: a setting that makes the whole transfer faster, measured with the model's own plan."""
    best, base = winner(facts.candidates), facts.baseline
    if best is None or best.tax is None or base.tax is None:
        return
    ratio = base.whole_seconds / best.whole_seconds
    if best is base or ratio < _WORTH_IT:
        yield Finding(
            id="KVP220",
            name="tuning-gain",
            status=Status.PASS,
            title=f"nothing measured beats what runs now ({format_seconds(base.whole_seconds)})",
            measured=_quantity(base),
        )
        return
    yield Finding(
        id="KVP220",
        name="tuning-gain",
        status=Status.WARN,
        title=(
            f"{best.name}: {format_seconds(best.whole_seconds)} instead of {format_seconds(base.whole_seconds)}, "
            f"{significant(ratio)} times as fast; predicted tax {format_seconds(best.tax.p50_seconds)} instead of {format_seconds(base.tax.p50_seconds)}"
        ),
        measured=_quantity(best),
        remedy=Remedy(
            text="Set this on prefill and decode, then measure again.",
            commands=tuple(flags(best, base.way.operation)),
        ),
        notes=tuple(f"costs: {line}" for line in costs(best, facts.layout, base.cut.block_size)),
    )


def coverage(facts: TuneFacts, policy: Policy) -> Iterable[Finding]:
    """KVP221: the sweep was complete."""
    missing = [f"{name} (time budget)" for name in facts.left_out] + list(facts.failures)
    yield Finding(
        id="KVP221",
        name="tuning-coverage",
        status=Status.WARN if missing else Status.PASS,
        title=f"{len(facts.candidates)} combinations measured"
        + (f", {len(missing)} ways not" if missing else ""),
        notes=tuple(missing),
        remedy=Remedy(text="Give it more time.", commands=("kvprobe tune --model MODEL --budget 5min",))
        if facts.left_out
        else None,
    )


def _quantity(candidate: Candidate) -> Quantity:
    return Quantity(
        value=candidate.whole_seconds,
        unit="s",
        statistic="median",
        samples=candidate.samples,
        note=candidate.transport,
    )


RULES: tuple[Rule[TuneFacts], ...] = (
    Rule("KVP220", "tuning-gain", gain),
    Rule("KVP221", "tuning-coverage", coverage),
)
