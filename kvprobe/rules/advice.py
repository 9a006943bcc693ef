"""KVP650 to KVP669: advice for the stated case, beside the verdict: split, stay colocated, and what to set."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.advice import Advice, AdviceFacts, Case, advise
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

__all__ = ["RULES", "AdviceFacts", "Case", "advice_of", "colocated_settings"]

TRANSFER = "transfer_8k_seconds"
CORE_SHARE = "frontend_core_share"
# Used where a policy sets no such threshold; the built-in default profile has the same figures and their source.
_NOTICEABLE_SECONDS, _SLOW_SECONDS, _BUSY_CORE = 0.075, 0.200, 0.7
_TUNING = "https://docs.vllm.ai/en/latest/configuration/optimization/"


def advice_of(facts: AdviceFacts, policy: Policy) -> Advice:
    """The advice with the policy's limits of a transfer; for a command's ``result``."""
    threshold = policy.thresholds.get(TRANSFER)
    slow = threshold.fail_above if threshold and threshold.fail_above is not None else _SLOW_SECONDS
    noticeable = (
        threshold.warn_above if threshold and threshold.warn_above is not None else _NOTICEABLE_SECONDS
    )
    return advise(facts, slow_seconds=slow, noticeable_seconds=noticeable)


def split_or_colocate(facts: AdviceFacts, policy: Policy) -> Iterable[Finding]:
    """KVP650: the stated case speaks for P/D, and the transfer allows it."""
    if not facts.case.told:
        yield Finding(
            id="KVP650",
            name="advice-split",
            status=Status.SKIP,
            title="No advice without a case: state it with --itl-slo, --ttft-slo, --rate and --traffic",
        )
        return
    told = advice_of(facts, policy)
    because = "; ".join(told.deciding)
    title, status, remedy = {
        "split": (f"Split prefill and decode: {because}; {'; '.join(told.also[:1])}", Status.PASS, _SPLIT),
        "colocate": (f"Stay colocated: {because}", Status.WARN, colocated_settings(told, facts.case)),
        "no_need": (f"No need to split: {because}", Status.PASS, colocated_settings(told, facts.case)),
        "measure_first": (f"Worth measuring: {because}", Status.UNKNOWN, _MEASURE),
    }[told.label]
    yield Finding(
        id="KVP650",
        name="advice-split",
        status=status,
        title=title,
        measured=Quantity(
            value=facts.tax_seconds,
            unit="s",
            statistic="p50",
            note=f"TTFT tax{', at least' if facts.lower_bound else ''}, {facts.tax_origin.value}",
        )
        if facts.tax_seconds is not None
        else None,
        remedy=remedy,
        notes=tuple(text[:1].upper() + text[1:] + "." for text in told.also),
        links=(_TUNING,),
        code=told.label,
    )


_SPLIT = Remedy(
    text="Start one prefill and one decode server, check the pair, and let the same benchmark decide.",
    commands=(
        "kvprobe lint prefill.sh decode.sh",
        "kvprobe compare colocated.json pd.json --decode-log decode.log",
    ),
)
_MEASURE = Remedy(
    text="Measure the transfer on two GPUs of this kind, or give the fit of a run that did.",
    commands=(
        "kvprobe preflight --model MODEL --format json -o R.json",
        "kvprobe estimate --model MODEL --fit R.json",
    ),
)


def colocated_settings(told: Advice, case: Case) -> Remedy:
    """What to try instead of P/D, and how to see whether it helped."""
    if told.batched_tokens is not None:
        chunk = told.batched_tokens
        why = f"{chunk} tokens a step keep the prefill part of it inside the ITL target"
    else:
        chunk = 2048
        why = "fewer tokens a step mean shorter gaps and a longer TTFT"
    return Remedy(
        text=f"Chunked prefill is on by default in V1, so --enable-chunked-prefill changes nothing: turn its size "
        f"({why}), bound the batch, keep prefix caching (default) for shared prompts, and compare before and after "
        "with cold caches.",
        commands=(
            f"vllm serve MODEL --max-num-batched-tokens {chunk} --max-num-seqs 128 --enable-prefix-caching",
            "vllm bench serve ... --seed 1 --save-result --save-detailed --result-filename before.json",
            "vllm bench serve ... --seed 2 --save-result --save-detailed --result-filename after.json",
            "kvprobe compare before.json after.json" + _targets(case),
        ),
    )


def _targets(case: Case) -> str:
    """The user's targets as options of ``kvprobe compare``."""
    told = (("ttft", case.ttft_slo_seconds), ("itl", case.itl_slo_seconds))
    return "".join(
        f" --{name}-slo {f'{value:g}s' if value >= 1 else f'{value * 1e3:g}ms'}"
        for name, value in told
        if value is not None
    )


def bidirectional(facts: AdviceFacts, policy: Policy) -> Iterable[Finding]:
    """KVP660: growing chats move their KV back to prefill, with a safe template only."""
    turns = facts.case.turns
    if turns is None or turns < 2:
        return
    title, status, remedy, code = {
        True: (
            f"Conversations of {turns} turns: bidirectional transfer saves the prefill of what decode generated",
            Status.PASS,
            Remedy(
                text='Set "bidirectional_kv_xfer": true in kv_connector_extra_config on both sides; the router has to '
                "send each conversation's kv_transfer_params with the next turn."
            ),
            "bidirectional",
        ),
        False: (
            f"Conversations of {turns} turns, but the chat template is not safe for bidirectional transfer",
            Status.WARN,
            Remedy(
                text="Leave bidirectional_kv_xfer off: the next prompt differs from what decode holds, and prefill "
                "would take wrong KV without an error.",
                commands=("kvprobe template TEMPLATE --conversation conversation.json",),
            ),
            "bidirectional_unsafe",
        ),
        None: (
            f"Conversations of {turns} turns: bidirectional transfer would help, if the chat template is safe for it",
            Status.SKIP,
            Remedy(
                text="Test the template first; switch it on only if every turn stays an exact prefix of the next.",
                commands=("kvprobe template TEMPLATE --conversation conversation.json",),
            ),
            "bidirectional_untested",
        ),
    }[facts.template_safe]
    yield Finding(
        id="KVP660", name="advice-bidirectional", status=status, title=title, remedy=remedy, code=code,
        links=("https://github.com/vllm-project/vllm/pull/32553",),
    )  # fmt: skip


def render_elsewhere(facts: AdviceFacts, policy: Policy) -> Iterable[Finding]:
    """KVP661: rendering and tokenising leave the GPU node's front end enough of a core."""
    share = facts.render_core_share
    if share is None:
        return
    threshold = policy.thresholds.get(CORE_SHARE)
    limit = threshold.warn_above if threshold and threshold.warn_above is not None else _BUSY_CORE
    busy = share > limit
    yield Finding(
        id="KVP661",
        name="advice-render",
        status=Status.WARN if busy else Status.PASS,
        title=f"Rendering and tokenising take {share * 100:.0f} % of one core"
        + (": move them off the GPU node" if busy else ""),
        measured=Quantity(value=share, unit="ratio"),
        remedy=Remedy(
            text="Run the front end without a GPU and send token ids to the engines (vLLM 0.18 and later), or start "
            "more API servers.",
            commands=("vllm launch render MODEL", "vllm serve MODEL --tokens-only"),
        )
        if busy
        else None,
        code="render_elsewhere" if busy else None,
    )


RULES: tuple[Rule[AdviceFacts], ...] = (
    Rule("KVP650", "advice-split", split_or_colocate),
    Rule("KVP660", "advice-bidirectional", bidirectional),
    Rule("KVP661", "advice-render", render_elsewhere),
)
