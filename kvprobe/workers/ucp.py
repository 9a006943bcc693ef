"""The few calls of UCX's libucp that a one-sided transfer needs, by ctypes.

``ucxx``, the Python face of UCX, has messages (tag, stream, active messages) but no one-sided get and put, and NIXL's
data path is get and put. Struct layouts: ``ucp/api/ucp.h`` of UCX 1.22; every struct starts with a field mask, which
keeps them compatible over UCX 1.x (https://openucx.readthedocs.io/en/master/api/). The library is NIXL's own copy
where NIXL is installed, so that what NIXL adds can be told from what its UCX takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import importlib.util
import os
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from importlib import metadata
from pathlib import Path
from typing import Any

from kvprobe.workers.base import WorkerFailure

_FEATURE_RMA = 2
_ERR_MODE_PEER = 1
_INPROGRESS = 1
_FIRST_ERROR = 2**64 - 100
_MEMORY_TYPES = {"dram": 0, "vram": 1}
_OP_MEMORY_TYPE, _OP_MEMH = 64, 256
_OLDEST = (1, 11)

# What NIXL's UCX plugin sets unless the environment does (nixl: src/plugins/ucx), so that rungs 2 and 3 differ in NIXL only.
NIXL_SETTINGS = {"MAX_RMA_RAILS": "2", "RNDV_THRESH": "inf"}


class _Params(ctypes.Structure):
    _fields_ = [("mask", c_uint64), ("features", c_uint64), ("rest", c_uint64 * 9)]


class _WorkerParams(ctypes.Structure):
    _fields_ = [("mask", c_uint64), ("thread_mode", c_int), ("rest", c_uint64 * 23)]


class _EpParams(ctypes.Structure):
    _fields_ = [("mask", c_uint64), ("address", c_void_p), ("err_mode", c_int), ("rest", c_uint64 * 10)]


class _MemMapParams(ctypes.Structure):
    _fields_ = [
        ("mask", c_uint64), ("address", c_void_p), ("length", c_size_t), ("flags", c_uint), ("prot", c_uint),
        ("memory_type", c_int), ("rest", c_uint64),
    ]  # fmt: skip


class _RequestParam(ctypes.Structure):
    _fields_ = [
        ("mask", c_uint32), ("flags", c_uint32), ("request", c_void_p), ("callback", c_void_p), ("datatype", c_uint64),
        ("user_data", c_void_p), ("reply_buffer", c_void_p), ("memory_type", c_int), ("recv_info", c_void_p),
        ("memh", c_void_p), ("rest", c_uint64 * 3),
    ]  # fmt: skip


class Library:
    """A loaded libucp with its version and where it is from."""

    def __init__(self, path: str, origin: str) -> None:
        self.path, self.origin = path, origin
        self.ucp = ctypes.CDLL(path)
        for name, result, arguments in _PROTOTYPES:
            function = getattr(self.ucp, name)
            function.restype, function.argtypes = result, arguments
        numbers = [c_uint() for _ in range(3)]
        self.ucp.ucp_get_version(*(byref(n) for n in numbers))
        self.version = tuple(n.value for n in numbers)

    @property
    def version_text(self) -> str:
        return ".".join(str(n) for n in self.version)

    def check(self, status: int, what: str) -> None:
        """Raise WorkerFailure for a negative ucs_status_t."""
        if status < 0:
            told = self.ucp.ucs_status_string(status).decode("ascii", "replace")
            raise WorkerFailure(f"UCX: {what} failed ({told}).", _hint(what))


def _hint(what: str) -> str:
    tls = os.environ.get("UCX_TLS")
    if tls:
        return f"UCX_TLS={tls} may exclude what {what} needs."
    return "UCX_LOG_LEVEL=info shows UCX's own reason."


# ucs_status_t is a packed enum: one signed byte. The upper bytes of the register are not cleared for it.
_Status = ctypes.c_int8

_PROTOTYPES: tuple[tuple[str, Any, list[Any]], ...] = (
    ("ucs_status_string", c_char_p, [_Status]),
    ("ucp_get_version", None, [POINTER(c_uint)] * 3),
    ("ucp_config_read", _Status, [c_char_p, c_char_p, POINTER(c_void_p)]),
    ("ucp_config_modify", _Status, [c_void_p, c_char_p, c_char_p]),
    ("ucp_config_release", None, [c_void_p]),
    ("ucp_init_version", _Status, [c_uint, c_uint, POINTER(_Params), c_void_p, POINTER(c_void_p)]),
    ("ucp_cleanup", None, [c_void_p]),
    ("ucp_worker_create", _Status, [c_void_p, POINTER(_WorkerParams), POINTER(c_void_p)]),
    ("ucp_worker_destroy", None, [c_void_p]),
    ("ucp_worker_get_address", _Status, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    ("ucp_worker_progress", c_uint, [c_void_p]),
    ("ucp_ep_create", _Status, [c_void_p, POINTER(_EpParams), POINTER(c_void_p)]),
    ("ucp_ep_close_nbx", c_size_t, [c_void_p, POINTER(_RequestParam)]),
    ("ucp_ep_flush_nbx", c_size_t, [c_void_p, POINTER(_RequestParam)]),
    ("ucp_mem_map", _Status, [c_void_p, POINTER(_MemMapParams), POINTER(c_void_p)]),
    ("ucp_mem_unmap", _Status, [c_void_p, c_void_p]),
    ("ucp_rkey_pack", _Status, [c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    ("ucp_ep_rkey_unpack", _Status, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("ucp_rkey_destroy", None, [c_void_p]),
    ("ucp_get_nbx", c_size_t, [c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, POINTER(_RequestParam)]),
    ("ucp_put_nbx", c_size_t, [c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, POINTER(_RequestParam)]),
    ("ucp_request_check_status", _Status, [c_void_p]),
    ("ucp_request_free", None, [c_void_p]),
)  # fmt: skip


def find_library(cuda_major: str | None) -> Library | None:
    """NIXL's bundled libucp first (of torch's CUDA major if known), then the libucx wheel, then the system's."""
    wheels = sorted(("nixl_cu13", "nixl_cu12"), key=lambda name: name != f"nixl_cu{cuda_major}")
    if cuda_major is None:
        wheels.reverse()
    for name in wheels:
        for site in sys.path:
            found = sorted(Path(site or ".").glob(f"{name}.libs/libucp-*.so*"))
            if found:
                return Library(str(found[0]), f"{name.replace('_', '-')} {_version(name)}")
    spec = importlib.util.find_spec("libucx")
    if spec is not None and spec.origin:
        path = Path(spec.origin).parent / "lib" / "libucp.so.0"
        if path.exists():
            wheel = next((w for w in ("libucx-cu13", "libucx-cu12") if _version(w) != "?"), "libucx")
            return Library(str(path), f"{wheel} {_version(wheel)}")
    system = ctypes.util.find_library("ucp")
    if system:
        library = Library(system, f"system {system}")
        if library.version >= _OLDEST:
            return library
    return None


