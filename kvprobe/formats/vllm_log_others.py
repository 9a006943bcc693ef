"""Connectors that print under the same marker without moving KV from prefill to decode: offloading and stores."""

from __future__ import annotations

import math

_SIGNS = (
    ("OffloadingConnector", ("vllm:kv_offload_", "GPU_to_CPU_", "CPU_to_GPU_")),
    ("SimpleCPUOffloadConnector", ("vllm:simple_kv_offload_",)),
    ("HF3FSKVConnector", ("Num transfers task", "Num save task", "Num load task")),
    ("HiSparseConnector", ("HiSparse ",)),
    ("MooncakeStoreConnector", ("save_exists_", "save_put_", "load_get_", "lookup_exists_")),
)
_UMBP = ("_submitted", "_completed", "_failed", "_num_bytes")
_NOT_ADDITIVE = ("Avg ", "P90 ", "_avg_ms", "_p90_ms", "usage %", "_used_blocks", "_pending_store_blocks")


def other_connector(pairs: dict[str, str], name: str | None) -> dict[str, dict[str, float | int]]:
    """``{connector: numbers}``; empty if there is none. A damaged value is left out, an unknown connector keeps its keys."""
    values: dict[str, float | int] = {}
    for key, text in pairs.items():
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value) and len(key) < 200:
            values[_with_unit(key)] = int(value) if text.lstrip("-").isdigit() else value
    if not values:
        return {}
    return {name or _recognise(pairs) or "unknown connector": values}


def _recognise(pairs: dict[str, str]) -> str | None:
    for name, starts in _SIGNS:
        if any(key.startswith(starts) for key in pairs):
            return name
    if any(key.endswith(_UMBP) for key in pairs):
        return "UMBPStoreConnector"
    return None


def _with_unit(key: str) -> str:
    return f"{key}_s" if key.endswith("_total_time") else key


def add(total: dict[str, float | int], values: dict[str, float | int]) -> None:
    """Sum what can be summed; of means, percentiles and gauges the newest stays."""
    for key, value in values.items():
        total[key] = value if any(sign in key for sign in _NOT_ADDITIVE) else total.get(key, 0) + value


def with_rates(total: dict[str, float | int]) -> dict[str, float | int]:
    """Add the rates of byte and time pairs, in decimal GB/s."""
    out = dict(total)
    for key, value in total.items():
        for bytes_end, time_end in (("_total_bytes", "_total_time_s"), ("_bytes", "_time")):
            seconds = total.get(key.removesuffix(bytes_end) + time_end)
            if key.endswith(bytes_end) and seconds:
                out[f"{key.removesuffix(bytes_end)}_GB_per_s"] = round(value / seconds / 1e9, 3)
                break
    return out
