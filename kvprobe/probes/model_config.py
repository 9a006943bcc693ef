"""A model's config.json: from a directory, a file, the hub cache, the models shipped with kvprobe, or the hub.

The order is by nearness: what lies on this machine is what its vLLM would load. Each look goes through
``System.observe``, so a recorded run finds the same config anywhere.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.models.kv_layout.types import ModelConfig
from kvprobe.system import System

__all__ = ["ModelConfig", "load_model_config"]

CONFIG_LIMIT_BYTES = 16 * 1024 * 1024
HUB_TIMEOUT_SECONDS = 5.0
_KNOWN = Path(__file__).parent.parent / "models" / "known_models"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ENVIRONMENT = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # fmt: skip
_DIRECTORY = "Give a directory with config.json, or the file itself."


def load_model_config(system: System, name: str, *, revision: str | None = None) -> Evidence[ModelConfig]:
    """Read the config of ``name``: a directory, a config.json, a cached or public hub model, a shipped one.

    ``Evidence.source`` says which it was. Raises UsageError when there is no such model (with the names that
    look alike), ProbeError when its config cannot be read or the hub does not answer.
    """
    kind = system.path_kind(name)
    if kind == "dir":
        return _from_directory(system, name)
    if kind == "file":
        path = Path(name)
        label = path.absolute().parent.name if path.name == "config.json" else path.stem
        return _evidence(_read(system, name, label), name)
    if not _HUB_NAME.fullmatch(name):
        raise UsageError(f"There is no model at {name!r}.", _DIRECTORY)
    env = system.environ(_ENVIRONMENT)
    cache = _cache_folder(env)
    cached = _cached(system, cache, name, revision)
    if cached is not None:
        return cached
    if revision is None:
        shipped = _shipped(system, name)
        if shipped is not None:
            return shipped
    if any(env.get(key, "").lower() in ("1", "true", "yes", "on") for key in _ENVIRONMENT[-2:]):
        raise _unknown(system, name, cache, "HF_HUB_OFFLINE is set, so the hub was not asked.")
    return _from_hub(system, name, revision, cache)


def _from_directory(system: System, folder: str) -> Evidence[ModelConfig]:
    path = Path(folder, "config.json")
    label = Path(folder).absolute().name or folder
    if system.path_kind(path) != "file":
        if system.path_kind(Path(folder, "params.json")) == "file":
            raise UsageError(
                f"{folder} holds Mistral's params.json but no config.json, and kvprobe reads the latter.",
                "Give a directory in Hugging Face format.",
            )
        raise UsageError(f"{folder} holds no config.json.", _DIRECTORY)
    return _evidence(_read(system, str(path), label), str(path))


def _read(system: System, path: str, label: str) -> ModelConfig:
    config = _object(system.read_text(path, limit_bytes=CONFIG_LIMIT_BYTES), path)
    beside = Path(path).with_name("hf_quant_config.json")
    quant = None
    if config.get("quantization_config") is None and system.path_kind(beside) == "file":
        quant = _object(system.read_text(beside, limit_bytes=CONFIG_LIMIT_BYTES), str(beside))
    return ModelConfig(name=label, config=config, hf_quant_config=quant)


def _evidence(model: ModelConfig, source: str) -> Evidence[ModelConfig]:
    return Evidence(id="model-config", kind="model_config", origin=Origin.READ, source=source, facts=model)


def _object(text: str, path: str) -> dict[str, Any]:
    remedy = "Give a model's config.json."
    try:
        value = json.loads(text)
    except RecursionError:
        raise ProbeError(f"{path} is nested too deeply for a config.json.", remedy) from None
    except ValueError as error:
        shown = str(error).split("\n")[0][:120]
        raise ProbeError(f"{path} is not JSON: {shown}.", remedy) from None
    if not isinstance(value, dict):
        raise ProbeError(f"{path} holds no JSON object.", remedy)
    return value


def _cache_folder(env: dict[str, str]) -> Path:
    """Where huggingface_hub keeps its files, by the variables it reads."""
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(key):
            return Path(env[key])
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"], "hub")
    return Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/"), ".cache"), "huggingface", "hub")


def _cached(system: System, cache: Path, name: str, revision: str | None) -> Evidence[ModelConfig] | None:
    folder = cache / f"models--{name.replace('/', '--')}"
    if system.path_kind(folder) != "dir":
        return None
    commit = revision or "main"
    reference = folder / "refs" / commit
    if system.path_kind(reference) == "file":
        commit = system.read_text(reference, limit_bytes=1024).strip()
    path = folder / "snapshots" / commit / "config.json"
    if system.path_kind(path) != "file":
        return None
    return _evidence(_read(system, str(path), name), f"hub cache, commit {commit[:12]}: {path}")


def _shipped(system: System, name: str) -> Evidence[ModelConfig] | None:
    """The model among those that ship with kvprobe, by its full or its bare name."""

    def look() -> dict[str, Any] | None:
        wanted = name.lower().replace("/", "--")
        for path in sorted(_KNOWN.glob("*.json")):
            stem = path.stem.lower()
            if wanted == stem or ("/" not in name and wanted == stem.split("--")[-1]):
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return found
        return None

    found = system.observe("known_model", name, look)
    if found is None:
        return None
    model = ModelConfig(
        name=found["name"], config=found["config"], hf_quant_config=found.get("hf_quant_config")
    )
    return _evidence(model, f"shipped with kvprobe: {found['source']}")


def _known_names(system: System, cache: Path) -> list[str]:
    def look() -> list[str]:
        return sorted(path.stem.replace("--", "/") for path in _KNOWN.glob("*.json"))

    cached = [
        n.removeprefix("models--").replace("--", "/")
        for n in system.list_dir(cache)
        if n.startswith("models--")
    ]
    return [*cached, *system.observe("known_models", None, look)]


def _unknown(system: System, name: str, cache: Path, why: str) -> UsageError:
    names = _known_names(system, cache)
    by_lower = {n.lower(): n for n in names} | {n.lower().split("/")[-1]: n for n in names}
    near = list(dict.fromkeys(by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, 4, 0.6)))
    hint = f"Names like it: {', '.join(near)}." if near else _DIRECTORY
    return UsageError(
        f"No model {name!r} is here: no such directory, not in the hub cache, not shipped. {why}", hint
    )


def _from_hub(system: System, name: str, revision: str | None, cache: Path) -> Evidence[ModelConfig]:
    found = system.observe("hub", [name, revision], lambda: _download(name, revision))
    if "missing" in found:
        raise _unknown(system, name, cache, found["missing"])
    config = _object(found["config"], f"{name}/config.json")
    quant = found.get("hf_quant_config")
    if config.get("quantization_config") is not None:
        quant = None
    model = ModelConfig(
        name=name,
        config=config,
        hf_quant_config=_object(quant, f"{name}/hf_quant_config.json") if quant else None,
    )
    return _evidence(model, f"{found['endpoint']}/{name} at {found['commit'][:12] or 'main'}")


def _download(name: str, revision: str | None) -> dict[str, Any]:
    """config.json (and hf_quant_config.json) from the hub, as text; ``{"missing": why}`` if it has no such model.

    huggingface_hub knows the endpoint and the token; its own download would retry for half a minute.
    """
    try:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers
    except ImportError:
        return {
            "missing": "The hub was not asked: huggingface_hub is not installed (pip install 'kvprobe[hf]')."
        }
    import httpx

    found: dict[str, Any] = {"commit": "", "endpoint": constants.ENDPOINT}
    headers = build_hf_headers(library_name="kvprobe")
    try:
        with httpx.Client(headers=headers, timeout=HUB_TIMEOUT_SECONDS, follow_redirects=True) as client:
            for key, file in (("config", "config.json"), ("hf_quant_config", "hf_quant_config.json")):
                text, commit, problem = _fetch(client, hf_hub_url(name, file, revision=revision), name, file)
                if text is not None:
                    found |= {key: text, "commit": commit}
                elif key == "config":
                    return {"missing": problem}
    except httpx.HTTPError as error:
        return {"missing": f"The hub did not answer ({type(error).__name__})."}
    return found


def _fetch(client: Any, url: str, name: str, file: str) -> tuple[str | None, str, str]:
    """(text, commit, why there is none). Raises ProbeError for a gated model and for what is too large."""
    with client.stream("GET", url) as answer:
        code = answer.headers.get("x-error-code", "")
        if code == "GatedRepo":
            raise ProbeError(
                f"{name} is gated on the hub.",
                "Accept its licence there and set HF_TOKEN.",
                ("hf auth login",),
            )
        if code == "EntryNotFound":
            return None, "", f"The hub has it, but without {file}."
        if answer.status_code in (401, 403, 404):
            return None, "", "The hub does not know it either (or it is private: set HF_TOKEN)."
        if answer.status_code != 200:
            return None, "", f"The hub answered {answer.status_code}."
        data = bytearray()
        for piece in answer.iter_bytes():
            data += piece
            if len(data) > CONFIG_LIMIT_BYTES:
                raise ProbeError(f"{file} of {name} is larger than {CONFIG_LIMIT_BYTES // 1024**2} MiB.")
        return data.decode("utf-8", "replace"), answer.headers.get("x-repo-commit", ""), ""
