"""One side of a NIXL transfer: agent, registered regions, descriptor lists, timed requests."""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib
import os
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from kvprobe.workers.base import WorkerFailure
from kvprobe.workers.limits import locked_memory_hint, shared_memory_hint
from kvprobe.workers.memory import Memory, StagedMemory
from kvprobe.workers.nixl_shape import Ids, Shape

MODULES = ("nixl_cu13", "nixl_cu12", "nixl")


def import_nixl() -> tuple[Any, str, str]:
    """``(module nixl._api, package name, version)`` of the NIXL that is installed. vLLM's own settings go first."""
    # vLLM 0.33 sets this before it imports NIXL (vllm/distributed/kv_transfer/.../nixl): a guard against leaks.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    # NIXL's Python logger writes to stdout; the report must not depend on it.
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    problems = []
    order = sorted(MODULES, key=lambda name: name != _preferred())
    for name in order:
        try:
            api = importlib.import_module(f"{name}._api")
        except ImportError as error:
            problems.append(f"{name}: {error}")
            continue
        return api, name, _version(name)
    raise WorkerFailure(
        f"NIXL cannot be imported ({'; '.join(problems)}).",
        "Install it where vLLM runs: pip install 'kvprobe[nixl]'.",
    )


def _preferred() -> str:
    """The wheel for the CUDA major of an installed torch, so that both sides load one CUDA runtime."""
    try:
        cuda = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text()
    except (metadata.PackageNotFoundError, OSError):
        return "nixl_cu12" if os.environ.get("KVPROBE_NIXL") is None else os.environ["KVPROBE_NIXL"]
    match = re.search(r"cuda[^=]*= '(\d+)", cuda)
    return f"nixl_cu{match[1]}" if match else "nixl_cu12"


