"""Split or stay colocated, for the case that the user states: reasons for and against, and what decides.

P/D buys even token gaps (no prefill stops decoding) with time to first token. So it pays when gaps miss their target
or prefill takes a large share of the GPU, and does not when TTFT is the limit, traffic leaves the GPU idle, or the
transfer is slow.
"""

from __future__ import annotations

import msgspec

from kvprobe.evidence import Origin
from kvprobe.units import format_seconds

DEFAULT_BATCHED_TOKENS = 8192
"""vLLM's --max-num-batched-tokens of a server on a GPU of 70 GiB or more, A100 apart; 2,048 on others (arg_utils.py)."""
PREFILL_SHARE = 0.3
"""From here on a GPU spends so much of its time with prefills that decoding suffers visibly."""
LONG_PROMPT_TOKENS = 4096
"""Where Dynamo's guide saw P/D ahead; below 1k to 2k tokens colocated won (one model, one cluster)."""
JUDGED_TOKENS = 8192


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about the service. None: not told."""

    ttft_slo_seconds: float | None = None
    itl_slo_seconds: float | None = None
    itl_p99_seconds: float | None = None
    """Measured today, colocated."""
    base_ttft_seconds: float | None = None
    """TTFT without P/D at the judged prompt length."""
    requests_per_second: float | None = None
    """That one prefill instance (today: one server) gets."""
    turns: int | None = None
    """Turns of a usual conversation."""
    traffic: str | None = None
    """``low``, ``bursty`` or ``steady``."""
    max_num_batched_tokens: int | None = None

    @property
    def told(self) -> bool:
        """Whether anything is known that speaks for or against P/D."""
        known = (
            self.ttft_slo_seconds, self.itl_slo_seconds, self.itl_p99_seconds, self.requests_per_second, self.traffic,
        )  # fmt: skip
        return any(value is not None for value in known)


class AdviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the advice stands on; from a measurement (preflight) or an estimate."""

    prompt_tokens: int
    transfer_seconds: float | None
    transfer_origin: Origin = Origin.MEASURED
    tax_seconds: float | None = None
    """p50 of the predicted TTFT tax; None: the transfer is not known at all."""
    tax_origin: Origin = Origin.ASSUMED
    lower_bound: bool = False
    """Transfer and tax are at least this: enough to advise against P/D, never for it."""
    case: Case = Case()
    template_safe: bool | None = None
    """Whether bidirectional transfer is safe with the chat template; None: not tested."""
    render_core_share: float | None = None
    """Share of a CPU core that rendering and tokenising takes; None: not measured."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """``split``, ``colocate``, ``measure_first`` (speaks for P/D, but the transfer is not known) or ``no_need``."""

    label: str
    deciding: tuple[str, ...]
    """Why, the strongest first."""
    also: tuple[str, ...] = ()
    """What speaks the other way, or weighs less."""
    stall_seconds: float | None = None
    """How long one prefill step holds up decoding when colocated; None without a base TTFT."""
    prefill_share: float | None = None
    """Share of the time that one GPU spends with prefills when colocated."""
    batched_tokens: int | None = None
    """``--max-num-batched-tokens`` that would keep a colocated server's gaps inside the ITL target."""


def advise(facts: AdviceFacts, *, slow_seconds: float, noticeable_seconds: float) -> Advice:
    """Weigh the case. ``slow_seconds`` and ``noticeable_seconds``: limits of a transfer of 8,192 tokens."""
    case = facts.case
    stall, share = stall_seconds(facts), prefill_share(case)
    limits = [*_ttft_limits(facts), *_slow(facts, slow_seconds)]
    traffic = _traffic(case)
    pro, contra = _gaps(facts, stall)
    pro += _prefill_load(facts, share)
    contra += _noticeable(facts, noticeable_seconds, bool(limits))
    if limits:
        label, deciding, also = "colocate", limits, [*traffic, *contra, *pro]
    elif traffic:
        label, deciding, also = "colocate", [*traffic, *contra], pro
    elif not pro:
        label, deciding, also = "no_need", contra or ["nothing in the stated case asks for P/D"], []
    elif facts.transfer_seconds is None or facts.lower_bound:
        label, deciding, also = "measure_first", pro, ["the transfer is not fully known", *contra]
    else:
        label, deciding, also = "split", pro, [_tax_words(facts), *contra]
    return Advice(
        label=label,
        deciding=tuple(deciding),
        also=tuple(also),
        stall_seconds=stall,
        prefill_share=share,
        batched_tokens=_smaller_chunks(facts),
    )


