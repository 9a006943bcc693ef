"""Recognises results of other benchmark clients, so that the answer names the tool instead of a missing key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_CONSOLE = (
    ("Serving Benchmark Result", "the console output of a benchmark"),
    ("NVIDIA GenAI-Perf", "the console output of GenAI-Perf"),
    ("NVIDIA AIPerf", "the console output of AIPerf"),
)


def tool_of(document: Any) -> str | None:
    """What wrote this document (parsed JSON, or text that is not JSON); None for a possible vLLM result."""
    if isinstance(document, str):
        return next((name for mark, name in _CONSOLE if mark in document[:20000]), None)
    if not isinstance(document, dict):
        return None
    return next((name for name, test in _TESTS if test(document)), None)


def _perf_metric(document: dict[str, Any], key: str) -> bool:
    value = document.get(key)
    return isinstance(value, dict) and "avg" in value


# Each test holds on keys that vLLM's own result does not have.
_TESTS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    # https://docs.nvidia.com/aiperf/reference/json-export-schema
    ("an AIPerf result", lambda d: "aiperf_version" in d),
    (
        "a GenAI-Perf or AIPerf result",
        lambda d: (
            _perf_metric(d, "time_to_first_token")
            or _perf_metric(d, "request_latency")
            or _perf_metric(d, "inter_token_latency")
        ),
    ),
    # https://github.com/vllm-project/guidellm: benchmarks.json
    ("a GuideLLM result", lambda d: isinstance(d.get("benchmarks"), list)),
    # sglang/bench_serving.py
    (
        "an SGLang bench_serving result",
        lambda d: "total_output_tokens_retokenized" in d or "mean_e2e_latency_ms" in d,
    ),
    # https://github.com/kubernetes-sigs/inference-perf: summary_lifecycle_metrics.json
    ("an inference-perf result", lambda d: "load_summary" in d and "successes" in d),
    # https://github.com/ray-project/llmperf
    ("an LLMPerf result", lambda d: any(k.startswith("results_ttft_s") for k in d)),
    ("a `vllm bench latency` result", lambda d: "avg_latency" in d),
    ("a `vllm bench throughput` result", lambda d: "elapsed_time" in d and "tokens_per_second" in d),
    # SAVE_TO_PYTORCH_BENCHMARK_FORMAT=1
    (
        "a PyTorch benchmark record (.pytorch.json)",
        lambda d: isinstance(d.get("benchmark"), dict) and "metric" in d,
    ),
    ("a kvprobe report", lambda d: str(d.get("schema", "")).startswith("kvprobe.")),
)
