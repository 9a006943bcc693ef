"""The KV cache specs of the installed vLLM, asked in a worker process."""

from __future__ import annotations

import msgspec

from kvprobe.errors import WorkerError
from kvprobe.evidence import Evidence, Origin
from kvprobe.models.kv_layout.specs import VllmSpecs
from kvprobe.models.kv_layout.types import LayoutOptions, ModelConfig
from kvprobe.processes import WorkerJob
from kvprobe.system import System

DEADLINE_SECONDS = 180.0
"""Importing vLLM from cold files and building the layers of a large model on one core."""


def ask_vllm(system: System, model: ModelConfig, options: LayoutOptions) -> Evidence[VllmSpecs]:
    """What vLLM declares for the model. Raises WorkerError when there is no vLLM, no GPU, or it refuses the model."""
    job = WorkerJob(
        name="vllm",
        module="kvprobe.workers.vllm_specs",
        args={
            "config": model.config,
            "hf_quant_config": model.hf_quant_config,
            "kv_cache_dtype": options.kv_cache_dtype,
            "tp": options.tp,
            "block_size": options.block_size,
            "prefix_caching": options.prefix_caching,
        },
    )
    key = {"probe": "vllm_specs", "model": model.name, "options": msgspec.to_builtins(options)}
    (outcome,) = system.run_workers([job], deadline_seconds=DEADLINE_SECONDS, key=key)
    if outcome.result is None:
        raise WorkerError(outcome.error or "The vLLM worker ended without an answer.", outcome.remedy)
    found = msgspec.convert(outcome.result, VllmSpecs)
    return Evidence(
        id="vllm-specs",
        kind="vllm_specs",
        origin=Origin.READ,
        source="KVCacheSpec of each layer, from the installed vLLM",
        facts=found,
        versions={"vllm": found.version},
    )