def stall_seconds(facts: AdviceFacts) -> float | None:
    """With chunked prefill a step holds at most ``max_num_batched_tokens`` tokens of the prompt."""
    base = facts.case.base_ttft_seconds
    if base is None:
        return None
    budget = facts.case.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    return base * min(1.0, budget / facts.prompt_tokens)


def prefill_share(case: Case) -> float | None:
    """Requests a second times the seconds of each prefill; above 1 the queue grows."""
    if case.requests_per_second is None or case.base_ttft_seconds is None:
        return None
    return case.requests_per_second * case.base_ttft_seconds


def _smaller_chunks(facts: AdviceFacts) -> int | None:
    """Tokens a step so that its prefill part fits into the ITL target; whole multiples of 256, at least 512."""
    base, target = facts.case.base_ttft_seconds, facts.case.itl_slo_seconds
    if not base or not target:
        return None
    budget = facts.case.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    tokens = int(facts.prompt_tokens * target / base) // 256 * 256
    return max(512, tokens) if tokens < budget else None


def _ttft_limits(facts: AdviceFacts) -> list[str]:
    slo, base, added = facts.case.ttft_slo_seconds, facts.case.base_ttft_seconds, facts.tax_seconds
    if slo is None or added is None:
        return []
    least = "at least " if facts.lower_bound else ""
    if base is not None and base + added > slo:
        return [
            f"TTFT would be {least}{format_seconds(base + added)} ({format_seconds(base)} + {format_seconds(added)} tax), "
            f"above {format_seconds(slo)}"
        ]  # fmt: skip
    if base is None and added > slo:
        return [
            f"the tax alone, {least}{format_seconds(added)}, exceeds the TTFT target of {format_seconds(slo)}"
        ]
    return []


def at_judged_length(facts: AdviceFacts) -> float | None:
    """The transfer in terms of 8,192 tokens, the length that the limits are for; shorter prompts count as they are."""
    if facts.transfer_seconds is None:
        return None
    return facts.transfer_seconds * JUDGED_TOKENS / max(facts.prompt_tokens, JUDGED_TOKENS)


def _slow(facts: AdviceFacts, limit: float) -> list[str]:
    seconds = at_judged_length(facts)
    if seconds is None or seconds <= limit:
        return []
    least = "at least " if facts.lower_bound else ""
    return [
        f"the transfer takes {least}{format_seconds(facts.transfer_seconds or 0)} for {facts.prompt_tokens:,} tokens "
        f"(limit: {format_seconds(limit)} for {JUDGED_TOKENS:,})"
    ]  # fmt: skip


def _noticeable(facts: AdviceFacts, limit: float, already: bool) -> list[str]:
    seconds = at_judged_length(facts)
    if already or seconds is None or seconds <= limit:
        return []
    return [f"the transfer of {format_seconds(facts.transfer_seconds or 0)} is noticeable"]


def _traffic(case: Case) -> list[str]:
    if case.traffic == "low":
        return ["traffic is low: prefills seldom meet decoding, and a split leaves one of two GPUs idle"]
    if case.traffic == "bursty":
        return ["traffic is bursty: a fixed split is too small for prefill in a burst and idle between them"]
    return []


def _gaps(facts: AdviceFacts, stall: float | None) -> tuple[list[str], list[str]]:
    target, measured = facts.case.itl_slo_seconds, facts.case.itl_p99_seconds
    if target is None:
        return [], []
    if measured is not None:
        if measured > target:
            return [f"ITL p99 is {format_seconds(measured)} today, above {format_seconds(target)}"], []
        return [], [f"ITL p99 of {format_seconds(measured)} meets {format_seconds(target)} without P/D"]
    if stall is None:
        return [], []
    if stall > target:
        text = f"a prefill holds up decoding for about {format_seconds(stall)}, above the {format_seconds(target)} ITL target"
        return [text], []
    return [], [f"a prefill step of about {format_seconds(stall)} stays inside the ITL target"]


def _prefill_load(facts: AdviceFacts, share: float | None) -> list[str]:
    rate = facts.case.requests_per_second
    if share is not None:
        if share < PREFILL_SHARE:
            return []
        more = ", more than one server can do" if share > 1 else ""
        return [f"prefills take {share * 100:.0f} % of a GPU's time at {rate:g} requests/s{more}"]
    if rate is not None and rate >= 1 and facts.prompt_tokens >= LONG_PROMPT_TOKENS:
        return [
            f"prompts of {facts.prompt_tokens:,} tokens at {rate:g} requests/s keep interrupting decoding"
        ]
    return []


def _tax_words(facts: AdviceFacts) -> str:
    if facts.tax_seconds is None:
        return "the transfer is fast"
    return f"the price is a TTFT tax of about {format_seconds(facts.tax_seconds)}"
