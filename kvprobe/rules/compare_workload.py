"""KVP621 to KVP623, KVP630, KVP631: are these two results of the same work, and of two runs?"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.formats.bench_result import BenchResult
from kvprobe.models.bench_checks import same_run
from kvprobe.models.bench_facts import CompareFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

BENCH_DOCS = "https://docs.vllm.ai/en/latest/benchmarking/cli/"
_FAILED_SHARE = 0.01
# The openai and vllm backends of the client are the same function (vllm/benchmarks/lib/endpoint_request_func.py).
_SAME_CLIENT = {"vllm": "openai"}


def readable(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP631: each file is a result of `vllm bench serve`."""
    for file in facts.unreadable:
        remedy = Remedy(
            text="Measure both sides with the same client and save its result: other tools count TTFT and ITL "
            "differently, so their figures cannot be put side by side.",
            commands=("vllm bench serve ... --save-result --save-detailed --result-filename FILE.json",),
        )
        yield Finding(
            id="KVP631",
            name="bench-result-readable",
            status=Status.UNKNOWN,
            title=f"{file.side}: {file.reason}",
            remedy=remedy,
            where=file.source,
            code="foreign_result_format",
            links=(BENCH_DOCS,),
        )
    if facts.unreadable or (facts.colocated and facts.pd):
        return
    missing = "colocated" if facts.colocated is None else "P/D"
    yield Finding(
        id="KVP631",
        name="bench-result-readable",
        status=Status.UNKNOWN,
        title=f"The {missing} side has no run at this load",
        where=facts.where,
        remedy=Remedy(text="Run the same request rates on both sides."),
        code="load_missing",
    )


