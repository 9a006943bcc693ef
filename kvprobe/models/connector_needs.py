"""What each KV connector of vLLM needs from the machine it runs on.

Read from the connectors of vLLM 0.33 (``distributed/kv_transfer/kv_connector/v1``); since and until which version a
connector exists stands in :mod:`kvprobe.formats.kv_transfer_config_connectors`.
"""

from __future__ import annotations

from typing import NamedTuple

from kvprobe.formats.serve_command_surface import Version


class Port(NamedTuple):
    """A port that the connector listens on (or, ``serves`` false, that has to answer)."""

    what: str
    variable: str | None
    default: int
    host_variable: str | None = None
    extra_key: str | None = None
    serves: bool = True


class Package(NamedTuple):
    """One thing to import; any of ``modules`` will do."""

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    install: str
    libraries: tuple[str, ...] = ()
    """System libraries that its wheels expect and do not bring."""
    then: str = ""
    """A further check after the import: ``nixl_agent`` creates an agent with the UCX backend."""
    minimum: tuple[tuple[Version, str], ...] = ()
    """``(vLLM version, lowest package version from then on)``."""


class Need(NamedTuple):
    """One connector."""

    name: str
    purpose: str
    packages: tuple[Package, ...] = ()
    device: str = "any"
    """``cuda``, ``amd`` or ``any``."""
    ports: tuple[Port, ...] = ()
    config_variable: str | None = None
    """Environment variable that names its configuration file."""
    config_required: bool = False
    required_extra: tuple[str, ...] = ()
    substitute: str | None = None
    """What it silently does instead when its library is missing, or what it fakes."""
    debug: bool = False
    """For tests: never in production."""


_NIXL = Package(
    modules=("nixl_cu13._api", "nixl_cu12._api", "nixl._api", "nixl_rocm._api"),
    distributions=("nixl", "nixl-cu13", "nixl-cu12", "nixl-rocm"),
    install="pip install nixl",
    then="nixl_agent",
    minimum=(((0, 33, 0), "1.5.0"),),
)
_MOONCAKE = Package(
    modules=("mooncake.engine",),
    distributions=(
        "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda",
        "mooncake-transfer-engine-efa", "mooncake-transfer-engine-efa-cuda13",
    ),
    install="pip install mooncake-transfer-engine",
    libraries=("libibverbs.so.1", "libmlx5.so.1", "libcudart.so.12", "libcuda.so.1"),
)  # fmt: skip
_MOONCAKE_STORE = _MOONCAKE._replace(modules=("mooncake.store",))
_LMCACHE = Package(modules=("lmcache",), distributions=("lmcache",), install="pip install lmcache")
_SIDE_CHANNEL = Port("NIXL side channel", "VLLM_NIXL_SIDE_CHANNEL_PORT", 5600, "VLLM_NIXL_SIDE_CHANNEL_HOST")

NEEDS = {
    need.name: need
    for need in (
        Need("NixlConnector", "P/D, decode reads from prefill", (_NIXL,), ports=(_SIDE_CHANNEL,)),
        Need("NixlPullConnector", "P/D, decode reads from prefill", (_NIXL,), ports=(_SIDE_CHANNEL,)),
        Need("NixlPushConnector", "P/D, prefill writes to decode", (_NIXL,), ports=(_SIDE_CHANNEL,)),
        Need(
            "MooncakeConnector", "P/D, prefill writes to decode", (_MOONCAKE,), "cuda",
            (Port("Mooncake bootstrap server", "VLLM_MOONCAKE_BOOTSTRAP_PORT", 8998),),
        ),
        Need(
            "MooncakeStoreConnector", "shared KV store", (_MOONCAKE_STORE,), "cuda",
            config_variable="MOONCAKE_CONFIG_PATH", config_required=True,
        ),
        Need(
            "MoRIIOConnector", "P/D over RDMA or xGMI on AMD",
            (Package(("mori",), ("mori", "amd-mori"), "install ROCm's mori"), Package(("msgpack",), ("msgpack",), "pip install msgpack")),
            "amd",
            (
                Port("MoRIIO handshake", None, 6301, extra_key="handshake_port"),
                Port("MoRIIO notify", None, 61005, extra_key="notify_port"),
            ),
            required_extra=("http_port",),
        ),
        Need("LMCacheConnectorV1", "cache and offload through LMCache", (_LMCACHE,), config_variable="LMCACHE_CONFIG_FILE"),
        Need(
            "LMCacheMPConnector", "LMCache's server for several engines", (_LMCACHE,),
            ports=(Port("LMCache server", None, 5555, extra_key="lmcache.mp.port", serves=False),),
        ),
        Need("FlexKVConnectorV1", "tiered cache", (Package(("flexkv",), ("flexkv",), "build FlexKV from source"),), "cuda"),
        Need("OffloadingConnector", "offload to host memory and tiers below"),
        Need("SimpleCPUOffloadConnector", "offload to host memory or disk", device="cuda"),
        Need(
            "HF3FSKVConnector", "KV in 3FS files",
            (Package(("hf3fs_fuse.io",), ("hf3fs-py-usrbio", "hf3fs"), "build 3FS's hf3fs_fuse"),), "cuda",
            substitute="without hf3fs_fuse vLLM takes a mock client and stores nothing",
        ),
        Need("HiSparseConnector", "host-resident KV of sparse attention", device="cuda", required_extra=("host_pool_gib",)),
        Need("DecodeBenchConnector", "decode benchmarks", substitute="it fills the cache with made-up KV", debug=True),
        Need("ExampleConnector", "debugging through files", debug=True),
        Need("ExampleHiddenStatesConnector", "debugging through files", debug=True),
        Need("SharedStorageConnector", "debugging through files (until 0.12)", debug=True),
        Need("P2pNcclConnector", "P/D over NCCL (until 0.23)", device="cuda"),
        Need("MultiConnector", "several connectors at once"),
    )
}  # fmt: skip

OUT_OF_SCOPE = {
    "SGLang HiCache": "a cache of SGLang, not a vLLM connector; kvprobe judges vLLM",
    "vllm-ascend connectors": "Mooncake variants for Ascend NPUs, registered by a plugin; kvprobe reads NVIDIA GPUs only",
}
"""Named, and why they are not checked."""

LIBRARY_REMEDIES = {
    "libibverbs.so.1": "install rdma-core (apt install libibverbs1 ibverbs-providers)",
    "libmlx5.so.1": "install rdma-core's providers (apt install ibverbs-providers)",
    "librdmacm.so.1": "install rdma-core (apt install librdmacm1)",
    "libnuma.so.1": "install libnuma1",
    "libcuda.so.1": "run where an NVIDIA driver is installed and visible in the container",
    "libcudart.so.12": "install nvidia-cuda-runtime-cu12, or the wheel for the CUDA that is here",
    "libcudart.so.13": "install nvidia-cuda-runtime (CUDA 13), or the wheel for the CUDA that is here",
}
"""What brings a missing system library."""
