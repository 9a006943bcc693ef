"""Which element type the cache gets: the option, else what the checkpoint's quantization says, else the model's.

The order is that of vLLM 0.33: ``resolve_kv_cache_dtype_string`` (ModelOpt, in the file's top-level config or in
hf_quant_config.json), then the attention layer, which honours compressed-tensors' ``kv_cache_scheme``.
"""

from __future__ import annotations

from typing import Any

from kvprobe.errors import UsageError
from kvprobe.models.kv_layout.fields import Fields, look_up
from kvprobe.models.kv_layout.types import Refused

FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
MODEL_DTYPES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
PER_TOKEN_HEAD = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
CHOICES = (
    "auto", "float16", "bfloat16", *FP8, "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit", *PER_TOKEN_HEAD, "nvfp4", "nvfp4_4over6",
)  # fmt: skip
"""``vllm serve --kv-cache-dtype`` of 0.33."""
_SCALE_BYTES = 4


def model_dtype(fields: Fields) -> str:
    """bfloat16 or float16: what ``--dtype auto`` makes of the config on a GPU that has bfloat16."""
    places = (
        (fields.top, ""),
        (fields.text, fields.prefix),
        (fields.top.get("vision_config"), "vision_config"),
    )
    found = None
    for config, prefix in places:
        for key in ("dtype", "torch_dtype"):
            value = config.get(key) if isinstance(config, dict) else None
            if value is not None and found is None:
                found = value
                fields.used[f"{prefix}.{key}" if prefix else key] = value
    if found is None:
        return "bfloat16"
    name = found.removeprefix("torch.") if isinstance(found, str) else ""
    if name not in MODEL_DTYPES:
        raise fields.wrong("dtype", found, "bfloat16, float16 or float32")
    return "float16" if name in ("float16", "half") else "bfloat16"


def resolve_kv_dtype(fields: Fields, option: str, dtype: str) -> tuple[str, str]:
    """(element type, ``option``, ``model dtype`` or the key that asked for it). Raises UsageError, Refused."""
    if option not in CHOICES:
        raise UsageError(
            f"--kv-cache-dtype {option!r} is unknown to vLLM 0.33.", f"Use one of {', '.join(CHOICES)}."
        )
    if option != "auto":
        return option, "option"
    return _modelopt(fields) or _compressed_tensors(fields) or (dtype, "model dtype")


def _quantization(fields: Fields, config: dict[str, Any], path: str) -> dict[str, Any] | None:
    value = config.get("quantization_config")
    if value is not None and not isinstance(value, dict):
        raise fields.wrong(path, value, "an object")
    return value


def _modelopt(fields: Fields) -> tuple[str, str] | None:
    source = "quantization_config"
    found = _quantization(fields, fields.top, source)
    if found is None:
        found, source = fields.hf_quant_config, "hf_quant_config.json"
    if found is None:
        return None
    inner = found.get("quantization")
    inner = inner if isinstance(inner, dict) else {}
    producer = look_up(found, "producer.name") == "modelopt" or "modelopt_quant_config" in inner
    if not (producer and inner.get("quant_algo")) and not _method(found).startswith("modelopt"):
        return None
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for place in (inner, found):
            value = place.get(key)
            if value:
                fields.used[f"{source}.{key}"] = value
                dtype = _of_scheme(value) if isinstance(value, dict) else _of_name(value)
                return (dtype, f"{source}.{key}") if dtype else None
    return None


def _method(quantization: dict[str, Any]) -> str:
    return str(quantization.get("quant_method") or "").lower().replace("_", "-", 1)


def _of_name(name: Any) -> str | None:
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(name).lower())


def _of_scheme(scheme: dict[str, Any]) -> str | None:
    if (scheme.get("num_bits"), scheme.get("type"), scheme.get("dynamic")) == (8, "float", False):
        return "fp8_e4m3"
    return "nvfp4" if (scheme.get("num_bits"), scheme.get("type")) == (4, "float") else None


def _compressed_tensors(fields: Fields) -> tuple[str, str] | None:
    for config, prefix in ((fields.top, ""), (fields.text, fields.prefix)):
        path = f"{prefix}.quantization_config" if prefix else "quantization_config"
        found = _quantization(fields, config, path)
        if found is None:
            found = config.get("compression_config")
        if not isinstance(found, dict) or _method(found) != "compressed-tensors":
            continue
        scheme = found.get("kv_cache_scheme")
        if scheme is None:
            return None
        if not isinstance(scheme, dict):
            raise fields.wrong(f"{path}.kv_cache_scheme", scheme, "an object")
        fields.used[f"{path}.kv_cache_scheme"] = scheme
        kind = (scheme.get("num_bits"), scheme.get("type"), scheme.get("symmetric", True))
        if kind != (8, "float", True) or scheme.get("strategy", "tensor") not in ("tensor", "attn_head"):
            raise Refused(
                f"{fields.name}: vLLM takes only symmetric 8-bit float kv_cache_scheme with one scale a tensor or head.",
                "kv_dtype_not_supported",
            )
        return "fp8", f"{path}.kv_cache_scheme"
    return None


def element_bytes(fields: Fields, dtype: str) -> int:
    """Bytes of one cache element with scales outside the page. Raises Refused for packed formats."""
    if dtype in MODEL_DTYPES:
        return MODEL_DTYPES[dtype]
    if dtype in FP8:
        return 1
    raise Refused(
        f"{fields.name}: kvprobe has no rule for this cache with --kv-cache-dtype {dtype}.",
        "kv_dtype_not_supported",
    )


def row_bytes(fields: Fields, dtype: str, width: int) -> int:
    """Bytes of one head's K (or V) of one token, scales that lie in the page included."""
    if dtype == "nvfp4":
        if width % 16:
            raise Refused(f"{fields.name}: NVFP4 needs heads of a multiple of 16.", "kv_dtype_not_supported")
        return width // 2 + width // 16
    if dtype in PER_TOKEN_HEAD:
        return (width // 2 if dtype.startswith("int4") else width) + _SCALE_BYTES
    return width * element_bytes(fields, dtype)
