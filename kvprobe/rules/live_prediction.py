"""KVP694 and KVP699: the prediction held against the truth, and whether both speak of the same transfer."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.paired import LengthResult
from kvprobe.models.paired_facts import LiveFacts, Prediction
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds

_SCATTERED = 0.8
"""Of the planned pieces. On 2x H200 scattered blocks made 87 to 100 % of them; a transfer in order 0.2 to 3 %, and a fresh
pair that served one request at a time 68 to 72 % on average over NVLink (samples/scenarios/h200-x2-live-nvlink)."""


def prediction(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP694: the predicted tax is the measured one, within 15 % or 10 ms."""
    for one in facts.predictions:
        status, why = _judged(one)
        ratio = f" ({one.error_ratio * 100:+.0f} %)" if one.error_ratio is not None else ""
        yield Finding(
            id="KVP694",
            name="prediction",
            status=status,
            title=f"{one.prompt_tokens:,} tokens: predicted {format_seconds(one.predicted_seconds)}, "
            f"measured {format_seconds(one.measured_seconds)}{ratio}{why}",
            measured=Quantity(value=one.error_seconds, unit="s", note="predicted minus measured"),
            expected=None
            if status is Status.SKIP
            else Expected(
                source="15 % of the measured tax, at least 10 ms", max=one.tolerance_seconds, unit="s"
            ),
            remedy=None
            if status is not Status.WARN
            else Remedy(
                text="Fit the assumed terms to this deployment.",
                commands=(
                    "kvprobe calibrate LIVE_REPORT.json --save calibration.json",
                    "kvprobe preflight ... --calibration calibration.json",
                ),
            ),
            notes=(one.source, *_parts(one)),
            where=None if status is Status.SKIP else f"{one.prompt_tokens:,} tokens",
            code="prediction_off" if status is Status.WARN else None,
        )


def scattered(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP699: the measured transfers moved scattered blocks, as those of a server in use do."""
    known = [(one, shares) for one in facts.lengths if (shares := _shares(one, facts))]
    if not known:
        return
    every = sum(one.transfer.transfers if one.transfer else 0 for one, _ in known)
    low = [(one, shares) for one, shares in known if sum(shares) / len(shares) < _SCATTERED]
    if not low:
        yield Finding(
            id="KVP699",
            name="scattered-blocks",
            status=Status.PASS,
            title=f"The {every} transfers moved scattered blocks, as those of a server in use do",
            evidence=("engine-transfer",),
        )
        return
    least, shares = min(low, key=lambda found: sum(found[1]) / len(found[1]))
    share = sum(shares) / len(shares)
    yield Finding(
        id="KVP699",
        name="scattered-blocks",
        status=Status.WARN,
        title=f"Blocks lie in order: a transfer of {least.prompt_tokens:,} tokens had {share * 100:.0f} % of the pieces "
        "that scattered blocks make, so a server in use pays more than was measured here",
        measured=Quantity(
            value=share,
            unit="ratio",
            statistic="mean",
            samples=least.transfer.transfers if least.transfer else None,
        ),
        expected=Expected(source="blocks x regions, each a piece", min=_SCATTERED, unit="ratio"),
        remedy=Remedy(
            text="Measure again after traffic (with prefix caching, once as many tokens were served as the pool holds); "
            "until then take the transfer from rung 4 of preflight, which scatters its blocks."
        ),
        where=", ".join(f"{one.prompt_tokens:,} tokens" for one, _ in low),
        evidence=("engine-transfer",),
        code="blocks_in_order",
    )


def _judged(one: Prediction) -> tuple[Status, str]:
    """Status, and what the title says beside the error: where the pieces differ, the measured transfer counts."""
    if one.within:
        return Status.PASS, ""
    if not one.asked:
        return Status.SKIP, ""
    predicted, said = one.predicted_seconds, ""
    if (
        _in_order(one)
        and one.predicted_transfer_seconds is not None
        and one.measured_transfer_seconds is not None
    ):
        predicted += one.measured_transfer_seconds - one.predicted_transfer_seconds
        said = (
            f"; {format_seconds(predicted)} with the measured transfer, which had {one.seen_descriptors:,.0f} pieces "
            f"instead of {one.planned_descriptors:,.0f} (KVP699)"
        )
    if abs(predicted - one.measured_seconds) <= one.tolerance_seconds:
        return Status.PASS, said
    if one.interval is not None and one.interval.low <= predicted <= one.interval.high:
        low, high = format_seconds(one.interval.low), format_seconds(one.interval.high)
        return Status.SKIP, f"{said}; too few pairs to tell (95 % interval {low} to {high})"
    return Status.WARN, said


def _in_order(one: Prediction) -> bool:
    planned, seen = one.planned_descriptors, one.seen_descriptors
    return bool(planned) and seen is not None and seen < _SCATTERED * (planned or 0)


def _parts(one: Prediction) -> tuple[str, ...]:
    """Which part of the error the transfer has."""
    if one.predicted_transfer_seconds is None or one.measured_transfer_seconds is None:
        return ()
    moved = one.predicted_transfer_seconds - one.measured_transfer_seconds
    rest = one.error_seconds - moved
    return (f"of the error the transfer has {_signed(moved)}, the assumed terms {_signed(rest)}",)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _shares(one: LengthResult, facts: LiveFacts) -> tuple[float, ...]:
    """Pieces of each transfer against the plan's; without one against the most that any made of its tokens."""
    mean = one.transfer.descriptors if one.transfer else None
    seen = one.descriptors or (() if mean is None else (mean,))
    planned = facts.planned.get(one.prompt_tokens)
    if planned is None:
        each = [d / length.prompt_tokens for length in facts.lengths for d in length.descriptors]
        if len(each) < 2 or len(facts.lengths) < 2:
            return ()  # one length alone may be all in order
        planned = max(each) * one.prompt_tokens
    return tuple(d / planned for d in seen) if planned > 0 else ()


RULES: tuple[Rule[LiveFacts], ...] = (
    Rule("KVP694", "prediction", prediction),
    Rule("KVP699", "scattered-blocks", scattered),
)
