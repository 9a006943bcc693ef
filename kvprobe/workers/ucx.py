"""Rung 2: one big piece through raw UCX, one-sided, between two processes.

``decode`` conducts. READ is a get by decode, WRITE a put by prefill; both move prefill's bytes to decode, where they are
verified. While one side works, the other makes progress, as UCX's software emulation needs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import select
import time
from typing import Any

from kvprobe.workers.base import Link, Worker, WorkerFailure, main
from kvprobe.workers.memory import Memory, make_memory
from kvprobe.workers.ucp import Node, find_library

_INSTALL = {
    "torch": "pip install 'kvprobe[gpu]'",
    "numpy": "pip install numpy",
    "UCX": "pip install 'kvprobe[nixl]' (its UCX is used), or libucx-cu12",
}
_WARM_UPS = 2
_MIN_SAMPLES = 3
_LINK_SECONDS = 45.0
_IDLE_TURNS = 2000
_BLOCK_BYTES = 1024 * 1024


class Side:
    """Memory, registered with UCX, and the link to the other process."""

    def __init__(self, worker: Worker, role: str) -> None:
        self.worker, self.link = worker, worker.links["peer"]
        args = worker.args
        package = "torch" if args["memory"] == "vram" else "numpy"
        if importlib.util.find_spec(package) is None:
            raise _Absent(package, _INSTALL[package])
        self.memory: Memory = make_memory(args["memory"], args.get("device", 0))
        size = max(args["sizes"])
        self.memory.allocate(size)
        facts = self.memory.facts()
        cuda = str(facts["cuda"]).split(".")[0] if facts.get("cuda") else None
        library = find_library(cuda)
        if library is None:
            raise _Absent("UCX", _INSTALL["UCX"])
        if role == "prefill":
            self.memory.fill()
        self.node = Node(library, self.memory.addresses()[0], size, args["memory"])
        worker.emit(
            "setup", role=role, ucx_version=library.version_text, origin=library.origin, path=library.path,
            settings=self.node.settings, **facts,
        )  # fmt: skip

    def meet(self) -> None:
        """Exchange addresses and connect."""
        self.link.send(self.node.describe())
        self.node.connect(self.receive())

    def receive(self) -> dict[str, Any]:
        """The peer's next message; UCX makes progress while waiting."""
        ends = time.monotonic() + _LINK_SECONDS + self.worker.args["budget_seconds"]
        idle = 0
        while time.monotonic() < ends:
            idle = 0 if self.node.progress() else idle + 1
            if idle % _IDLE_TURNS == 0 or idle == 1:
                # Without traffic a short sleep leaves the core to the other side; with traffic it is never reached.
                ready, _, _ = select.select([self.link.sock], [], [], 0.0005 if idle > _IDLE_TURNS else 0)
                if ready:
                    return self.link.receive(5.0)
        raise WorkerFailure("The peer process said nothing more.")

    def move(self, operation: str, size: int, stop: float) -> None:
        """Warm up and time one size; every sample is reported at once."""
        timeout = self.worker.args["transfer_timeout_seconds"]
        copy = self.node.get if operation == "READ" else self.node.put
        for index in range(-_WARM_UPS, self.worker.args["samples"]):
            if index >= _MIN_SAMPLES and time.monotonic() > stop:
                break
            started = time.perf_counter()
            copy(size, timeout)
            seconds = time.perf_counter() - started
            self.worker.emit("sample", operation=operation, bytes=size, seconds=seconds, warm_up=index < 0)

    def wrong_words(self, size: int) -> int:
        """Words of the first ``size`` bytes here that are not prefill's."""
        block = _BLOCK_BYTES if size % _BLOCK_BYTES == 0 else size
        ids = list(range(size // block))
        return self.memory.mismatches(0, block, ids, ids)


class _Absent(Exception):
    """A package is missing: its name and how to install it."""


def run(worker: Worker) -> dict[str, Any]:
    role = worker.args["role"]
    try:
        side = Side(worker, role)
    except _Absent as absent:
        package, install = absent.args
        worker.emit("absent", package=package, install=install)
        with contextlib.suppress(OSError):
            worker.links["peer"].send({"absent": True})
        return {}
    side.meet()
    if role == "prefill":
        _serve(side)
    else:
        _conduct(worker, side)
    side.node.close()
    return {}


def _serve(side: Side) -> None:
    while True:
        order = side.receive()
        if order.get("end"):
            return
        side.move("WRITE", order["bytes"], time.monotonic() + order["seconds"])
        side.link.send({"done": True})


def _conduct(worker: Worker, side: Side) -> None:
    link: Link = side.link
    series = [(operation, size) for size in worker.args["sizes"] for operation in worker.args["operations"]]
    ends = time.monotonic() + worker.args["budget_seconds"]
    for number, (operation, size) in enumerate(series):
        share = max(0.0, ends - time.monotonic()) / (len(series) - number)
        side.memory.clear()
        if operation == "READ":
            side.move("READ", size, time.monotonic() + share)
        else:
            link.send({"bytes": size, "seconds": share})
            side.receive()
        worker.emit("verified", operation=operation, bytes=size, wrong_words=side.wrong_words(size))
    link.send({"end": True})


if __name__ == "__main__":
    main(run)