def _version(package: str) -> str:
    try:
        return metadata.version(package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "?"


class Node:
    """Context, worker and one registered piece of memory; after :meth:`connect` also the way to the peer's."""

    def __init__(self, library: Library, address: int, length: int, memory: str) -> None:
        self.library, self.ucp = library, library.ucp
        self.settings: dict[str, str] = {}
        self.address, self.memory_type = address, _MEMORY_TYPES[memory]
        config = self._configure()
        self.context, self.worker, self.memh = c_void_p(), c_void_p(), c_void_p()
        self.endpoint, self.rkey, self.remote = c_void_p(), c_void_p(), 0
        params = _Params(mask=1, features=_FEATURE_RMA)
        major, minor, _ = library.version
        library.check(
            self.ucp.ucp_init_version(major, minor, byref(params), config, byref(self.context)), "ucp_init"
        )
        self.ucp.ucp_config_release(config)
        worker_params = _WorkerParams()
        library.check(
            self.ucp.ucp_worker_create(self.context, byref(worker_params), byref(self.worker)),
            "ucp_worker_create",
        )
        mapped = _MemMapParams(mask=1 | 2 | 16, address=address, length=length, memory_type=self.memory_type)
        library.check(self.ucp.ucp_mem_map(self.context, byref(mapped), byref(self.memh)), "ucp_mem_map")
        self._param = _RequestParam(
            mask=_OP_MEMORY_TYPE | _OP_MEMH, memory_type=self.memory_type, memh=self.memh
        )
        self._plain = _RequestParam()

    def _configure(self) -> c_void_p:
        config = c_void_p()
        self.library.check(self.ucp.ucp_config_read(None, None, byref(config)), "ucp_config_read")
        for key, value in NIXL_SETTINGS.items():
            if f"UCX_{key}" not in os.environ:
                self.library.check(
                    self.ucp.ucp_config_modify(config, key.encode(), value.encode()), f"UCX_{key}={value}"
                )
                self.settings[f"UCX_{key}"] = value
        return config

    def describe(self) -> dict[str, Any]:
        """Worker address, remote key (hex) and address of the memory, for the peer."""
        text, length = c_void_p(), c_size_t()
        self.library.check(
            self.ucp.ucp_worker_get_address(self.worker, byref(text), byref(length)), "ucp_worker_get_address"
        )
        key, key_length = c_void_p(), c_size_t()
        self.library.check(
            self.ucp.ucp_rkey_pack(self.context, self.memh, byref(key), byref(key_length)), "ucp_rkey_pack"
        )
        return {
            "worker": ctypes.string_at(text, length.value).hex(),
            "rkey": ctypes.string_at(key, key_length.value).hex(),
            "address": self.address,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """An endpoint to the peer's worker, with NIXL's error handling mode, and its remote key."""
        worker = ctypes.create_string_buffer(bytes.fromhex(peer["worker"]))
        params = _EpParams(mask=1 | 2, address=ctypes.addressof(worker), err_mode=_ERR_MODE_PEER)
        self.library.check(
            self.ucp.ucp_ep_create(self.worker, byref(params), byref(self.endpoint)), "ucp_ep_create"
        )
        rkey = ctypes.create_string_buffer(bytes.fromhex(peer["rkey"]))
        self.library.check(
            self.ucp.ucp_ep_rkey_unpack(self.endpoint, rkey, byref(self.rkey)), "ucp_ep_rkey_unpack"
        )
        self.remote = peer["address"]

    def progress(self) -> int:
        return int(self.ucp.ucp_worker_progress(self.worker))

    def get(self, size: int, timeout_seconds: float) -> None:
        """Read ``size`` bytes of the peer's memory and wait until they are here."""
        request = self.ucp.ucp_get_nbx(
            self.endpoint, self.address, size, self.remote, self.rkey, byref(self._param)
        )
        self._wait(request, "ucp_get_nbx", timeout_seconds)

    def put(self, size: int, timeout_seconds: float) -> None:
        """Write ``size`` bytes into the peer's memory and wait until they are there (flush)."""
        request = self.ucp.ucp_put_nbx(
            self.endpoint, self.address, size, self.remote, self.rkey, byref(self._param)
        )
        self._wait(request, "ucp_put_nbx", timeout_seconds)
        self._wait(
            self.ucp.ucp_ep_flush_nbx(self.endpoint, byref(self._plain)), "ucp_ep_flush_nbx", timeout_seconds
        )

    def _wait(self, request: int, what: str, timeout_seconds: float) -> None:
        """A status pointer: 0 is done, the last hundred addresses are errors, everything else a request."""
        if request == 0:
            return
        if request >= _FIRST_ERROR:
            self.library.check(request - 2**64, what)
            return
        ends = time.monotonic() + timeout_seconds
        check, progress, worker = self.ucp.ucp_request_check_status, self.ucp.ucp_worker_progress, self.worker
        turns = 0
        while (status := check(request)) == _INPROGRESS:
            progress(worker)
            turns += 1
            if turns % 1024 == 0 and time.monotonic() > ends:
                raise WorkerFailure(f"{what} was still in progress after {timeout_seconds:.0f} s.", "The peer is stopped or unreachable.")  # fmt: skip
        self.ucp.ucp_request_free(request)
        self.library.check(status, what)

    def close(self) -> None:
        """Destroy in order: UCX prints its tables of used protocols when the worker goes."""
        if self.rkey:
            self.ucp.ucp_rkey_destroy(self.rkey)
        if self.endpoint:
            # The peer may have closed first; that is no failure of what was measured.
            with contextlib.suppress(WorkerFailure):
                self._wait(
                    self.ucp.ucp_ep_close_nbx(self.endpoint, byref(self._plain)), "ucp_ep_close_nbx", 2.0
                )
        self.ucp.ucp_mem_unmap(self.context, self.memh)
        self.ucp.ucp_worker_destroy(self.worker)
        self.ucp.ucp_cleanup(self.context)
