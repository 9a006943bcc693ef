"""Which options and environment variables vLLM knows, by version: read from its released wheels, kept as data."""

from __future__ import annotations

import difflib
import functools
import re
from importlib.resources import files
from typing import NamedTuple

Version = tuple[int, int, int]
NEWEST: Version = (0, 33, 0)
"""The newest vLLM the tables know; later ones are judged by these rules and the report says so."""


class Known(NamedTuple):
    """One option or variable."""

    name: str
    kind: str
    """``bool`` (--x and --no-x), ``flag``, ``value``, ``list``, ``opt`` (value may be left out); empty for variables."""
    absent_in: Version | None
    """The last version that was looked at before it existed."""
    gone_in: Version | None
    """The first version that was looked at without it again."""

    def known_absent(self, version: Version) -> bool:
        """True if this version is known not to have it; between two looked-at versions nothing is claimed."""
        return (self.absent_in is not None and version <= self.absent_in) or (
            self.gone_in is not None and version >= self.gone_in
        )


REPLACED = {
    "--disable-log-requests": "leave it out: requests are not logged by default (--enable-log-requests turns it on)",
    "--chunked-prefill": "--enable-chunked-prefill (on by default)",
    "--disable-chunked-prefill": "--no-enable-chunked-prefill",
    "--no-chunked-prefill": "--no-enable-chunked-prefill",
    "--disable-prefix-caching": "--no-enable-prefix-caching",
    "--prefix-caching": "--enable-prefix-caching (on by default)",
    "--swap-space": "leave it out: vLLM has no swap space any more",
    "--task": "--runner pooling, and --convert where the model has to be adapted",
    "--guided-decoding-backend": "--structured-outputs-config.backend",
    "--rope-scaling": "--hf-overrides '{\"rope_parameters\": ...}'",
    "--rope-theta": "--hf-overrides '{\"rope_parameters\": ...}'",
    "--calculate-kv-scales": "leave it out: scales come from the checkpoint",
    "--disable-frontend-multiprocessing": "leave it out",
    "--tp": "--tensor-parallel-size (or -tp)",
    "--pp": "--pipeline-parallel-size (or -pp)",
    "--dp": "--data-parallel-size (or -dp)",
    "--ep": "--enable-expert-parallel (or -ep)",
    "--enable-disagg": "--kv-transfer-config",
    "--disaggregation-mode": "--kv-transfer-config with kv_role (the flag belongs to Dynamo and SGLang)",
    "--kv-connector": "--kv-transfer-config '{\"kv_connector\": ...}'",
    "--kv-role": "--kv-transfer-config '{\"kv_role\": ...}'",
    "--num-scheduler-steps": "leave it out: multi-step scheduling was removed",
    "--use-v2-block-manager": "leave it out",
    "--speculative-model": "--speculative-config",
    "--num-speculative-tokens": "--speculative-config",
    "--device": "leave it out: the platform is detected",
}
"""Options that were removed, or that people invent, and what to write instead."""

UCX_NAMES = (
    "UCX_NET_DEVICES", "UCX_TLS", "UCX_SHM_DEVICES", "UCX_SELF_DEVICES", "UCX_ACC_DEVICES", "UCX_LOG_LEVEL",
    "UCX_LOG_FILE", "UCX_PROTO_INFO", "UCX_PROTO_ENABLE", "UCX_RNDV_SCHEME", "UCX_RNDV_THRESH", "UCX_ZCOPY_THRESH",
    "UCX_MAX_RMA_RAILS", "UCX_MAX_RNDV_RAILS", "UCX_MAX_EAGER_RAILS", "UCX_MEMTYPE_CACHE",
    "UCX_RCACHE_MAX_UNRELEASED", "UCX_RCACHE_ENABLE", "UCX_SOCKADDR_TLS_PRIORITY", "UCX_IB_GID_INDEX",
    "UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL", "UCX_IB_ROCE_VERSION_NUM", "UCX_IB_PCI_RELAXED_ORDERING",
    "UCX_IB_GPU_DIRECT_RDMA", "UCX_IB_NUM_PATHS", "UCX_IB_PKEY", "UCX_CUDA_IPC_ENABLE_MNNVL",
    "UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "UCX_CUDA_IPC_CACHE", "UCX_CUDA_IPC_MAX_STREAMS", "UCX_CUDA_COPY_DMABUF",
    "UCX_HANDLE_ERRORS", "UCX_ERROR_SIGNALS", "UCX_WARN_UNUSED_ENV_VARS", "UCX_MODULE_DIR", "UCX_MODULES",
    "UCX_KEEPALIVE_INTERVAL", "UCX_ADDRESS_VERSION", "UCX_MAX_COMPONENT_MDS", "UCX_TCP_CM_REUSEADDR",
    "UCX_TCP_MAX_CONN_RETRIES", "UCX_UNIFIED_MODE", "UCX_STATS_DEST",
)  # fmt: skip
OTHER_NAMES = (
    "NIXL_LOG_LEVEL", "NIXL_TELEMETRY_ENABLE", "NIXL_TELEMETRY_DIR", "NIXL_TELEMETRY_EXPORTER",
    "NIXL_TELEMETRY_BUFFER_SIZE", "NIXL_PLUGIN_DIR", "NIXL_ETCD_ENDPOINTS", "NIXL_ETCD_NAMESPACE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "MOONCAKE_CONFIG_PATH", "LMCACHE_CONFIG_FILE",
)  # fmt: skip
_MEANT = {
    "VLLM_NIXL_HOST": "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_PORT": "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_LOG_LEVEL": "VLLM_LOGGING_LEVEL",
}
_ABBREVIATED = re.compile(r"^--[a-z0-9-]+$")


