"""Environment variables that decide the transport, and what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIXES = ("UCX_", "NIXL_", "VLLM_", "NCCL_", "MOONCAKE_", "MC_", "LMCACHE_")
NAMES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_MODULE_LOADING",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "KUBERNETES_SERVICE_HOST",
)  # fmt: skip
_SECRET = re.compile(r"(?:KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL)", re.IGNORECASE)
_URL_USER = re.compile(r"(\w+://)[^/@\s]+@")


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables in order of name; a value that may be a secret is replaced by ``(set)``."""
    return {
        name: "(set)" if _SECRET.search(name) else _URL_USER.sub(r"\1(set)@", value)
        for name, value in sorted(variables.items())
    }


def expandable_segments(variables: Mapping[str, str]) -> str | None:
    """The variable that switches PyTorch's expandable segments on; None if none does.

    PYTORCH_ALLOC_CONF is the newer name and wins over PYTORCH_CUDA_ALLOC_CONF (torch >= 2.9).
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        match = re.search(r"expandable_segments\s*:\s*(\w+)", variables.get(name, ""), re.IGNORECASE)
        if match:
            return name if match[1].lower() == "true" else None
    return None


def allows_cuda_ipc(ucx_tls: str | None) -> bool:
    """Whether this value of UCX_TLS lets UCX use cuda_ipc (``cuda`` and ``all`` include it, ``^`` denies)."""
    if not ucx_tls or not ucx_tls.strip():
        return True
    deny = ucx_tls.strip().startswith("^")
    words = {word.strip().split(":")[0].lower() for word in ucx_tls.strip().lstrip("^").split(",")}
    named = bool(words & {"cuda_ipc", "cuda", "all"})
    return not named if deny else named
