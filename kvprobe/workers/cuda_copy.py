"""Rung 1: plain copies, nothing but the hardware and the driver (or the kernel) in between.

VRAM (one process, prefill's GPU is ``cuda:0``, decode's ``cuda:1``): the peer copy that torch issues, and the ways
through host memory. DRAM: memcpy within a process, and ``process_vm_readv`` between two (roles ``holder`` and
``reader``), which is what UCX's cma transport does. Bytes always flow from prefill to decode and are verified.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

from kvprobe.workers.base import Link, Worker, WorkerFailure, main

CHUNK_BYTES = 8 * 1024 * 1024
_WARM_UPS = 2
_MIN_SAMPLES = 5
_LINK_SECONDS = 30.0
_PR_SET_PTRACER = 0x59616D61


class Budget:
    """Shares the time that is left among the series that are left."""

    def __init__(self, seconds: float, series: int) -> None:
        self._ends = time.monotonic() + seconds
        self._left = series

    def take(self) -> float:
        """When the next series has to stop, on the monotonic clock."""
        now = time.monotonic()
        share = max(0.0, self._ends - now) / max(1, self._left)
        self._left -= 1
        return now + share


def sample(
    worker: Worker, method: str, size: int, copy: Callable[[], None], wanted: int, stop: float
) -> None:
    """Warm up, then time ``copy`` until there are ``wanted`` samples or, after five, until ``stop``."""
    for _ in range(_WARM_UPS):
        copy()
    for index in range(wanted):
        if time.monotonic() > stop and index >= _MIN_SAMPLES:
            break
        started = time.perf_counter()
        copy()
        worker.emit("sample", method=method, bytes=size, seconds=time.perf_counter() - started)


def run(worker: Worker) -> dict[str, Any]:
    role = worker.args["role"]
    if role == "vram":
        return _vram(worker)
    if importlib.util.find_spec("numpy") is None:
        worker.emit("absent", package="numpy", install="pip install numpy")
        return {}
    link = worker.links["peer"]
    return _holder(worker, link) if role == "holder" else _reader(worker, link)


def _vram(worker: Worker) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        worker.emit("absent", package="torch", install="pip install 'kvprobe[gpu]'")
        return {}
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        raise WorkerFailure(
            f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices where it needs two.",
            "Check that torch is built for this driver's CUDA (nvidia-smi shows it).",
        )
    wanted, sizes = worker.args["samples"], worker.args["sizes"]
    copies = VramCopies(torch)
    worker.emit("setup", **copies.facts())
    methods = ("peer", "staged_pipelined", "staged_pinned", "staged_pageable")
    budget = Budget(worker.args["budget_seconds"], len(sizes) * len(methods))
    for size in sizes:
        try:
            copies.allocate(size)
        except torch.cuda.OutOfMemoryError:
            worker.emit("skipped", bytes=size, reason="GPU memory ran out")
            continue
        for method in methods:
            copies.destination.zero_()
            copies.synchronize()
            try:
                sample(worker, method, size, copies.method(method), wanted, budget.take())
                worker.emit("verified", method=method, bytes=size, ok=copies.arrived())
            except RuntimeError as error:  # pinned host memory ran out, or the driver refused the copy
                worker.emit(
                    "skipped",
                    method=method,
                    bytes=size,
                    reason=(str(error) or type(error).__name__).splitlines()[0][:300],
                )
    return {}


class VramCopies:
    """Source on prefill's GPU, destination on decode's, and a host buffer, each ``size`` bytes."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.first, self.second = torch.device("cuda", 0), torch.device("cuda", 1)
        self.source: Any = None
        self.destination: Any = None
        self.host: Any = None
        self.pageable: Any = None
        self.down, self.up = torch.cuda.Stream(self.first), torch.cuda.Stream(self.second)

    def facts(self) -> dict[str, Any]:
        torch = self.torch
        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "gpus": [torch.cuda.get_device_name(d) for d in (self.first, self.second)],
            "peer_access": torch.cuda.can_device_access_peer(self.second, self.first),
            "peer_access_back": torch.cuda.can_device_access_peer(self.first, self.second),
        }

    def allocate(self, size: int) -> None:
        torch = self.torch
        self.source = self.destination = self.host = self.pageable = None
        torch.cuda.empty_cache()
        self.source = torch.arange(size // 4, dtype=torch.int32, device=self.first)
        self.destination = torch.zeros(size // 4, dtype=torch.int32, device=self.second)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize(self.first)
        self.torch.cuda.synchronize(self.second)

    def arrived(self) -> bool:
        want = self.torch.arange(self.destination.numel(), dtype=self.torch.int32, device=self.second)
        return bool(self.torch.equal(self.destination, want))

    def method(self, name: str) -> Callable[[], None]:
        torch = self.torch
        if name == "peer":
            return self._peer
        if name == "staged_pageable":
            if self.pageable is None:
                self.pageable = torch.zeros(self.source.numel(), dtype=torch.int32)
            return lambda: self._serial(self.pageable)
        if self.host is None:
            self.host = torch.empty(self.source.numel(), dtype=torch.int32, pin_memory=True)
        return self._pipelined if name == "staged_pipelined" else lambda: self._serial(self.host)

    def _peer(self) -> None:
        self.destination.copy_(self.source, non_blocking=True)
        self.synchronize()

    def _serial(self, host: Any) -> None:
        host.copy_(self.source, non_blocking=True)
        self.torch.cuda.synchronize(self.first)
        self.destination.copy_(host, non_blocking=True)
        self.torch.cuda.synchronize(self.second)

    def _pipelined(self) -> None:
        """While chunk i goes up to the second GPU, chunk i + 1 comes down from the first."""
        torch, words = self.torch, CHUNK_BYTES // 4
        for start in range(0, self.source.numel(), words):
            part = slice(start, start + words)
            with torch.cuda.stream(self.down):
                self.host[part].copy_(self.source[part], non_blocking=True)
                arrived = self.down.record_event()
            with torch.cuda.stream(self.up):
                self.up.wait_event(arrived)
                self.destination[part].copy_(self.host[part], non_blocking=True)
        self.synchronize()


def _holder(worker: Worker, link: Link) -> dict[str, Any]:
    """Prefill's part in DRAM: own the bytes, let exactly the reader in, wait."""
    import numpy

    reader = link.receive(_LINK_SECONDS)["pid"]
    # Yama (ptrace_scope 1, the default of many distributions) lets only a parent read a process; name the reader.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, reader, 0, 0, 0)
    source = numpy.arange(max(worker.args["sizes"]) // 4, dtype=numpy.uint32)
    link.send({"pid": os.getpid(), "address": int(source.ctypes.data)})
    link.receive(worker.args["budget_seconds"] + _LINK_SECONDS)
    return {}


def _reader(worker: Worker, link: Link) -> dict[str, Any]:
    import numpy

    wanted, sizes = worker.args["samples"], worker.args["sizes"]
    link.send({"pid": os.getpid()})
    peer = link.receive(_LINK_SECONDS)
    largest = max(sizes)
    destination = numpy.zeros(largest // 4, dtype=numpy.uint32)
    budget = Budget(worker.args["budget_seconds"], 2 * len(sizes))
    refused = False
    for size in sizes:
        part = destination[: size // 4]
        part[:] = 0
        stop = budget.take()
        if not refused:
            try:
                sample(worker, "process_vm_readv", size, _remote_copy(peer, part, size), wanted, stop)
                ok = bool((part == numpy.arange(size // 4, dtype=numpy.uint32)).all())
                worker.emit("verified", method="process_vm_readv", bytes=size, ok=ok)
            except OSError as error:
                refused = True
                worker.emit("skipped", method="process_vm_readv", reason=_refusal(error))
        local = numpy.arange(size // 4, dtype=numpy.uint32)
        part[:] = 0
        sample(worker, "memcpy", size, lambda a=part, b=local: numpy.copyto(a, b), wanted, budget.take())  # type: ignore[misc]
        worker.emit("verified", method="memcpy", bytes=size, ok=bool((part == local).all()))
    link.send({"done": True})
    return {}


def _refusal(error: OSError) -> str:
    return (
        f"the kernel refused process_vm_readv ({error.strerror}); UCX's cma transport is refused too "
        "(a container needs CAP_SYS_PTRACE or one user namespace for both processes)"
    )


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _remote_copy(peer: dict[str, int], destination: Any, size: int) -> Callable[[], None]:
    """process_vm_readv(2) of the whole piece; the kernel moves at most 2 GiB a call."""
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_int, ctypes.POINTER(_Iovec), ctypes.c_ulong, ctypes.POINTER(_Iovec), ctypes.c_ulong, ctypes.c_ulong]  # fmt: skip
    base = int(destination.ctypes.data)

    def copy() -> None:
        done = 0
        while done < size:
            mine = _Iovec(base + done, size - done)
            theirs = _Iovec(peer["address"] + done, size - done)
            moved = call(peer["pid"], ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
            if moved <= 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            done += moved

    return copy


if __name__ == "__main__":
    main(run)
