"""`kvprobe env`: what a bug report needs, secrets removed."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib import metadata

import click

from kvprobe import __version__
from kvprobe.errors import KvprobeError
from kvprobe.system import Redactor, System

_PACKAGES = (
    "vllm", "nixl", "nixl-cu12", "nixl-cu13", "torch", "ucxx-cu12", "ucxx-cu13", "lmcache", "mooncake-transfer-engine",
    "transformers", "huggingface-hub", "nvidia-ml-py", "click", "rich", "msgspec",
)  # fmt: skip
_PREFIXES = ("CUDA_", "HF_", "KVPROBE_", "LMCACHE_", "MOONCAKE_", "NCCL_", "NIXL_", "NVIDIA_", "PYTORCH_", "UCX_", "VLLM_")  # fmt: skip
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


@click.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(form: str) -> None:
    """Versions, GPUs and settings for a bug report. Values of secrets, host names and addresses are left out."""
    found = collect(System())
    if form == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        click.echo(f"{title}\n{'-' * len(title)}")
        width = max((len(name) for name in rows), default=0)
        for name, value in rows.items():
            click.echo(f"{name:<{width}}  {value}")
        click.echo()


def collect(system: System) -> dict[str, dict[str, str]]:
    """Title -> name -> value; what could not be told says why."""
    found: dict[str, dict[str, str]] = {
        "kvprobe": {"version": __version__, "python": platform.python_version(), "platform": platform.platform(), "in": sys.prefix},
        "packages": _packages(),
        "GPUs": _gpus(system),
        "environment": _environment(),
    }  # fmt: skip
    told: dict[str, dict[str, str]] = Redactor()(found)
    return told


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus(system: System) -> dict[str, str]:
    from kvprobe.probes import gpus

    try:
        facts = gpus.look(system).facts
    except KvprobeError as error:
        return {"not read": error.reason}
    found: dict[str, str] = {"driver": str(facts.driver), "CUDA": str(facts.cuda)}
    for gpu in facts.gpus:
        found[gpu.label] = gpu.name
    for pair in getattr(facts, "pairs", ()):
        found[f"{pair.a}>{pair.b}"] = f"read {pair.read}, write {pair.write}, nvlink {pair.nvlink}"
    return found


def _environment() -> dict[str, str]:
    """The variables that vLLM, NIXL, UCX and kvprobe read; a secret's value is never shown."""
    found: dict[str, str] = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES) or name == "LD_LIBRARY_PATH":
            found[name] = "(set, not shown)" if _SECRET.search(name) else _without_password(os.environ[name])
    return found


def _without_password(value: str) -> str:
    return re.sub(r"(://[^/\s:@]+):[^/\s@]+@", r"\1:***@", value)