def same_workload(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP621: both sides had the same model, lengths, rate and client."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None:
        return
    differences = [d for d in _differences(one, two) if d]
    for status, code, text, remedy in differences:
        yield Finding(
            id="KVP621",
            name="same-workload",
            status=status,
            title=text,
            remedy=Remedy(text=remedy),
            where=facts.where,
            code=code,
            links=(BENCH_DOCS,),
        )
    if all(status is not Status.UNKNOWN for status, *_ in differences):
        title = f"Same workload: {_words(one)}"
        yield Finding(id="KVP621", name="same-workload", status=Status.PASS, title=title, where=facts.where)


_Difference = tuple[Status, str, str, str]


def _differences(one: BenchResult, two: BenchResult) -> Iterable[_Difference]:
    same_args = "Run both sides with the same arguments of `vllm bench serve`."
    if one.model_id and two.model_id and one.model_id != two.model_id:
        yield _blocks("model_differs", f"model_id differs: {one.model_id} and {two.model_id}", same_args)
    elif one.tokenizer_id and two.tokenizer_id and one.tokenizer_id != two.tokenizer_id:
        text = f"tokenizer_id differs: {one.tokenizer_id} and {two.tokenizer_id}"
        yield _blocks("tokenizer_differs", text, same_args)
    clients = [_SAME_CLIENT.get(r.backend or "", r.backend) for r in (one, two)]
    if clients[0] and clients[1] and clients[0] != clients[1]:
        yield _blocks(
            "backend_differs",
            f"backend differs: {one.backend} and {two.backend} (another endpoint, another prompt: openai-chat goes "
            "through the chat template, openai sends the text as it is)",
            "Use the same --backend and --endpoint for both sides.",
        )
    if one.completed and two.completed:
        yield from _lengths(one, two)
    if _differ(one.request_rate, two.request_rate):
        yield _blocks(
            "request_rate_differs",
            f"request_rate differs: {_rate(one.request_rate)} and {_rate(two.request_rate)} requests/s",
            "TTFT and ITL depend on the load: compare at the same --request-rate.",
        )
    if one.max_concurrency != two.max_concurrency:
        yield _blocks(
            "max_concurrency_differs",
            f"max_concurrency differs: {one.max_concurrency or 'not limited'} and {two.max_concurrency or 'not limited'}",
            "A limited concurrency hides the queue in the client: compare at the same --max-concurrency.",
        )
    if _differ(one.burstiness, two.burstiness) or one.ramp_up != two.ramp_up:
        text = f"burstiness or ramp-up differs: {one.burstiness:g} and {two.burstiness:g}" if (
            one.burstiness is not None and two.burstiness is not None and one.ramp_up == two.ramp_up
        ) else f"ramp-up differs: {one.ramp_up or 'none'} and {two.ramp_up or 'none'}"  # fmt: skip
        yield _blocks(
            "burstiness_differs", text, "Arrivals in bursts queue longer: use the same arrival pattern."
        )
    prompts = [r.num_prompts and r.num_prompts / r.runs for r in (one, two)]
    if prompts[0] and prompts[1] and prompts[0] != prompts[1]:
        yield (
            Status.WARN,
            "num_prompts_differ",
            f"num_prompts differs: {prompts[0]:g} and {prompts[1]:g}",
            "A tail percentile of more requests reaches further out: use the same --num-prompts.",
        )


def _blocks(code: str, text: str, remedy: str) -> _Difference:
    return Status.UNKNOWN, code, text, remedy


def _lengths(one: BenchResult, two: BenchResult) -> Iterable[_Difference]:
    for code, what, a, b, limit, remedy in (
        ("input_tokens_per_request_differ", "Prompt", one.input_tokens_per_request, two.input_tokens_per_request, 0.02,
         "A shorter prompt has a shorter TTFT: use the same dataset, lengths and --seed."),
        ("output_tokens_per_request_differ", "Answer", one.output_tokens_per_request, two.output_tokens_per_request, 0.05,
         "Fix the answer length (--ignore-eos with the same output length) on both sides."),
    ):  # fmt: skip
        if a and b and abs(b / a - 1) > limit:
            yield _blocks(code, f"{what} length differs: {a:.6g} and {b:.6g} tokens per request", remedy)


def _differ(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a != b and not math.isclose(a, b, rel_tol=1e-6)


def _rate(rate: float | None) -> str:
    return "untold" if rate is None else f"{rate:g}"


def _words(run: BenchResult) -> str:
    parts = []
    if run.input_tokens_per_request and run.output_tokens_per_request:
        parts.append(f"{run.input_tokens_per_request:.6g} tokens in, {run.output_tokens_per_request:.6g} out")
    if run.request_rate is not None:
        parts.append("all at once" if math.isinf(run.request_rate) else f"{run.request_rate:g} requests/s")
    if run.max_concurrency:
        parts.append(f"at most {run.max_concurrency} in flight")
    return ", ".join(parts)


def two_runs(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP622: the two results are two runs, not one run under two names."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None or not same_run(one, two):
        return
    dates = f"date {one.date}" if one.date == two.date else f"dates {one.date} and {two.date}"
    yield Finding(
        id="KVP622",
        name="two-runs",
        status=Status.UNKNOWN,
        title=f"Both results are identical to the last digit ({dates}): one run under two names",
        remedy=Remedy(
            text="Give each side its own --result-filename and measure the other side.",
            commands=("vllm bench serve ... --save-result --result-filename pd.json",),
        ),
        where=facts.where or f"{one.source}, {two.source}",
        code="same_run",
    )


def requests_answered(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP623: the requests were answered, because latencies cover successful ones only."""
    for side, run in facts.sides:
        measured = Quantity(value=run.failed, unit=f"of {run.sent} requests")
        if not run.completed:
            yield Finding(
                id="KVP623",
                name="requests-answered",
                status=Status.UNKNOWN,
                title=f"{side}: 0 of {run.sent} requests completed, so its latencies (written as 0.0) are no data",
                measured=measured,
                remedy=_look_into_logs(side),
                where=facts.where or run.source,
                code="no_completed_requests",
            )
        if not run.completed or not run.failed:
            continue
        share = run.failed / run.sent
        blocks = share > _FAILED_SHARE
        yield Finding(
            id="KVP623",
            name="requests-answered",
            status=Status.UNKNOWN if blocks else Status.WARN,
            title=f"{side}: {run.failed} of {run.sent} requests failed; what is left shows fewer in the queue",
            measured=measured,
            remedy=_look_into_logs(side),
            where=facts.where or run.source,
            notes=("Latency statistics cover successful requests only, and each failed one frees the queue for the rest.",),
            code="failed_requests",
        )  # fmt: skip
    if facts.sides and all(run.completed and not run.failed for _, run in facts.sides):
        counts = " and ".join(f"{run.completed}" for _, run in facts.sides)
        yield Finding(
            id="KVP623",
            name="requests-answered",
            status=Status.PASS,
            title=f"All requests were answered: {counts}",
            where=facts.where,
        )


def _look_into_logs(side: str) -> Remedy:
    if side == "P/D":
        text = "Find the cause in the decode log (and the proxy's), then measure again."
        return Remedy(text=text, commands=("kvprobe logs decode.log",))
    return Remedy(text="Find the cause in the server's log, then measure again.")


def same_gpus(facts: CompareFacts, policy: Policy) -> Iterable[Finding]:
    """KVP630: both sides had the same number of GPUs."""
    one, two = facts.colocated, facts.pd
    if one is None or two is None:
        return
    if one.gpus is None or two.gpus is None:
        yield Finding(
            id="KVP630",
            name="same-gpu-count",
            status=Status.SKIP,
            title="GPU count not told: add --metadata gpus=N to both benchmark commands",
            where=facts.where,
        )
        return
    if one.gpus == two.gpus:
        title = f"Same number of GPUs: {one.gpus}"
        yield Finding(id="KVP630", name="same-gpu-count", status=Status.PASS, title=title, where=facts.where)
        return
    notes = tuple(
        f"{side}: {value / run.gpus:.4g} output tokens/s per GPU"
        for side, run in facts.sides
        if run.gpus and (value := run.numbers.get("output_throughput"))
    )
    yield Finding(
        id="KVP630",
        name="same-gpu-count",
        status=Status.WARN,
        title=f"GPU count differs: colocated {one.gpus}, P/D {two.gpus}; compare per GPU",
        measured=Quantity(value=two.gpus, unit="GPUs", note=f"colocated {one.gpus}"),
        remedy=Remedy(
            text=f"Give the colocated side the same {two.gpus} GPUs (data parallel replicas behind a balancer) "
            "before a decision is taken."
        ),
        notes=notes,
        where=facts.where,
        code="gpu_count_differs",
    )


RULES: tuple[Rule[CompareFacts], ...] = (
    Rule("KVP621", "same-workload", same_workload),
    Rule("KVP622", "two-runs", two_runs),
    Rule("KVP623", "requests-answered", requests_answered),
    Rule("KVP630", "same-gpu-count", same_gpus),
    Rule("KVP631", "bench-result-readable", readable),
)
