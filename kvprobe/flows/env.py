"""What a bug report needs of this machine: versions, GPUs, settings; secrets removed."""

from __future__ import annotations

import os
import platform
import re
import sys

from kvprobe import __version__
from kvprobe.errors import KvprobeError
from kvprobe.probes import gpus, packages
from kvprobe.system import Redactor, System, hide_passwords

_PACKAGES = (
    "vllm", "nixl", "nixl-cu12", "nixl-cu13", "torch", "ucxx-cu12", "ucxx-cu13", "lmcache", "mooncake-transfer-engine",
    "transformers", "huggingface-hub", "nvidia-ml-py", "click", "rich", "msgspec",
)  # fmt: skip
_PREFIXES = ("CUDA_", "HF_", "KVPROBE_", "LMCACHE_", "MOONCAKE_", "NCCL_", "NIXL_", "NVIDIA_", "PYTORCH_", "UCX_", "VLLM_")  # fmt: skip
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


def collect(system: System) -> dict[str, dict[str, str]]:
    """Title -> name -> value; what could not be told says why."""
    found: dict[str, dict[str, str]] = {
        "kvprobe": {"version": __version__, "python": platform.python_version(), "platform": platform.platform(), "in": sys.prefix},
        "packages": packages.installed(system, _PACKAGES),
        "GPUs": _gpus(system),
        "environment": _environment(),
    }  # fmt: skip
    told: dict[str, dict[str, str]] = Redactor()(found)
    return told


def _gpus(system: System) -> dict[str, str]:
    try:
        facts = gpus.look(system).facts
    except KvprobeError as error:
        return {"not read": error.reason}
    found: dict[str, str] = {"driver": str(facts.driver), "CUDA": str(facts.cuda)}
    for gpu in facts.gpus:
        found[gpu.label] = gpu.name
    for pair in facts.pairs:
        found[f"{pair.a}>{pair.b}"] = f"read {pair.read}, write {pair.write}, nvlink {pair.nvlink}"
    return found


def _environment() -> dict[str, str]:
    """The variables that vLLM, NIXL, UCX and kvprobe read; a secret's value is never shown."""
    found: dict[str, str] = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES) or name == "LD_LIBRARY_PATH":
            found[name] = "(set, not shown)" if _SECRET.search(name) else hide_passwords(os.environ[name])
    return found