@functools.cache
def options() -> dict[str, Known]:
    """Long option -> what is known of it."""
    return {k.name: k for k, _ in _option_rows()}


@functools.cache
def short_options() -> dict[str, str]:
    """Short option (``-tp``) -> long option."""
    return {short: known.name for known, shorts in _option_rows() for short in shorts}


@functools.cache
def variables() -> dict[str, Known]:
    """Environment variable of vLLM -> what is known of it."""
    rows = _rows("serve_command_env.tsv")
    return {name: Known(name, "", _version(absent), _version(gone)) for name, absent, gone in rows}


@functools.cache
def ucx_names() -> frozenset[str]:
    """Variables that UCX itself lists."""
    return frozenset(row[0] for row in _rows("serve_command_ucx.tsv"))


def option_name(written: str, version: Version | None) -> str | None:
    """The long option that argparse takes ``written`` for: itself, ``--no-x``, underscores, an unambiguous beginning."""
    if written in short_options():
        return short_options()[written]
    name = written.replace("_", "-")
    table = options()
    if name in table:
        return name
    if name.startswith("--no-") and (positive := "--" + name[5:]) in table and table[positive].kind == "bool":
        return positive
    if not _ABBREVIATED.match(name):
        return None
    there = [n for n, k in table.items() if version is None or not k.known_absent(version)]
    forms = {n: n for n in there} | {"--no-" + n[2:]: n for n in there if table[n].kind == "bool"}
    begun = [form for form in forms if form.startswith(name)]
    return forms[begun[0]] if len(begun) == 1 else None


def nearest_option(written: str) -> str | None:
    """What to write instead of an option that does not exist; None if nothing is near."""
    name = written.replace("_", "-")
    if name in REPLACED:
        return REPLACED[name]
    if "disagg" in name:
        return "--kv-transfer-config (vllm serve has no option for disaggregation itself)"
    forms = [*options(), *("--no-" + n[2:] for n, k in options().items() if k.kind == "bool")]
    near = difflib.get_close_matches(name, forms, 1, 0.82)
    return near[0] if near else None


def nearest_variable(name: str) -> str | None:
    """The variable that ``name`` was probably meant to be; None if it is known or nothing is near."""
    family = (*variables(), *UCX_NAMES, *OTHER_NAMES)
    if name in family or name in ucx_names() or re.match(r"UCX_(RC|DC|UD|GGA|SRD)_", name):
        return None
    for guess in (_MEANT.get(name, ""), f"VLLM_{name}", name.replace("VLLM_", "VLLM_NIXL_", 1)):
        if guess in family and guess != name:
            return guess
    living = [n for n in family if n[:3] == name[:3] and not (n in variables() and variables()[n].gone_in)]
    near = difflib.get_close_matches(name, living, 1, 0.88)
    return near[0] if near else None


def _option_rows() -> list[tuple[Known, list[str]]]:
    return [
        (Known(name, kind, _version(absent), _version(gone)), [] if shorts == "-" else shorts.split(","))
        for name, kind, shorts, absent, gone in _rows("serve_command_flags.tsv")
    ]


def _rows(name: str) -> list[list[str]]:
    text = files("kvprobe.formats").joinpath(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


def _version(text: str) -> Version | None:
    return None if text == "-" else parse_version(text)


def parse_version(text: str) -> Version | None:
    """``0.33.0``, ``v0.33.0-cu128``, ``0.33`` -> (0, 33, 0); None for tags such as ``latest``."""
    match = re.match(r"^v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", text.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def show_version(version: Version) -> str:
    """(0, 33, 0) -> ``0.33.0``."""
    return ".".join(str(n) for n in version)
