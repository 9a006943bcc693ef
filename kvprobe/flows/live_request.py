"""The options of ``kvprobe live``, and which of them make no sense."""

from __future__ import annotations

import msgspec

from kvprobe.errors import UsageError

_MOST_REQUESTS = 10_000


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``kvprobe live``; times in seconds."""

    prefill: str | None = None
    decode: str | None = None
    proxy: str | None = None
    colocated: str | None = None
    render: str | None = None
    prompt_tokens: tuple[int, ...] = (512, 2048, 8192)
    requests: int = 8
    output_tokens: int = 16
    rate: float = 1.0
    streams: int = 2
    load_seconds: float = 8.0
    ramp: int = 3
    turns: int = 0
    model: str | None = None
    api: str = "completions"
    allow_busy: bool = False
    settle: bool = False
    """Mix decode's blocks, warm up twice, read the counters after every pair; recordings from before have none."""
    report: str | None = None
    kv_buffer_device: str = "cuda"
    ttft_slo: float | None = None
    tpot_slo: float | None = None
    timeout: float = 60.0
    max_seconds: float = 300.0
    api_key_env: str | None = None
    ca_file: str | None = None
    insecure: bool = False


def check(request: LiveRequest) -> None:
    """Refuse what cannot be measured before any server is asked. Raises UsageError."""
    if not request.prefill or not request.decode:
        raise UsageError("live needs --prefill URL and --decode URL.")
    if not request.prompt_tokens or min(request.prompt_tokens) < 2 or max(request.prompt_tokens) > 2_000_000:
        raise UsageError("--prompt-tokens takes lengths from 2 to 2,000,000, such as 512,2048,8192.")
    if not 1 <= request.requests <= 1000:
        raise UsageError("--requests is a number from 1 to 1000 (pairs a prompt length).")
    if not 2 <= request.output_tokens <= 4096:
        raise UsageError("--output-tokens is a number from 2 to 4096.")
    if not 0 < request.rate <= 100:
        raise UsageError("--rate is a number above 0 and at most 100 arrivals a second.")
    if not 0 <= request.load_seconds <= 600 or not 1 <= request.streams <= 64 or not 1 <= request.ramp <= 8:
        raise UsageError("--load takes 0s to 600s, --streams 1 to 64, --ramp 1 to 8.")
    if request.turns and not 2 <= request.turns <= 20:
        raise UsageError("--turns is a number from 2 to 20; 5 is usual.")
    if request.api == "generate" and request.turns:
        raise UsageError("--turns needs the completions API.", "Leave out --api generate.")
    if len(request.prompt_tokens) * request.requests * 2 > _MOST_REQUESTS:
        raise UsageError(f"That would be more than {_MOST_REQUESTS:,} requests.", "Lower --requests.")
    if request.timeout <= 0 or request.max_seconds <= 0:
        raise UsageError("--timeout and --max-time must be above zero.")