def _version(package: str) -> str:
    try:
        return metadata.version(package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "unknown"


def ucx_version() -> str | None:
    """The version of the libucp that is mapped into this process, asked of the library itself."""
    match = re.search(r"(/\S*libucp[-.]\S*)", Path("/proc/self/maps").read_text())
    if match is None:
        return None
    library = ctypes.CDLL(match[1])
    library.ucp_get_version_string.restype = ctypes.c_char_p
    return str(library.ucp_get_version_string().decode())


class Side:
    """An agent with its memory; the peer's memory once :meth:`connect` has run."""

    def __init__(self, name: str, memory: Memory, args: dict[str, Any]) -> None:
        import numpy

        self.np = numpy
        self.memory = memory
        self.timings: dict[str, float] = {}
        started = time.perf_counter()
        sizes: list[int] = []
        first_of_set: list[int] = []
        for region_set in args["sets"]:
            first_of_set.append(len(sizes))
            sizes += [region_set["bytes"]] * region_set["regions"]
        self.shapes = [Shape(specs, first_of_set) for specs in args["shapes"]]
        for size in sizes:
            memory.allocate(size)
        memory.fill(args.get("pattern", 0))
        self.timings["memory_seconds"] = time.perf_counter() - started
        self.api, self.package, self.version = import_nixl()
        started = time.perf_counter()
        config = self.api.nixl_agent_config(
            backends=[], capture_telemetry=True, enable_prog_thread=bool(args.get("progress_thread", True))
        )
        self.agent = self._agent(name, config)
        self._create_backend(dict(args.get("backend") or {}))
        self.timings["agent_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        regions = [(a, n, memory.device, "") for a, n in zip(memory.addresses(), sizes, strict=True)]
        self.registered = self._register(regions, memory.segment)
        self.timings["register_seconds"] = time.perf_counter() - started
        self.peer_name = ""

    def _agent(self, name: str, config: Any) -> Any:
        try:
            return self.api.nixl_agent(name, config)
        except Exception as error:  # NIXL's exceptions share no base class
            where = os.environ.get("NIXL_PLUGIN_DIR")
            raise WorkerFailure(
                f"NIXL could not start: {str(error).rstrip('.!') or type(error).__name__}.",
                f"NIXL_PLUGIN_DIR={where} holds no UCX plugin: unset it."
                if where
                else "Reinstall the nixl wheel: its plugins (UCX among them) lie beside it.",
            ) from error

    def _create_backend(self, parameters: dict[str, str]) -> None:
        if "UCX" not in self.agent.get_plugin_list():
            raise WorkerFailure(
                "This NIXL has no UCX plugin.",
                "Unset NIXL_PLUGIN_DIR, or reinstall the nixl wheel.",
            )
        try:
            self.agent.create_backend("UCX", parameters)
        except Exception as error:  # NIXL's exceptions share no base class
            tls = os.environ.get("UCX_TLS")
            hint = shared_memory_hint() or (
                f"UCX_TLS={tls} may exclude every usable transport."
                if tls
                else "The worker's log has UCX's reason."
            )
            raise WorkerFailure(
                f"NIXL could not create its UCX backend ({type(error).__name__}).", hint
            ) from error

    def _register(self, regions: list[Any], segment: str) -> Any:
        try:
            return self.agent.register_memory(regions, segment)
        except Exception as error:  # NIXL's exceptions share no base class
            size = sum(region[1] for region in regions)
            raise WorkerFailure(
                f"NIXL could not register {len(regions)} regions of {size / 2**20:,.0f} MiB together ({type(error).__name__}).",
                locked_memory_hint(size) or "The worker's log has UCX's reason.",
            ) from error

    def describe(self) -> dict[str, Any]:
        """What the peer needs: metadata, addresses, segment."""
        return {
            "metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(),
            **self.describe_memory(),
        }

    def describe_memory(self) -> dict[str, Any]:
        return {
            "addresses": self.memory.addresses(),
            "device": self.memory.device,
            "segment": self.memory.segment,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """Add the peer and prepare both descriptor lists, as vLLM does once per engine pair."""
        started = time.perf_counter()
        name = self.agent.add_remote_agent(base64.b64decode(peer["metadata"]))
        self.peer_name = name.decode() if isinstance(name, bytes) else name
        self.timings["add_remote_agent_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        mine, theirs = self.describe_memory(), peer
        for shape in self.shapes:
            shape.local = self._prepare(shape, "NIXL_INIT_AGENT", mine)
            shape.remote = self._prepare(shape, self.peer_name, theirs)
        self.timings["prepare_descriptors_seconds"] = time.perf_counter() - started

    def _prepare(self, shape: Shape, agent: str, memory: dict[str, Any]) -> Any:
        return shape.prepare(
            self.agent, self.version, agent, memory["addresses"], memory["device"], memory["segment"]
        )

    def mismatches(self, shape: Shape, mine: Ids, theirs: Ids) -> int:
        """Words that did not arrive, over all groups."""
        return sum(
            self.memory.mismatches(group.first + r, group.descriptor_bytes, a, b)
            for group, a, b in zip(shape.groups, mine, theirs, strict=True)
            for r in range(group.regions)
            if a
        )

    def stage(self, shape: Shape, ids: Ids, *, to_host: bool) -> float:
        """Copy the blocks between device and host buffer; seconds. Only for staged memory."""
        memory = self.memory
        assert isinstance(memory, StagedMemory)
        started = time.perf_counter()
        for group, blocks in zip(shape.groups, ids, strict=True):
            for region in range(group.first, group.first + group.regions):
                memory.copy_blocks(region, group.descriptor_bytes, blocks, to_host=to_host)
        memory.synchronize()
        return time.perf_counter() - started

    def transfer(
        self, shape: Shape, operation: str, requests: list[tuple[Any, Any]], timeout_seconds: float
    ) -> dict[str, Any]:
        """Post the requests at once and poll until all are done; seconds count from the first post.

        Returns ``make_seconds``, ``post_seconds``, ``total_seconds``, ``request_seconds`` (each request's end),
        ``cpu_seconds`` and NIXL's own telemetry of the first request.
        """
        started = time.perf_counter()
        handles = self.make(
            operation, [(shape.local, mine, shape.remote, theirs) for mine, theirs in requests]
        )
        return {
            "make_seconds": time.perf_counter() - started,
            **self.run(handles, operation, timeout_seconds),
        }

    def make(self, operation: str, requests: list[tuple[Any, Any, Any, Any]]) -> list[Any]:
        """Request handles for ``(local list, its indices, remote list, its indices)``."""
        return [
            self.agent.make_prepped_xfer(operation, local, mine, remote, theirs, b"kvprobe")
            for local, mine, remote, theirs in requests
        ]

    def run(self, handles: list[Any], operation: str, timeout_seconds: float) -> dict[str, Any]:
        """Post what :meth:`make` made, poll until all are done, release; the figures of :meth:`transfer`."""
        agent = self.agent
        cpu = time.process_time()
        made = time.perf_counter()
        try:
            states = [agent.transfer(handle) for handle in handles]
            posted = time.perf_counter()
            ends = self._poll(handles, states, made, timeout_seconds)
        except WorkerFailure:
            raise
        except Exception as error:  # NIXL's exceptions share no base class
            raise WorkerFailure(
                f"NIXL reported {type(error).__name__} during {operation}.",
                "The peer died, or UCX lost the connection; the worker's log has UCX's reason.",
            ) from error
        used = time.process_time() - cpu
        telemetry = agent.get_xfer_telemetry(handles[0])
        result = {
            "post_seconds": posted - made,
            "total_seconds": max(ends),
            "request_seconds": ends,
            "cpu_seconds": used,
            "nixl_descriptors": telemetry.descCount,
            "nixl_bytes": telemetry.totalBytes,
            "nixl_transfer_seconds": telemetry.xferDuration / 1e6,
            "nixl_post_seconds": telemetry.postDuration / 1e6,
        }
        started = time.perf_counter()
        for handle in handles:
            agent.release_xfer_handle(handle)
        result["release_seconds"] = time.perf_counter() - started
        return result

    def _poll(
        self, handles: list[Any], states: list[str], made: float, timeout_seconds: float
    ) -> list[float]:
        ends = [0.0] * len(handles)
        open_ = set(range(len(handles)))
        polls = 0
        while True:
            for i in list(open_):
                if states[i] == "PROC":
                    states[i] = self.agent.check_xfer_state(handles[i])
                if states[i] == "DONE":
                    ends[i] = time.perf_counter() - made
                    open_.discard(i)
                elif states[i] != "PROC":
                    raise WorkerFailure(f"NIXL transfer ended in state {states[i]}.")
            if not open_:
                return ends
            polls += 1
            if polls % 256 == 0 and time.perf_counter() - made > timeout_seconds:
                raise WorkerFailure(
                    f"A NIXL transfer was still in progress after {timeout_seconds:.0f} s.",
                    "The peer is stopped or unreachable; NIXL itself has no transfer timeout.",
                )

    def progress(self) -> None:
        """Let NIXL answer the peer (needed without a progress thread)."""
        self.agent.get_new_notifs()

    def close(self) -> None:
        """Destroy in order: UCX prints its tables of used protocols when the worker goes."""
        for shape in self.shapes:
            shape.local = shape.remote = None
        gc.collect()
        if self.peer_name:
            self.agent.remove_remote_agent(self.peer_name)
        self.agent.deregister_memory(self.registered)
        self.agent = None
        gc.collect()
