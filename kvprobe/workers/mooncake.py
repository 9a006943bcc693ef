"""Mooncake worker: ``prefill`` writes its blocks into ``decode``'s memory, as vLLM's MooncakeConnector does.

The same job as the NIXL worker's (regions, shapes, steps), over Mooncake's TCP transport on loopback. vLLM joins
neighbouring blocks first and then hands one batch a request to ``batch_transfer_sync_write``; so does this.

Mooncake 0.3.13 listens on every address whatever it is told, and asks nobody who may write. So this process takes
a network namespace of its own, with nothing but loopback in it, before anything else; prefill is this process,
decode its child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from kvprobe.workers.base import Link, PeerGone, Worker, WorkerFailure, main
from kvprobe.workers.isolation import isolate
from kvprobe.workers.memory import DramMemory
from kvprobe.workers.nixl_shape import Ids, Shape

_PEER_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_STANDBY = "standby"
DISTRIBUTIONS = (
    "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-efa", "mooncake-transfer-engine-efa-cuda13",
)  # fmt: skip


class Engine:
    """Memory registered with a Mooncake engine that listens on loopback."""

    def __init__(self, args: dict[str, Any]) -> None:
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise WorkerFailure(
                f"Mooncake cannot be imported ({error}).",
                "kvprobe connectors MooncakeConnector tells what is missing.",
            ) from None
        self.memory = DramMemory()
        sizes: list[int] = []
        first_of_set: list[int] = []
        for region_set in args["sets"]:
            first_of_set.append(len(sizes))
            sizes += [region_set["bytes"]] * region_set["regions"]
        for size in sizes:
            self.memory.allocate(size)
        self.memory.fill()
        self.shapes = [Shape(specs, first_of_set) for specs in args["shapes"]]
        self.engine = TransferEngine()
        started = time.perf_counter()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise WorkerFailure(
                "Mooncake's engine did not start on 127.0.0.1.", "The worker's log has its reason."
            )
        made = time.perf_counter()
        if self.engine.batch_register_memory(self.memory.addresses(), sizes) != 0:
            raise WorkerFailure(
                "Mooncake refused to register the memory.", "Look at the limit of locked memory (ulimit -l)."
            )
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.facts = {
            "mooncake_version": version(),
            "engine_seconds": made - started,
            "register_seconds": time.perf_counter() - made,
            **self.memory.facts(),
        }

    def describe(self) -> dict[str, Any]:
        return {"session": self.session, "addresses": self.memory.addresses(), "facts": self.facts}


def version() -> str:
    """Name and version of the installed distribution."""
    for name in DISTRIBUTIONS:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def run(worker: Worker) -> dict[str, Any]:
    """Prefill's side; starts decode's and ends with it."""
    if not worker.args["isolated"] and not worker.args["allow_open"]:
        raise WorkerFailure(
            "Mooncake would listen on every address of this host: this process may not have a network of its own.",
            "--measure on measures nevertheless, with Mooncake's ports open while it runs.",
        )
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "kvprobe.workers.mooncake", _STANDBY, str(theirs.fileno())]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    link = Link(ours)
    try:
        link.send(worker.args)
        side = Engine(worker.args)
        peer = _receive(link)
        for role, facts in (("prefill", side.facts), ("decode", peer["facts"])):
            worker.emit("setup", role=role, isolated=worker.args["isolated"], **facts)
        return _prefill(worker, side, link, peer)
    finally:
        child.kill()


def standby(fd: int) -> None:
    """The child: decode's memory and engine, until prefill closes the link."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    link = Link(socket.socket(fileno=fd))
    with contextlib.suppress(PeerGone):
        args = link.receive(_PEER_SECONDS)
        try:
            side = Engine(args)
            link.send(side.describe())
            _decode(side, link)
        except PeerGone:
            raise
        except WorkerFailure as failure:
            link.send({"failure": failure.reason, "remedy": failure.remedy})
    os._exit(0)


def _receive(link: Link) -> dict[str, Any]:
    message = link.receive(_PEER_SECONDS)
    if "failure" in message:
        raise WorkerFailure(message["failure"], message["remedy"])
    return message


def _decode(side: Engine, link: Link) -> None:
    """Stand by: Mooncake's own threads take the writes; clear and compare when asked."""
    while True:
        message = link.receive(_PEER_SECONDS)
        if "clear" in message:
            side.memory.clear()
            link.send({"cleared": True})
        elif "verify" in message:
            shape, mine, theirs = side.shapes[message["shape"]], message["mine"], message["theirs"]
            bad = sum(
                side.memory.mismatches(group.first + r, group.descriptor_bytes, a, b)
                for group, a, b in zip(shape.groups, mine, theirs, strict=True)
                for r in range(group.regions)
                if a
            )
            link.send({"bad_words": bad})
        else:
            link.send({"closed": True})
            return


