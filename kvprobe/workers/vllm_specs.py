"""Asks the installed vLLM which KV caches a model declares, without its weights and without allocating a cache.

The model is built on torch's meta device; ranks beyond the first are pretended, as only their number shapes the
caches. vLLM chooses attention backends by the GPU it sees, so a CUDA GPU must be there. The code of a model
repository is never run (``trust_remote_code`` stays off).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kvprobe.workers.base import Worker, WorkerFailure, main


def ask(worker: Worker) -> dict[str, Any]:
    """args: config, hf_quant_config (objects), kv_cache_dtype, tp, block_size, prefix_caching."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_SSM_CONV_STATE_LAYOUT", "DS")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    try:
        import torch
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
    except ImportError as error:
        raise WorkerFailure(
            f"vLLM cannot be imported here ({error}).",
            "Install kvprobe into the environment or image of vLLM.",
        ) from None
    if not current_platform.is_cuda():
        raise WorkerFailure(
            f"vLLM {vllm.__version__} sees no CUDA GPU here, and its attention backends depend on one.",
            "Run the cross-check on a GPU node.",
        )
    folder = tempfile.mkdtemp(prefix="kvprobe-model-")
    try:
        return _ask(worker.args, folder, vllm.__version__, EngineArgs, torch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(args: dict[str, Any], folder: str, version: str, engine_args: Any, torch: Any) -> dict[str, Any]:
    _write(args, Path(folder))
    options = {
        "model": folder,
        "kv_cache_dtype": args["kv_cache_dtype"],
        "tensor_parallel_size": args["tp"],
        "enable_prefix_caching": args["prefix_caching"],
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "trust_remote_code": False,
    }
    if args["tp"] > 1:
        options["distributed_executor_backend"] = "mp"
    if args["block_size"]:
        options["block_size"] = args["block_size"]
    config = engine_args(**options).create_engine_config()
    _pretend_ranks(args["tp"], torch)
    found = _specs(config, torch)
    return {"version": version, "block_size": config.cache_config.block_size, "specs": found}


def _write(args: dict[str, Any], folder: Path) -> None:
    """The model's config alone, so that vLLM asks nobody else for it."""
    for key, name in (("config", "config.json"), ("hf_quant_config", "hf_quant_config.json")):
        if args[key] is not None:
            (folder / name).write_text(json.dumps(args[key]), encoding="utf-8")


def _pretend_ranks(tp: int, torch: Any) -> None:
    """Process groups of which only rank and size are real: building layers asks for nothing else."""
    from vllm.distributed import parallel_state

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)

    def group(size: int) -> Any:
        made = object.__new__(parallel_state.GroupCoordinator)
        world = torch.distributed.group.WORLD
        for name, value in {
            "world_size": size, "rank": 0, "rank_in_group": 0, "local_rank": 0, "ranks": list(range(size)),
            "device": torch.device("cpu"), "cpu_group": world, "device_group": world, "unique_name": "kvprobe",
            "device_communicator": None, "use_device_communicator": False, "mq_broadcaster": None,
            "use_custom_op_call": False, "use_cpu_custom_send_recv": False,
        }.items():  # fmt: skip
            setattr(made, name, value)
        return made

    for name in ("_WORLD", "_TP", "_EP"):
        setattr(parallel_state, name, group(tp))
    for name in ("_PP", "_DP", "_DCP", "_PCP", "_EPLB", "_INNER_DP_WORLD"):
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, group(1))


def _specs(config: Any, torch: Any) -> list[dict[str, Any]]:
    from torch.overrides import TorchFunctionMode
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    class OnMeta(TorchFunctionMode):  # type: ignore[misc]
        """Buffers that a model puts on the GPU by name stay imaginary, too."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            device = kwargs.get("device")
            if isinstance(device, int) or "cuda" in str(device):
                kwargs["device"] = "meta"
            name = getattr(func, "__name__", "")
            if name in ("item", "__bool__") and isinstance(args[0], torch.Tensor) and args[0].is_meta:
                return 1
            return args[0] if name == "cuda" else func(*args, **kwargs)

    with (
        set_current_vllm_config(config),
        set_default_torch_dtype(config.model_config.dtype),
        OnMeta(),
        torch.device("meta"),
    ):
        initialize_model(config)
    current_platform.update_block_size_for_backend(config)
    customize = _customizer()
    found = []
    with set_current_vllm_config(config):
        for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
            if getattr(layer, "kv_sharing_target_layer_name", None):
                continue
            spec = layer.get_kv_cache_spec(config)
            if spec is None:
                continue
            if customize is not None and hasattr(spec, "num_kv_heads"):
                spec = customize(layer.get_attn_backend(), spec)
            found.append(_plain(name, spec))
    return found


def _customizer() -> Any:
    """vLLM 0.33 lets the backend pack a spec; earlier ones have no such step."""
    try:
        from vllm.v1.worker.utils import customize_attention_spec
    except ImportError:
        return None
    return customize_attention_spec


def _plain(name: str, spec: Any) -> dict[str, Any]:
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    kind = type(spec).__name__
    return {
        "layer": name,
        "kind": kind,
        "page_bytes": int(getattr(spec, "real_page_size_bytes", spec.page_size_bytes)),
        "block_size": int(spec.block_size),
        "window": int(window)
        if window and kind in ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
        else None,
    }


if __name__ == "__main__":
    main(ask)
