"""Which element type the cache gets: the option, else what the checkpoint's quantization says, else the model's.

The order is vLLM 0.33's ``resolve_kv_cache_dtype_string`` and the quantization method's attention init.
"""

from __future__ import annotations

from typing import Any

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.fields import Fields, look_up
from kvprobe.models.kv_layout.types import Refused

FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
MODEL_DTYPES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
CHOICES = (
    "auto", "float16", "bfloat16", *FP8, "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
"""``vllm serve --kv-cache-dtype`` of 0.33."""


def model_dtype(fields: Fields) -> str:
    """bfloat16 or float16: what ``--dtype auto`` makes of the config on a GPU that has bfloat16."""
    found = None
    for config, prefix in (
        (fields.top, ""),
        (fields.text, fields.prefix),
        (_vision(fields), "vision_config"),
    ):
        for key in ("dtype", "torch_dtype"):
            value = config.get(key) if isinstance(config, dict) else None
            if value is not None and found is None:
                found = value
                fields.used[f"{prefix}.{key}" if prefix else key] = value
    if found is None:
        return "bfloat16"
    name = str(found).removeprefix("torch.")
    if name not in MODEL_DTYPES:
        raise fields.wrong("dtype", found, "bfloat16, float16 or float32")
    return "float16" if name in ("float16", "half") else "bfloat16"


def _vision(fields: Fields) -> Any:
    return fields.top.get("vision_config")


def resolve_kv_dtype(fields: Fields, option: str, dtype: str) -> tuple[str, str]:
    """(element type, where it came from). ``option`` as given to ``--kv-cache-dtype``. Raises UsageError."""
    if option not in CHOICES:
        raise UsageError(
            f"--kv-cache-dtype {option!r} is unknown to vLLM 0.33.", f"Use one of {', '.join(CHOICES)}."
        )
    if option != "auto":
        return _canonical(option), "option"
    quantization, source = _quantization(fields)
    if quantization is not None:
        found = _from_checkpoint(fields, quantization, source)
        if found is not None:
            return found, source
    return dtype, "model dtype"


def _canonical(option: str) -> str:
    return "fp8" if option in ("fp8", "fp8_e4m3") else option


def _quantization(fields: Fields) -> tuple[dict[str, Any] | None, str]:
    for config, path in ((fields.top, ""), (fields.text, fields.prefix)):
        value = config.get("quantization_config") or config.get("compression_config")
        if value is None:
            continue
        path = f"{path}.quantization_config" if path else "quantization_config"
        if not isinstance(value, dict):
            raise fields.wrong(path, value, "an object")
        return value, path
    return fields.hf_quant_config, "hf_quant_config.json"


def _from_checkpoint(fields: Fields, quantization: dict[str, Any], source: str) -> str | None:
    method = str(quantization.get("quant_method") or "").lower()
    nested = quantization.get("quantization")
    nested = nested if isinstance(nested, dict) else {}
    producer = str(look_up(quantization, "producer.name") or "").lower()
    if method.startswith("modelopt") or (producer == "modelopt" and nested.get("quant_algo")):
        scheme = quantization.get("kv_cache_scheme") or nested.get("kv_cache_scheme")
        if isinstance(scheme, dict):
            fields.used[f"{source}.kv_cache_scheme"] = scheme
            return _from_scheme(scheme)
        algo = nested.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo")
        if algo is not None:
            fields.used[f"{source}.kv_cache_quant_algo"] = algo
        return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(algo).upper())
    if method == "compressed-tensors":
        scheme = quantization.get("kv_cache_scheme")
        if scheme is not None:
            fields.used[f"{source}.kv_cache_scheme"] = scheme
            if not isinstance(scheme, dict):
                raise fields.wrong(f"{source}.kv_cache_scheme", scheme, "an object")
            return "fp8"
    return None


def _from_scheme(scheme: dict[str, Any]) -> str | None:
    kind = (scheme.get("num_bits"), str(scheme.get("type")).lower())
    if kind == (8, "float") and not scheme.get("dynamic"):
        return "fp8"
    return "nvfp4" if kind == (4, "float") else None


def element_bytes(fields: Fields, dtype: str) -> int:
    """Bytes of one cache element with scales outside the page. Raises Refused for packed formats."""
    if dtype in MODEL_DTYPES:
        return MODEL_DTYPES[dtype]
    if dtype in FP8:
        return 1
    raise Refused(
        f"{fields.name}: kvprobe has no rule for the page of --kv-cache-dtype {dtype}.",
        "kv_dtype_not_supported",
    )
