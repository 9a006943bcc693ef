"""KVP620, KVP633 to KVP635: did P/D beat colocated, inside the targets, and what explains the price?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.bench_facts import CompareFacts, SweepFacts
from kvprobe.models.bench_goodput import SloCheck
from kvprobe.models.bench_log import tax_share
from kvprobe.models.bench_sweep import Capacity
from kvprobe.models.bench_verdict import Change, Decision
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds

_REPEAT = "Repeat both sides (three runs each, or more prompts) and pass directories: the range over the runs is then the yardstick."


def decision(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP620: P/D gains more than it costs, inside the targets."""
    told = facts.decision
    if told is None:
        return
    status = {
        "pd_better": Status.PASS,
        "no_difference": Status.PASS,
        "pd_worse": Status.FAIL,
        "mixed": Status.FAIL if told.slo_broken else Status.WARN,
    }.get(told.verdict, Status.UNKNOWN)
    deciding = next(iter((*told.gains, *told.losses)), None)
    yield Finding(
        id="KVP620",
        name="pd-against-colocated",
        status=status,
        title=_sentence(told, facts),
        measured=_measured(deciding, facts),
        remedy=_remedy(told, facts),
        notes=tuple(describe(c) for c in (*told.gains, *told.losses, *([told.price] if told.price else []))),
        where=facts.where,
        code=told.verdict,
    )


def describe(change: Change) -> str:
    """``ITL p99 169 ms with colocated, 29.2 ms with P/D (-83 %)``."""
    return f"{change.name} {_value(change, change.colocated)} with colocated, {_value(change, change.pd)} with P/D ({_percent(change)})"


def _value(change: Change, value: float) -> str:
    if change.unit == "s":
        return format_seconds(value)
    return f"{value * 100:.3g} %" if change.unit == "ratio" else f"{value:.3g} {change.unit}"


def _percent(change: Change) -> str:
    if not change.colocated:
        return "from none"
    return f"{(change.pd / change.colocated - 1) * 100:+.2g} %" if abs(change.pd / change.colocated) < 10 else (
        f"x{change.pd / change.colocated:.3g}"
    )  # fmt: skip


def _short(change: Change) -> str:
    return (
        f"{change.name} {_value(change, change.colocated)} → {_value(change, change.pd)} ({_percent(change)})"
    )


def _list(changes: Iterable[Change]) -> str:
    return ", ".join(_short(c) for c in changes)


def _sentence(told: Decision, facts: CompareFacts) -> str:
    if told.verdict == "no_difference":
        return f"Nothing differs by more than noise ({_medians(facts)})"
    if told.verdict == "itl_unusable":
        return "No conclusion on decoding: ITL was not measured token by token"
    if told.verdict == "pd_better":
        text = (
            f"P/D gains: {_list(told.gains)}" if told.gains else "P/D meets the targets that colocated misses"
        )
        if told.price:
            tax = told.price.pd - told.price.colocated
            text += f"; TTFT tax {format_seconds(tax)}, inside {told.tax_limit}"
        return text
    if told.verdict == "pd_worse":
        gained = _list(told.gains) or "nothing"
        return f"P/D loses: {_list(told.losses) or 'a target'}; gained: {gained}"
    if told.more_gpus and not told.losses:
        return f"Mixed: {_list(told.gains)}, bought with more GPUs"
    if not told.losses:
        return f"Mixed: {_list(told.gains)}, but a target is still missed"
    return f"Mixed: {_list(told.gains)} is paid with {_list(told.losses)}"


def _medians(facts: CompareFacts) -> str:
    if facts.figures is None:
        return "no figures"
    parts = []
    for name, words in (
        ("median_ttft_ms", "TTFT median"),
        ("p99_itl_ms", "ITL p99"),
        ("mean_tpot_ms", "TPOT mean"),
    ):
        pair = facts.figures.metrics.get(name)
        if pair and pair.ratio is not None and pair.pd is not None:
            parts.append(f"{words} {format_seconds(pair.pd / 1e3)}, {(pair.ratio - 1) * 100:+.2g} %")
    return "; ".join(parts)


def _measured(change: Change | None, facts: CompareFacts) -> Quantity | None:
    if change is None or facts.pd is None:
        return None
    gaps = max(0, facts.pd.total_output_tokens - facts.pd.completed)
    samples = gaps if change.name.startswith("ITL") else facts.pd.completed
    statistic = change.name.split()[-1] if " " in change.name else None
    return Quantity(
        value=change.pd, unit=change.unit, statistic=statistic, samples=samples,
        note=f"P/D {change.name.split()[0]}; colocated {_value(change, change.colocated)}",
    )  # fmt: skip


def _remedy(told: Decision, facts: CompareFacts) -> Remedy | None:
    if told.verdict == "no_difference":
        return Remedy(text=_REPEAT + " A short prompt at a low rate gives P/D nothing to remove.")
    if told.verdict == "mixed" and told.more_gpus and not told.losses:
        return Remedy(text="Measure colocated with as many GPUs before deciding.")
    if told.verdict == "mixed":
        return Remedy(
            text="Decide by the target that binds: with a TTFT limit stay colocated, with a limit on token gaps split; "
            "name them with --ttft-slo and --itl-slo. First see whether the transfer can be made faster.",
            commands=("kvprobe preflight --model MODEL", "kvprobe tune --model MODEL"),
        )
    if told.verdict == "pd_worse":
        return Remedy(
            text="Stay colocated at this load, or find out where the time goes.",
            commands=("kvprobe preflight --model MODEL", "kvprobe logs decode.log"),
        )
    return None


