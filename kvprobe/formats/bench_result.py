"""``vllm bench serve --save-result``: one JSON object a run, or several in one file (``--append-result``).

Keys and formulas: ``vllm/benchmarks/serve.py`` (0.9 to 0.33 read here). Latencies cover successful requests only, and
vLLM writes 0.0 where it has no data, so a latency statistic of exactly 0 is read as None.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from kvprobe.errors import FormatError
from kvprobe.formats.bench_foreign import tool_of

LATENCY = re.compile(r"^(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)_ms$")
RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_NEEDED = ("completed", "duration", "request_throughput", "total_input_tokens", "total_output_tokens")
_GPU_KEYS = ("gpus", "num_gpus", "gpu_count", "n_gpus", "ngpus", "total_gpus")


class RawRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One successful request of a ``--save-detailed`` run; seconds."""

    input_tokens: int
    output_tokens: int
    ttft_seconds: float
    itl_seconds: tuple[float, ...]

    @property
    def tpot_seconds(self) -> float | None:
        """As vLLM counts it: decode time over output tokens but the first; None for one token."""
        if self.output_tokens < 2:
            return None
        return sum(self.itl_seconds) / (self.output_tokens - 1)


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or several of the same load pooled. Latencies in ms under vLLM's own key names."""

    source: str
    date: str | None
    backend: str | None
    model_id: str | None
    tokenizer_id: str | None
    num_prompts: int | None
    request_rate: float | None
    """Requests/s; ``math.inf`` for a run that sends all at once; None when not told."""
    burstiness: float | None
    max_concurrency: int | None
    ramp_up: str | None
    duration_seconds: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    numbers: dict[str, float | None]
    """Every latency statistic (``median_ttft_ms`` ...) and every throughput in the file."""
    max_concurrent_requests: int | None = None
    """The most that were in flight at once, as the client saw it (0.11+)."""
    gpus: int | None = None
    """From ``--metadata gpus=N``; vLLM itself does not tell."""
    metadata: dict[str, str] = {}
    latencies_seconds: tuple[float, ...] = ()
    """End-to-end seconds of each successful request in sending order (0.30+)."""
    requests: tuple[RawRequest, ...] = ()
    runs: int = 1
    run_range: dict[str, tuple[float, float]] = {}
    """Smallest and largest value of each number over the pooled runs."""

    @property
    def input_tokens_per_request(self) -> float | None:
        return self.total_input_tokens / self.completed if self.completed else None

    @property
    def output_tokens_per_request(self) -> float | None:
        return self.total_output_tokens / self.completed if self.completed else None

    @property
    def sent(self) -> int:
        return self.completed + self.failed

    def ms(self, statistic: str, metric: str) -> float | None:
        """``ms("p99", "itl")`` in milliseconds, as in the file."""
        return self.numbers.get(f"{statistic}_{metric}_ms")


def parse_bench_results(text: str, source: str) -> list[BenchResult]:
    """All runs in one file. Raises FormatError: damaged, or written by another tool (its name in the reason)."""
    found: list[BenchResult] = []
    documents = _documents(text, source)
    for number, document in enumerate(documents, 1):
        name = source if len(documents) == 1 else f"{source} run {number}"
        found.append(_result(document, name))
    if not found:
        raise FormatError(f"{source} holds no benchmark result.", _REMEDY)
    return found


_REMEDY = "Give the JSON that `vllm bench serve --save-result` writes."


def _documents(text: str, source: str) -> list[Any]:
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    place = 0
    try:
        while place < len(text):
            if text[place].isspace():
                place += 1
                continue
            document, place = decoder.raw_decode(text, place)
            documents += document if isinstance(document, list) else [document]
    except (ValueError, RecursionError) as error:
        what = tool_of(text) or "not JSON"
        detail = "" if tool_of(text) else f" ({str(error)[:120]})"
        raise FormatError(f"{source} is {what}{detail}, not a `vllm bench serve` result.", _REMEDY) from None
    return documents


