"""What makes two benchmark results misleading, as figures: saturation, warm caches, bundled tokens, warm-up."""

from __future__ import annotations

import math

import msgspec

from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.statistics import median

# Compute of an accelerator over its memory bandwidth, FLOP a byte: L40S 419, H100 295, MI300X 245, H20 37. A prompt
# of n tokens takes about n / 300 decode steps of a small batch; https://arxiv.org/abs/2402.16363. A tenth of that is
# the limit; with many requests in flight a step reads their KV too and takes longer, so a thirtieth.
_STEPS_PER_TOKEN_FEW, _STEPS_PER_TOKEN_MANY = 0.1 / 300, 0.03 / 300
_FEW_IN_FLIGHT = 16
_CACHE_CHECK_TOKENS = 2048
_LATENCIES_NEEDED = 30
_NO_STEP_MS = 1.0
"""No decode step of a served model is shorter."""


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop run against the rate it asked for."""

    request_rate: float
    """Requests/s asked for; ``inf`` when all were sent at once."""
    request_throughput: float
    served_share: float | None
    """Served over asked, the time in which the last answers run out not counted; None for ``inf``."""
    latency_growth: float | None
    """Median latency of the last third of the requests over that of the first; None if not saved."""
    saturated: bool


def saturation(run: BenchResult) -> Saturation | None:
    """None when the run has no queue to grow: no rate told, a ramp-up, or a limited concurrency."""
    rate = run.request_rate
    if rate is None or not rate or run.ramp_up or run.max_concurrency or not run.completed:
        return None
    growth = latency_growth(run)
    throughput = run.completed / run.duration_seconds if run.duration_seconds else 0.0
    if math.isinf(rate):
        return Saturation(
            request_rate=rate,
            request_throughput=throughput,
            served_share=None,
            latency_growth=growth,
            saturated=run.sent > run.runs,
        )
    decode_ms = ((run.output_tokens_per_request or 1) - 1) * (run.ms("mean", "tpot") or 0.0)
    # The last answer of each run is still being decoded when the arrivals are over.
    window = max(run.duration_seconds - decode_ms / 1e3 * run.runs, run.duration_seconds * 0.05)
    share = run.sent / window / rate
    short = share < 0.9 and (growth is None or growth > 1.2)
    return Saturation(
        request_rate=rate,
        request_throughput=throughput,
        served_share=share,
        latency_growth=growth,
        saturated=short or (growth is not None and growth > 2.0 and share < 0.98),
    )


def latency_growth(run: BenchResult) -> float | None:
    """How much longer the last third of the requests took than the first third; 1.0 is a steady run."""
    found = run.latencies_seconds
    if len(found) < _LATENCIES_NEEDED or run.runs > 1:
        return None
    third = len(found) // 3
    return median(found[-third:]) / median(found[:third])


class CacheSuspicion(msgspec.Struct, frozen=True, kw_only=True):
    """A TTFT that is too short for the prompt to have been computed."""

    side: str
    ttft_ms: float
    input_tokens: float
    prompt_tokens_per_second: float
    colocated_ttft_ms: float | None = None
    """Set when the other side shows how long this prompt takes."""
    decode_steps: float | None = None
    """TTFT in decode steps, when that alone is impossible."""


def cached_prompts(side: str, run: BenchResult, other: BenchResult | None) -> CacheSuspicion | None:
    """Whether the prompts of ``run`` were already in the prefix cache.

    Two signs: no accelerator computes n tokens in so few decode steps; and P/D cannot compute a prompt in half the
    time that the colocated server needs for it while that server has no queue.
    """
    ttft, tokens = run.ms("median", "ttft"), run.input_tokens_per_request
    if not ttft or not tokens:
        return None
    suspicion = CacheSuspicion(
        side=side, ttft_ms=ttft, input_tokens=tokens, prompt_tokens_per_second=tokens / ttft * 1e3
    )
    step, in_flight = run.ms("median", "itl"), run.max_concurrent_requests
    least = _STEPS_PER_TOKEN_FEW if in_flight and in_flight <= _FEW_IN_FLIGHT else _STEPS_PER_TOKEN_MANY
    if tokens >= _CACHE_CHECK_TOKENS and step and not bundling(run) and ttft < tokens * least * step:
        suspicion = msgspec.structs.replace(suspicion, decode_steps=ttft / step)
    alone = _unqueued_ttft_ms(other) if side == "pd" and other else None
    same = (
        other and other.input_tokens_per_request and abs(other.input_tokens_per_request / tokens - 1) < 0.02
    )
    if alone and same and other and tokens >= 512 and ttft < 0.5 * alone:
        suspicion = msgspec.structs.replace(suspicion, colocated_ttft_ms=other.ms("median", "ttft"))
    seen = suspicion.decode_steps is not None or suspicion.colocated_ttft_ms is not None
    return suspicion if seen else None


def _unqueued_ttft_ms(run: BenchResult) -> float | None:
    """A lower bound of what the prompt takes without a queue; None when the run is all queue."""
    if run.requests:
        return min(r.ttft_seconds for r in run.requests) * 1e3
    middle, deviation = run.ms("median", "ttft"), run.ms("std", "ttft")
    told = saturation(run)
    if (run.max_concurrency or 1) > 1:  # the client keeps a queue at the server
        return None
    if not middle or deviation is None or (told and told.saturated) or deviation > middle / 2:
        return None
    return middle - 2 * deviation if middle > 2 * deviation else middle / 2


class Bundling(msgspec.Struct, frozen=True, kw_only=True):
    """Several tokens arrive together, so the gaps between chunks are not gaps between tokens."""

    tokens_per_chunk: float | None
    """None when the whole answer came in one piece, or in bursts of unknown size."""
    median_itl_ms: float | None
    mean_itl_ms: float | None
    mean_tpot_ms: float | None


def bundling(run: BenchResult) -> Bundling | None:
    """None when the gaps are gaps between single tokens, or nothing can be said."""
    tokens, tpot = run.output_tokens_per_request, run.ms("mean", "tpot")
    mean, middle = run.ms("mean", "itl"), run.ms("median", "itl")
    if not tokens or tokens <= 1.05 or not tpot or ("mean_itl_ms" not in run.numbers):
        return None
    told = Bundling(tokens_per_chunk=None, median_itl_ms=middle, mean_itl_ms=mean, mean_tpot_ms=tpot)
    factor = _tokens_per_chunk(run, tpot, mean)
    if factor is not None and factor > 1.25:
        return msgspec.structs.replace(told, tokens_per_chunk=factor)
    # Tokens that a proxy holds back and sends together: most gaps are 0, a few are many steps. A median far below
    # the mean is no sign of it: prefills that stop decoding give that too.
    if mean is None or middle is None or (middle < _NO_STEP_MS and middle < 0.2 * mean):
        return told
    return None


def _tokens_per_chunk(run: BenchResult, tpot: float, mean_itl: float | None) -> float | None:
    if run.requests:
        gaps = sum(len(r.itl_seconds) for r in run.requests)
        return sum(r.output_tokens - 1 for r in run.requests) / gaps if gaps else None
    if not mean_itl:
        return None
    if len(run.latencies_seconds) == run.completed and (ttft := run.ms("mean", "ttft")):
        decode_ms = sum(run.latencies_seconds) * 1e3 - run.completed * ttft
        if decode_ms > 0:
            return (run.total_output_tokens - run.completed) / (decode_ms / mean_itl)
    # Means over tokens and over requests differ a little when lengths differ: only a clear excess counts.
    return mean_itl / tpot if mean_itl / tpot > 1.4 else None


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The first request took much longer than the others: start-up is part of the sample."""

    first_seconds: float
    median_seconds: float
    what: str
    """``TTFT`` or ``latency``."""


def warm_up(run: BenchResult) -> WarmUp | None:
    """The first request stands out (handshake, compilation, cold caches); None if not or not saved."""
    ttfts = [r.ttft_seconds for r in run.requests]
    values, what = (ttfts, "TTFT") if ttfts else (list(run.latencies_seconds), "latency")
    if len(values) < 10 or run.runs > 1:
        return None
    middle, rest = median(values), sorted(values[1:])
    factor = 3.0 if what == "TTFT" else 2.0
    # Longer than all the others but a few: a single slow request in the middle is not a warm-up.
    if values[0] > factor * middle and values[0] >= rest[int(len(rest) * 0.98)]:
        return WarmUp(first_seconds=values[0], median_seconds=middle, what=what)
    return None


def same_run(one: BenchResult, two: BenchResult) -> bool:
    """Equal to the last digit: one run under two names. Two real runs never agree on all floats."""
    floats = [v for v in one.numbers.values() if v]
    return bool(floats) and one.numbers == two.numbers and one.duration_seconds == two.duration_seconds