def targets(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP633: P/D meets the targets that were given."""
    if facts.figures is None:
        return
    colocated = {check.metric: check for check in facts.figures.slo_colocated}
    for check in facts.figures.slo_pd:
        percentile = facts.slo.percentile
        name = f"{check.metric.upper()} p{percentile:g}"
        if check.seconds is None:
            yield Finding(
                id="KVP633", name="targets-met", status=Status.UNKNOWN, where=facts.where,
                title=f"{name} of P/D is not in the file, so the target cannot be checked",
                remedy=Remedy(text=f"Run again with --metric-percentiles 50,{percentile:g} or --save-detailed."),
            )  # fmt: skip
            continue
        verb = "meets" if check.met else "misses"
        yield Finding(
            id="KVP633",
            name="targets-met",
            status=Status.PASS if check.met else Status.FAIL,
            title=f"P/D {verb} the {check.metric.upper()} target: p{percentile:g} {format_seconds(check.seconds)}, "
            f"at most {format_seconds(check.limit_seconds)} (colocated: {_told(colocated.get(check.metric))})",
            measured=Quantity(
                value=check.seconds, unit="s", statistic=f"p{percentile:g}", samples=check.samples
            ),
            expected=Expected(max=check.limit_seconds, unit="s", source=f"--{check.metric}-slo"),
            where=facts.where,
        )


def _told(check: SloCheck | None) -> str:
    return "not known" if check is None or check.seconds is None else format_seconds(check.seconds)


def tax_explained(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP634: how much of the longer TTFT the transfer explains."""
    pair = facts.figures.metrics.get("median_ttft_ms") if facts.figures else None
    if pair is None or facts.log is None or not pair.differs(0.0):
        return
    told = tax_share(pair.delta, facts.log)
    if told is None:
        return
    rest = told.tax_seconds - told.transfer_seconds
    yield Finding(
        id="KVP634",
        name="tax-explained-by-transfer",
        status=Status.PASS,
        title=f"TTFT is {format_seconds(told.tax_seconds)} longer; the KV transfer takes "
        f"{format_seconds(told.transfer_seconds)} of it ({told.share * 100:.0f} %)",
        measured=Quantity(
            value=told.transfer_seconds, unit="s", statistic="mean", samples=told.transfers
        ),
        notes=(f"The other {format_seconds(rest)}: proxy hop, second scheduling, first decode step, queueing.",)
        if rest > 0
        else ("The transfers of the log are longer than the difference: they may belong to another load.",),
        where=facts.where or facts.log.source,
    )  # fmt: skip


RULES_PAIR: tuple[Rule[CompareFacts], ...] = (
    Rule("KVP620", "pd-against-colocated", decision),
    Rule("KVP633", "targets-met", targets),
    Rule("KVP634", "tax-explained-by-transfer", tax_explained),
)


def rates_carried(facts: SweepFacts, policy: Policy) -> Iterable[Finding]:
    """KVP635: P/D carries at least the rate that colocated carries."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None:
        return
    basis = {
        "targets": "inside the targets",
        "goodput": "with 90 % of the requests good",
        "queue": "without a growing queue",
    }[two.basis]
    texts = [f"{side} {_carries(told)}" for side, told in (("colocated", one), ("P/D", two))]
    status = Status.PASS
    if two.carries is None or (one.carries and two.carries < one.carries):
        status = Status.WARN
    yield Finding(
        id="KVP635",
        name="rate-carried",
        status=status,
        title=f"Highest load {basis}: {', '.join(texts)}",
        measured=Quantity(value=two.carries.request_rate, unit="requests/s") if two.carries else None,
        expected=Expected(min=one.carries.request_rate, unit="requests/s", source="the colocated side")
        if one.carries
        else None,
        remedy=Remedy(
            text="The first stage to fill up sets the rate: add a prefill instance when TTFT breaks, a decode instance "
            "when ITL or TPOT breaks."
        )
        if status is Status.WARN
        else None,
    )


def _carries(told: Capacity) -> str:
    held = told.carries.words if told.carries else "none of the measured ones"
    if told.breaks_at is None:
        return f"{held} (the highest measured)" if told.carries else held
    return f"{held} (breaks at {told.breaks_at.words}: {told.because})"


def sweep_is_cold(facts: SweepFacts, policy: Policy) -> Iterable[Finding]:
    """KVP636: a sweep does not fill its own prefix cache from rate to rate."""
    for side, low, high in facts.filled_cache:
        yield Finding(
            id="KVP636",
            name="sweep-without-warm-cache",
            status=Status.UNKNOWN,
            title=f"{side}: TTFT falls by a third or more from {low.words} to {high.words}: later rates hit the prefix cache",
            remedy=Remedy(
                text="The same --seed sends the same prompts at every rate: give each rate its own --seed, reset the "
                "prefix cache between runs, or start the servers with --no-enable-prefix-caching."
            ),
            code="suspect_prefix_cache",
        )  # fmt: skip


RULES_SWEEP: tuple[Rule[SweepFacts], ...] = (
    Rule("KVP635", "rate-carried", rates_carried),
    Rule("KVP636", "sweep-without-warm-cache", sweep_is_cold),
)
RULES = (*RULES_PAIR, *RULES_SWEEP)
