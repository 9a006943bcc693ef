"""A model's config.json: from a directory, a file, the hub cache, the hub, or the models shipped with kvprobe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.models.kv_layout.types import ModelConfig
from kvprobe.system import System

__all__ = ["ModelConfig", "load_model_config"]


def load_model_config(system: System, name: str, *, revision: str | None = None) -> Evidence[ModelConfig]:
    """Read the config of ``name``: a directory, a config.json, a cached or public hub model, a shipped one.

    Raises UsageError when there is no such model, ProbeError when its config cannot be read.
    """
    kind = system.path_kind(name)
    if kind == "dir":
        return _from_files(system, name, str(Path(name, "config.json")), Path(name).resolve().name or name)
    if kind == "file":
        return _from_files(system, name, name, Path(name).resolve().parent.name)
    raise UsageError(f"No model {name!r} was found.", "Give a directory with config.json.")


def _from_files(system: System, name: str, path: str, label: str) -> Evidence[ModelConfig]:
    config = _object(system.read_text(path), path)
    beside = Path(path).with_name("hf_quant_config.json")
    quant = None
    if not isinstance(config.get("quantization_config"), dict) and system.path_kind(beside) == "file":
        quant = _object(system.read_text(beside), str(beside))
    model = ModelConfig(name=label, config=config, hf_quant_config=quant)
    return Evidence(id="model-config", kind="model_config", origin=Origin.READ, source=path, facts=model)


def _object(text: str, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProbeError(f"{path} is not JSON: {error}.", "Give a model's config.json.") from None
    if not isinstance(value, dict):
        raise ProbeError(f"{path} is not a JSON object.", "Give a model's config.json.")
    return value