def _result(document: Any, source: str) -> BenchResult:
    foreign = tool_of(document)
    if foreign:
        raise FormatError(f"{source} is {foreign}, not a `vllm bench serve` result.", _REMEDY)
    if not isinstance(document, dict):
        raise FormatError(f"{source} is not a JSON object, so not a `vllm bench serve` result.", _REMEDY)
    missing = [key for key in _NEEDED if key not in document]
    if missing:
        text = f"{source} is not a `vllm bench serve` result: {', '.join(missing)} missing."
        raise FormatError(text, _REMEDY)
    reader = _Reader(document, source)
    completed = reader.count("completed")
    num_prompts = reader.count("num_prompts") if document.get("num_prompts") is not None else None
    failed = reader.count("failed") if document.get("failed") is not None else 0
    return BenchResult(
        source=source,
        date=reader.text("date"),
        backend=reader.text("backend") or reader.text("endpoint_type"),
        model_id=reader.text("model_id"),
        tokenizer_id=reader.text("tokenizer_id"),
        num_prompts=num_prompts,
        request_rate=reader.rate("request_rate"),
        burstiness=reader.number("burstiness"),
        max_concurrency=reader.count("max_concurrency") if document.get("max_concurrency") else None,
        ramp_up=reader.text("ramp_up_strategy"),
        duration_seconds=reader.number("duration") or 0.0,
        completed=completed,
        # 0.12 and older do not write "failed".
        failed=max(failed, (num_prompts or 0) - completed),
        total_input_tokens=reader.count("total_input_tokens"),
        total_output_tokens=reader.count("total_output_tokens"),
        numbers=reader.numbers(completed),
        max_concurrent_requests=int(reader.number("max_concurrent_requests") or 0) or None,
        gpus=next((int(document[k]) for k in _GPU_KEYS if str(document.get(k, "")).isdigit()), None),
        metadata={k: v for k, v in document.items() if isinstance(v, str) and k not in _NOT_METADATA},
        latencies_seconds=tuple(v for v in reader.list("latencies") if v > 0),
        requests=reader.requests(),
    )


_NOT_METADATA = {"date", "backend", "endpoint_type", "model_id", "tokenizer_id", "request_rate", "label"}


class _Reader:
    """Typed access to one document; every complaint names the file and the key."""

    def __init__(self, document: dict[str, Any], source: str) -> None:
        self.document = document
        self.source = source

    def bad(self, key: str, what: str) -> FormatError:
        shown = repr(self.document.get(key))[:40]
        return FormatError(f"{self.source}: {key} is {shown}, not {what}.", _REMEDY)

    def text(self, key: str) -> str | None:
        value = self.document.get(key)
        return value if isinstance(value, str) and value else None

    def number(self, key: str) -> float | None:
        value = self.document.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(key, "a finite number")
        if value < 0:
            raise self.bad(key, "a positive number")
        return float(value)

    def count(self, key: str) -> int:
        value = self.number(key)
        if value is None or value != int(value):
            raise self.bad(key, "a count")
        return int(value)

    def rate(self, key: str) -> float | None:
        if self.document.get(key) in ("inf", math.inf):
            return math.inf
        return self.number(key)

    def numbers(self, completed: int) -> dict[str, float | None]:
        found: dict[str, float | None] = {key: self.number(key) for key in RATES if key in self.document}
        for key in self.document:
            match = LATENCY.match(key)
            if match:
                value = self.number(key)
                empty = not completed or not self.number(f"mean_{match[2]}_ms") and match[1] == "std"
                found[key] = None if empty or (not value and match[1] != "std") else value
        return found

    def list(self, key: str) -> list[float]:
        value = self.document.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(_real(v) for v in value):
            raise self.bad(key, "a list of numbers")
        return [float(v) for v in value]

    def requests(self) -> tuple[RawRequest, ...]:
        ttfts, itls = self.list("ttfts"), self.document.get("itls")
        inputs, outputs = self.list("input_lens"), self.list("output_lens")
        if not ttfts or itls is None:
            return ()
        if not isinstance(itls, list) or not all(isinstance(i, list) and all(map(_real, i)) for i in itls):
            raise self.bad("itls", "a list of lists of numbers")
        if not len(ttfts) == len(itls) == len(inputs) == len(outputs):
            text = f"{self.source}: ttfts, itls, input_lens and output_lens differ in length."
            raise FormatError(text, _REMEDY)
        errors = self.document.get("errors")
        failed = [bool(e) for e in errors] if isinstance(errors, list) else []
        return tuple(
            RawRequest(
                input_tokens=int(inputs[i]),
                output_tokens=int(outputs[i]),
                ttft_seconds=ttfts[i],
                itl_seconds=tuple(float(v) for v in itls[i]),
            )
            for i in range(len(ttfts))
            # A failed request has length 0 and latencies of 0.
            if outputs[i] > 0 and not (i < len(failed) and failed[i])
        )


def _real(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
