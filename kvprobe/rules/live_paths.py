"""KVP693 to KVP696: load on running streams, the four-hop token path, and conversations that are read back."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.paired_facts import LiveFacts
from kvprobe.models.paired_load import WindowResult
from kvprobe.models.statistics import median
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds

_SLOWER = 1.1
"""Read-back is called slower from here on: three conversations a way cannot tell less."""
_TELLING_SECONDS, _TELLING_RATIO = 0.001, 0.1
"""P/D's p99 is called worse from here on: a few stalls in some hundred gaps move it by less on their own."""
_P99_GAPS = 100
"""A p99 of fewer gaps is the maximum of a few."""


def _tail(window: WindowResult) -> str:
    """p99, and the longest gap: the p99 of many gaps hides the stalls of a few prompts."""
    assert window.itl_p99 is not None  # the caller asked for enough gaps
    longest = f" (longest {format_seconds(window.itl_max)})" if window.itl_max is not None else ""
    return f"{format_seconds(window.itl_p99)}{longest}"


def interference(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP693: running streams keep their pace while long prompts arrive; it is what P/D is bought for."""
    rates = sorted({w.rate for w in facts.windows})
    for rate in rates:
        ways = {w.way: w for w in facts.windows if w.rate == rate}
        pd, colocated = ways.get("pd"), ways.get("colocated")
        if pd is None or colocated is None:
            continue
        if min(pd.gaps, colocated.gaps) < _P99_GAPS or pd.itl_p99 is None or colocated.itl_p99 is None:
            yield Finding(
                id="KVP693",
                name="itl-interference",
                status=Status.SKIP,
                title=f"Long prompts at {rate:g}/s: too few gaps came for a p99 ({min(pd.gaps, colocated.gaps)})",
                where=f"{rate:g}/s",
            )
            continue
        slo = facts.slo.tpot_seconds
        slower = pd.itl_p99 - colocated.itl_p99
        better = slower <= 0
        if slo is not None:
            status = Status.FAIL if pd.itl_p99 > slo else Status.PASS
        else:
            worse = slower > max(_TELLING_SECONDS, _TELLING_RATIO * colocated.itl_p99)
            status = Status.WARN if worse else Status.PASS
        yield Finding(
            id="KVP693",
            name="itl-interference",
            status=status,
            title=f"Long prompts at {rate:g}/s: ITL p99 {_tail(pd)} through P/D, {_tail(colocated)} colocated",
            measured=Quantity(value=pd.itl_p99, unit="s", statistic="p99", samples=pd.gaps),
            expected=Expected(source="--tpot-slo", max=slo, unit="s")
            if slo is not None
            else Expected(source="colocated in the same run", max=colocated.itl_p99, unit="s"),
            remedy=None
            if status is Status.PASS
            else Remedy(
                text="Look for what stalls decode: transfers posted inside its step (fewer descriptors help), or more "
                "streams than it can carry."
                + ("" if better else " Colocated does no worse here, so P/D buys nothing at this rate.")
            ),
            notes=(_longest(pd, colocated), *_goodput(pd, colocated)),
            where=f"{rate:g}/s",
            code=None if status is Status.PASS else "itl_not_better",
        )


def four_hops(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP695: render, prefill, decode and derender work as one path."""
    good = [h for h in facts.hops if h.failure is None and h.ttft_seconds is not None]
    broken = next((h.params for h in facts.hops if h.params is not None and h.params.problem), None)
    if broken is not None:
        yield Finding(
            id="KVP695",
            name="four-hops",
            status=Status.FAIL,
            title=f"On the token path decode gets nothing to fetch: {broken.problem}",
            remedy=Remedy(
                text="Start prefill and decode of the token path with the same --kv-transfer-config."
            ),
            code="kv_params_null" if not broken.present else "invalid_kv_transfer_params",
        )
    elif good:
        parts = [
            f"{name} {format_seconds(median(values))}"
            for name, values in (
                ("render", [h.render_seconds for h in good if h.render_seconds is not None]),
                ("prefill", [h.prefill_seconds for h in good if h.prefill_seconds is not None]),
                ("first token", [h.decode_first_seconds for h in good if h.decode_first_seconds is not None]),
                ("derender", [h.derender_seconds for h in good if h.derender_seconds is not None]),
            )
            if values
        ]
        yield Finding(
            id="KVP695",
            name="four-hops",
            status=Status.PASS,
            title=f"render, prefill, decode, derender work: {', '.join(parts)} (medians of {len(good)}, all lengths)",
        )


def turns(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP696: with bidirectional transfer prefill reads decode's KV back, and later turns start sooner."""
    seen = facts.turns
    if seen is None or not seen.conversations:
        return
    hung = next((c for c in seen.conversations if c.read_back and c.offered and c.failed_role == "prefill" and (c.failed_turn or 0) > 1), None)  # fmt: skip
    code: str | None
    if hung is not None:
        status, code = Status.FAIL, "bidirectional_one_side"
        title = f"Decode offers its KV, and prefill fails in turn {hung.failed_turn} when it is to read it"
        text = "Set bidirectional_kv_xfer on both sides: with decode alone turn 2 waits on prefill for ever."
    elif not seen.offered:
        status, code = Status.WARN, "bidirectional_inactive"
        title = "Decode offers no KV to read back: bidirectional transfer is off, and every turn is prefilled again"
        text = 'Start both with kv_connector_extra_config {"bidirectional_kv_xfer": true} (vLLM 0.22+).'
    elif seen.prefill_external_tokens == 0:
        status, code = Status.WARN, "bidirectional_no_readback"
        title = "Decode offers its KV, but prefill read none of it"
        text = "Prefill may hold the prefix itself, or the turn is below kv_recompute_threshold (64 tokens)."
    else:
        one, other = seen.read_back_ttft, seen.plain_ttft
        slower = one is not None and other is not None and one.median > other.median * _SLOWER
        status, code = (Status.WARN, "bidirectional_slower") if slower else (Status.PASS, None)
        text = "Raise kv_recompute_threshold, or leave bidirectional transfer off." if slower else ""
        last = seen.conversations[0].turns[-1].turn if seen.conversations[0].turns else 0
        title = f"Turn {last}: TTFT {_maybe(seen.read_back_ttft)} with read-back, {_maybe(seen.plain_ttft)} without"
    yield Finding(
        id="KVP696",
        name="bidirectional-turns",
        status=status,
        title=title,
        measured=seen.read_back_ttft.quantity("s") if seen.read_back_ttft else None,
        remedy=Remedy(text=text) if text else None,
        code=code,
    )


def _longest(pd: WindowResult, colocated: WindowResult) -> str:
    assert pd.itl_max is not None and colocated.itl_max is not None
    return (
        f"longest gap {format_seconds(pd.itl_max)} through P/D, {format_seconds(colocated.itl_max)} colocated "
        f"({pd.streams} streams, {pd.arrived} and {colocated.arrived} arrivals)"
    )


def _goodput(pd: WindowResult, colocated: WindowResult) -> tuple[str, ...]:
    if pd.good is None or colocated.good is None:
        return ()
    return (f"inside the targets: {pd.good} of {pd.arrived} through P/D, {colocated.good} of {colocated.arrived} colocated",)  # fmt: skip


def _maybe(summary: object) -> str:
    found = getattr(summary, "median", None)
    return format_seconds(found) if found is not None else "not measured"


RULES: tuple[Rule[LiveFacts], ...] = (
    Rule("KVP693", "itl-interference", interference),
    Rule("KVP695", "four-hops", four_hops),
    Rule("KVP696", "bidirectional-turns", turns),
)
