"""KVP626 to KVP628: was decoding measured, token by token, on KV that was transferred?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_checks import bundling
from kvprobe.models.bench_facts import CompareFacts
from kvprobe.models.bench_metrics import tail_percentile
from kvprobe.models.bench_verdict import NOISE
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_seconds


def decoding_measured(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP626: first token and decoding were really measured on both sides."""
    usable = True
    for side, run in facts.sides:
        if not run.completed:
            usable = False
            continue
        if (run.output_tokens_per_request or 0) <= 1.05:
            usable = False
            yield _single_tokens(side, run, facts)
        if "median_ttft_ms" in run.numbers and run.ms("median", "ttft") is None:
            usable = False
            yield _zero_ttft(side, run, facts)
    if usable and facts.colocated and facts.pd:
        yield from _tail_missing(facts, facts.colocated, facts.pd)


def _single_tokens(side: str, run: BenchResult, facts: CompareFacts) -> Finding:
    if side == "P/D":
        remedy = Remedy(
            text="Look at the proxy: it answers with the prefill leg (max_tokens=1) instead of sending the request on "
            "to decode. Send one request by hand and count its tokens.",
            commands=(
                """curl -s PROXY/v1/completions -d '{"model": "M", "prompt": "Hi", "max_tokens": 16}'""",
            ),
        )
    else:
        remedy = Remedy(text="Ask for longer answers: --random-output-len 256 --ignore-eos.")
    return Finding(
        id="KVP626",
        name="decoding-measured",
        status=Status.UNKNOWN,
        title=f"{side}: every answer has 1 token ({run.total_output_tokens} tokens, {run.completed} requests), so no "
        "decoding was measured",
        measured=Quantity(value=run.output_tokens_per_request, unit="tokens", statistic="mean", samples=run.completed),
        remedy=remedy,
        where=facts.where or run.source,
        code="single_token_outputs",
    )  # fmt: skip


def _zero_ttft(side: str, run: BenchResult, facts: CompareFacts) -> Finding:
    return Finding(
        id="KVP626",
        name="decoding-measured",
        status=Status.UNKNOWN,
        title=f"{side}: median_ttft_ms is 0.0 although {run.completed} requests completed: no first token was timed, "
        "the answers were not streamed",
        remedy=Remedy(
            text="Make the proxy stream (text/event-stream, no buffering) and use a streaming backend of the "
            "benchmark; 0.0 means no data."
        ),
        where=facts.where or run.source,
        code="zero_ttft_with_completed_requests",
    )


def _tail_missing(facts: CompareFacts, one: BenchResult, two: BenchResult) -> Iterable[Finding]:
    if tail_percentile(one, two) or any(bundling(r) for r in (one, two)):
        return
    lacking = [
        s
        for s, run in facts.sides
        if not any(k.startswith("p9") and k.endswith("itl_ms") for k in run.numbers)
    ]
    yield Finding(
        id="KVP626",
        name="decoding-measured",
        status=Status.UNKNOWN,
        title=f"No ITL tail to compare (p99_itl_ms missing on {' and '.join(lacking) or 'one side'}): the stalls that "
        "P/D removes are only seen there",
        remedy=Remedy(
            text="Run again with --percentile-metrics ttft,tpot,itl --metric-percentiles 50,99 (and --save-detailed)."
        ),
        where=facts.where,
        code="tail_itl_missing",
    )  # fmt: skip


def single_tokens_arrive(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP627: tokens arrive one by one, so that ITL is the gap between tokens."""
    for side, run in facts.sides:
        told = bundling(run)
        if told is None:
            continue
        if told.tokens_per_chunk:
            text = f"{side}: about {told.tokens_per_chunk:.2g} tokens arrive in one chunk"
        elif told.mean_itl_ms is None:
            text = f"{side}: the whole answer arrives in one piece"
        else:
            text = f"{side}: tokens arrive in bursts"
        figures = [
            f"{name} {value:.3g} ms"
            for name, value in (
                ("median ITL", told.median_itl_ms), ("mean ITL", told.mean_itl_ms), ("mean TPOT", told.mean_tpot_ms),
            )
            if value is not None
        ]  # fmt: skip
        yield Finding(
            id="KVP627",
            name="tokens-arrive-singly",
            status=Status.WARN,
            title=f"{text} ({', '.join(figures)}), so ITL is the gap between chunks, not between tokens",
            remedy=Remedy(
                text="Turn off what bundles them (proxy buffering, --stream-interval, speculative decoding) on both "
                "sides, or compare TPOT and end-to-end latency instead."
            ),
            where=facts.where or run.source,
            code="itl_bundled",
        )


def pd_active(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP628: KV was transferred, decode did not prefill again."""
    log = facts.log
    if facts.pd is None:
        return
    if log is None:
        yield from _doubled(facts)
        return
    if log.active is None:
        yield Finding(
            id="KVP628",
            name="pd-active",
            status=Status.SKIP,
            title="The decode log has neither \"KV Transfer metrics\" nor throughput lines: it cannot tell",
            where=log.source,
        )  # fmt: skip
    elif log.active:
        yield Finding(
            id="KVP628",
            name="pd-active",
            status=Status.PASS,
            title=f"The decode log shows {log.transfers} KV transfers of {format_seconds(log.transfer_seconds or 0)} each",
            measured=Quantity(
                value=log.transfer_seconds, unit="s", statistic="mean", samples=log.transfers
            ),
            where=log.source,
        )  # fmt: skip
    else:
        seen = f"prompt throughput up to {log.prompt_tokens_per_second:,.0f} tokens/s, no successful transfer"
        yield Finding(
            id="KVP628",
            name="pd-active",
            status=Status.UNKNOWN,
            title=f"P/D was not active: the decode log has no \"KV Transfer metrics\" of a success ({seen})",
            remedy=Remedy(
                text="Check that the proxy passes kv_transfer_params from the prefill answer on to decode, and that both "
                "servers have the connector in --kv-transfer-config; decode computed the prompts a second time.",
                commands=("kvprobe logs decode.log", "kvprobe lint prefill.sh decode.sh"),
            ),
            notes=_doubled_note(facts),
            where=log.source,
            code="no_kv_transfer_seen",
        )  # fmt: skip


def _doubled(facts: CompareFacts) -> Iterable[Finding]:
    notes = _doubled_note(facts)
    if notes:
        yield Finding(
            id="KVP628",
            name="pd-active",
            status=Status.WARN,
            title="TTFT is twice the colocated one and decoding is unchanged: did decode prefill the prompt again?",
            remedy=Remedy(text="Give the decode log, which tells: --decode-log decode.log."),
            notes=notes,
            where=facts.where,
            code="double_prefill_suspected",
        )


def _doubled_note(facts: CompareFacts) -> tuple[str, ...]:
    if facts.colocated is None or facts.pd is None:
        return ()
    one, two = facts.colocated.ms("median", "ttft"), facts.pd.ms("median", "ttft")
    steps = facts.colocated.ms("mean", "tpot"), facts.pd.ms("mean", "tpot")
    if not (one and two and steps[0] and steps[1]):
        return ()
    if 1.9 <= two / one <= 2.2 and abs(steps[1] / steps[0] - 1) < NOISE:
        return (f"TTFT median {two:.4g} ms is {two / one:.3g} times {one:.4g} ms, TPOT is the same.",)
    return ()


RULES: tuple[Rule[CompareFacts], ...] = (
    Rule("KVP626", "decoding-measured", decoding_measured),
    Rule("KVP627", "tokens-arrive-singly", single_tokens_arrive),
    Rule("KVP628", "pd-active", pd_active),
)