def _prefill(worker: Worker, side: Engine, link: Link, peer: dict[str, Any]) -> dict[str, Any]:
    chooser = random.Random(worker.args["seed"])
    ends_at = time.perf_counter() + worker.args["budget_seconds"]
    done = 0
    for number, step in enumerate(worker.args["steps"]):
        if time.perf_counter() > ends_at:
            worker.emit("skipped", step=step["id"], reason="the time budget was used up")
            continue
        worker.emit("step", step=step["id"], index=number + 1, total=len(worker.args["steps"]))
        shape = side.shapes[step["shape"]]
        mine, theirs = _choose(shape, step, chooser, 3), _choose(shape, step, chooser, 7)
        link.send({"clear": True})
        _receive(link)
        _samples(
            worker,
            side,
            peer,
            step,
            batch(shape, side.memory.addresses(), peer["addresses"], mine, theirs),
            ends_at,
        )
        link.send({"verify": True, "shape": step["shape"], "mine": theirs, "theirs": mine})
        bad = int(_receive(link)["bad_words"])
        worker.emit("verified", step=step["id"], bad_words=bad)
        if bad:
            raise WorkerFailure(f"Mooncake's WRITE {step['id']} left {bad:,} wrong words at the decode side.")
        done += 1
    link.send({"close": True})
    _receive(link)
    return {"steps_done": done}


def _choose(shape: Shape, step: dict[str, Any], chooser: random.Random, offset: int) -> Ids:
    ids = []
    for group, blocks in zip(shape.groups, step["blocks"], strict=True):
        if step["order"] == "shuffled":
            ids.append(chooser.sample(range(group.pool_blocks), blocks))
        else:
            first = min(offset, group.pool_blocks - blocks)
            ids.append(list(range(first, first + blocks)))
    return ids


def batch(
    shape: Shape, mine: list[int], theirs: list[int], my_ids: Ids, their_ids: Ids
) -> tuple[list[int], list[int], list[int]]:
    """Source addresses, destination addresses and lengths; blocks that are neighbours on both sides are joined."""
    sources: list[int] = []
    targets: list[int] = []
    lengths: list[int] = []
    for group, a_ids, b_ids in zip(shape.groups, my_ids, their_ids, strict=True):
        size = group.descriptor_bytes
        runs: list[tuple[int, int, int]] = []
        for a, b in zip(a_ids, b_ids, strict=True):
            if runs and runs[-1][0] + runs[-1][2] == a and runs[-1][1] + runs[-1][2] == b:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((a, b, 1))
        for region in range(group.first, group.first + group.regions):
            sources += [mine[region] + a * size for a, _, _ in runs]
            targets += [theirs[region] + b * size for _, b, _ in runs]
            lengths += [n * size for _, _, n in runs]
    return sources, targets, lengths


def _samples(
    worker: Worker,
    side: Engine,
    peer: dict[str, Any],
    step: dict[str, Any],
    lists: tuple[list[int], list[int], list[int]],
    ends_at: float,
) -> None:
    sources, targets, lengths = lists
    started = time.perf_counter()
    limit = min(step["max_seconds"], max(0.0, ends_at - started))
    for count in range(1 + step["samples"]):
        timeout = worker.args["transfer_timeout_seconds"]
        with worker.limit(timeout, f"Mooncake's WRITE {step['id']}"):
            cpu, begin = time.process_time(), time.perf_counter()
            code = side.engine.batch_transfer_sync_write(peer["session"], sources, targets, lengths)
            seconds, used = time.perf_counter() - begin, time.process_time() - cpu
        if code != 0:
            worker.emit("refused", step=step["id"], code=code, batch=len(lengths), seconds=seconds)
            raise WorkerFailure(
                f"Mooncake refused a batch of {len(lengths):,} pieces (return code {code}).",
                "Its TCP transport queues 1,024 transfers per peer unless MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER says more (at most 65535).",
            )
        worker.emit(
            "sample",
            step=step["id"],
            cold=count == 0,
            total_seconds=seconds,
            cpu_seconds=used,
            pieces=len(lengths),
        )
        if count >= step["min_samples"] and time.perf_counter() - started > limit:
            break


def entry() -> None:
    """Take the namespace while this process still has one thread, then work as every worker does."""
    if sys.argv[1:2] == [_STANDBY]:
        standby(int(sys.argv[2]))
    alone = isolate()

    def work(worker: Worker) -> dict[str, Any]:
        worker.args["isolated"] = alone
        return run(worker)

    main(work)


if __name__ == "__main__":
    entry()
