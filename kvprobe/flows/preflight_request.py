"""What `kvprobe preflight` was asked; sizes in bytes, times in seconds."""

from __future__ import annotations

import msgspec

from kvprobe.rules.advice import Case


class PreflightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command, by their names."""

    model: str | None = None
    memory: str = "auto"
    prefill_gpu: int = 0
    decode_gpu: int = 1
    all_pairs: bool = False
    connector: str = "pull"
    kv_cache_dtype: str = "auto"
    tp: int = 1
    block_size: int | None = None
    prompt_tokens: tuple[int, ...] = ()
    budget: float = 20.0
    max_memory: int | None = None
    vllm_version: str | None = None
    kv_buffer_device: str = "cuda"
    calibration: str | None = None
    ttft_slo: float | None = None
    base_ttft: float | None = None
    diagnose: str = "auto"
    diagnose_budget: float = 90.0
    ucx: bool = True
    decode_log: str | None = None
    prefill_url: str | None = None
    decode_url: str | None = None
    colocated_url: str | None = None
    itl_slo: float | None = None
    itl_p99: float | None = None
    rate: float | None = None
    turns: int | None = None
    traffic: str | None = None
    max_num_batched_tokens: int | None = None

    @property
    def operation(self) -> str:
        return "READ" if self.connector == "pull" else "WRITE"

    @property
    def case(self) -> Case:
        """The stated case that the advice is for."""
        return Case(
            ttft_slo_seconds=self.ttft_slo,
            itl_slo_seconds=self.itl_slo,
            itl_p99_seconds=self.itl_p99,
            base_ttft_seconds=self.base_ttft,
            requests_per_second=self.rate,
            turns=self.turns,
            traffic=self.traffic,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
