"""KVP620, KVP633, KVP634: did P/D beat colocated, inside the targets, and what explains the price?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.bench_facts import CompareFacts
from kvprobe.models.bench_goodput import SloCheck
from kvprobe.models.bench_log import tax_share
from kvprobe.models.bench_verdict import Change, Decision
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds, signed_seconds

_REPEAT = "Repeat both sides (three runs each, or more prompts) and pass directories: the range over the runs is then the yardstick."


def decision(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP620: P/D gains more than it costs, inside the targets."""
    told = facts.decision
    if told is None:
        return
    deciding = next(iter((*told.gains, *told.losses)), None)
    yield Finding(
        id="KVP620",
        name="pd-against-colocated",
        status=status_of(told.verdict, told.slo_broken),
        title=_sentence(told, facts),
        measured=_measured(deciding, facts),
        remedy=_remedy(told, facts),
        notes=_certainty(told, facts),
        where=facts.where,
        code=told.verdict,
    )


def status_of(verdict: str, slo_broken: bool) -> Status:
    """PASS, WARN, FAIL, or UNKNOWN where nothing may be concluded."""
    mixed = Status.FAIL if slo_broken else Status.WARN
    told = {"pd_better": Status.PASS, "no_difference": Status.PASS, "pd_worse": Status.FAIL, "mixed": mixed}
    return told.get(verdict, Status.UNKNOWN)


def _value(change: Change, value: float) -> str:
    if change.unit == "s":
        return format_seconds(value)
    return f"{value * 100:.3g} %" if change.unit == "ratio" else f"{value:.3g} {change.unit}"


def _short(change: Change) -> str:
    told = how_much(change.pd / change.colocated if change.colocated else None)
    return f"{change.name} from {_value(change, change.colocated)} to {_value(change, change.pd)} ({told})"


def how_much(ratio: float | None) -> str:
    """``+26 %``, ``-83 %``; from the double on ``3.1 times``."""
    if ratio is None:
        return "from none"
    return f"{ratio:.2g} times" if ratio >= 2 else f"{(ratio - 1) * 100:+.2g} %"


def _list(changes: tuple[Change, ...]) -> str:
    """The changes that lead: a median before its tail, the token gaps before their mean."""
    names = {c.name for c in changes}
    hidden = {"TTFT p99"} if "TTFT median" in names else set()
    hidden |= {"TPOT mean"} if any(n.startswith("ITL") for n in names) else set()
    return ", ".join(_short(c) for c in changes if c.name not in hidden)


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
            text += f"; TTFT tax {format_seconds(tax)}, {told.tax_limit}"
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


def _certainty(told: Decision, facts: CompareFacts) -> tuple[str, ...]:
    """One sentence a decisive difference that has an interval."""
    if facts.figures is None:
        return ()
    keys = {"TTFT median": "median_ttft_ms", "ITL p99": "p99_itl_ms"}
    found = []
    for change in (*told.gains, *told.losses, *([told.price] if told.price else [])):
        pair = facts.figures.metrics.get(keys.get(change.name, ""))
        if pair and pair.interval:
            low, high = (signed_seconds(v / 1e3) for v in (pair.interval.low, pair.interval.high))
            way = "saved requests" if pair.interval_from == "requests" else "the standard deviations"
            found.append(f"{change.name}: the difference is {low} to {high} (95 % interval from {way}).")
    return tuple(found)


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


RULES: tuple[Rule[CompareFacts], ...] = (
    Rule("KVP620", "pd-against-colocated", decision),
    Rule("KVP633", "targets-met", targets),
    Rule("KVP634", "tax-explained-by-transfer", tax_explained),
)
