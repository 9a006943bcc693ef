"""What `kvprobe preflight` was asked; sizes in bytes, times in seconds."""

from __future__ import annotations

from kvprobe.flows.case_request import CaseRequest
from kvprobe.models.transfer import operation_of


class PreflightRequest(CaseRequest, frozen=True, kw_only=True):
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
    diagnose: str = "auto"
    diagnose_budget: float = 90.0
    ucx: bool = True
    decode_log: str | None = None
    prefill_url: str | None = None
    decode_url: str | None = None
    colocated_url: str | None = None

    @property
    def operation(self) -> str:
        return operation_of(self.connector)
