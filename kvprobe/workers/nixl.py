"""NIXL worker: ``prefill`` holds the KV cache, ``decode`` conducts; ``both`` runs the two in one process.

The job's ``steps`` are executed in order. READ is posted by decode, WRITE by prefill, always moving
prefill's blocks to decode, where the bytes are verified. Every sample is an event the moment it exists.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from typing import Any

from kvprobe.workers.base import Link, PeerGone, Worker, WorkerFailure, main
from kvprobe.workers.memory import make_memory
from kvprobe.workers.nixl_agent import Side, ucx_version

_PEER_SECONDS = 60.0
_PROGRESS_SECONDS = 0.002
_ALIVE_SECONDS = 10.0


def run(worker: Worker) -> dict[str, Any]:
    role = worker.args["role"]
    if role == "both":
        return _both(worker)
    link = worker.links["peer"]
    return _prefill(worker, link) if role == "prefill" else _decode(worker, link)


def _both(worker: Worker) -> dict[str, Any]:
    """Two agents in one process: cuda_ipc refuses that ("same process"), which is what this shows."""
    ends = socket.socketpair()
    failures: list[BaseException] = []

    def prefill() -> None:
        try:
            _prefill(worker, Link(ends[0]))
        except BaseException as error:  # noqa: BLE001  reported by the main thread, which would wait forever otherwise
            failures.append(error)
            ends[0].close()

    thread = threading.Thread(target=prefill, daemon=True)
    thread.start()
    try:
        result = _decode(worker, Link(ends[1]))
    except WorkerFailure:
        if failures:
            raise failures[0] from None
        raise
    thread.join(timeout=5)
    return result


def _side(worker: Worker, role: str) -> Side:
    args = worker.args
    device = args.get(f"{role}_device", args.get("device", 0))
    memory = make_memory(args.get(f"{role}_memory", args["memory"]), device)
    side = Side(f"kvprobe-{role}", memory, args)
    worker.emit(
        "setup",
        role=role,
        nixl_package=side.package,
        nixl_version=side.version,
        ucx_version=ucx_version(),
        **memory.facts(),
        **side.timings,
    )
    return side


def _prefill(worker: Worker, link: Link) -> dict[str, Any]:
    side = _side(worker, "prefill")
    link.send({"hello": side.describe()})
    side.connect(_expect(side, link, "hello"))
    while True:
        message = _next(side, link)
        if "write" in message:
            order = message["write"]
            samples = _samples(worker, side, "WRITE", order, order["prefill_ids"], order["decode_ids"], link)
            link.send({"written": samples})
        elif "stage" in message:
            link.send(
                {
                    "staged": [
                        side.stage(side.shapes[message["shape"]], ids, to_host=True)
                        for ids in message["stage"]
                    ]
                }
            )
        elif "close" in message:
            side.close()
            link.send({"closed": True})
            return {"role": "prefill"}
        else:
            raise WorkerFailure(f"The decode side sent an unknown message: {sorted(message)}.")


def _decode(worker: Worker, link: Link) -> dict[str, Any]:
    side = _side(worker, "decode")
    hello = _expect(side, link, "hello")
    link.send({"hello": side.describe()})
    side.connect(hello)
    worker.emit("handshake", **{k: v for k, v in side.timings.items() if k.startswith(("add_", "prepare_"))})
    steps = worker.args["steps"]
    ends_at = time.perf_counter() + worker.args["budget_seconds"]
    chooser = random.Random(worker.args["seed"])
    done = 0
    slowest: dict[str, float] = {}
    for number, step in enumerate(steps):
        size = side.shapes[step["shape"]].bytes(step["blocks"]) * step.get("in_flight", 1)
        expected = size * slowest.get(step["order"], 0.0) * (1 + step["min_samples"])
        if time.perf_counter() + expected > ends_at:
            worker.emit("skipped", step=step["id"], reason="the time budget was used up")
            continue
        worker.emit("step", step=step["id"], index=number + 1, total=len(steps))
        seconds = _step(worker, side, link, step, chooser, ends_at)
        slowest[step["order"]] = max(slowest.get(step["order"], 0.0), seconds / size)
        done += 1
        if number == 0 and seconds > (worker.args.get("stop_above_seconds") or float("inf")):
            for left in steps[1:]:
                worker.emit("skipped", step=left["id"], reason="the first step showed no gain")
            break
    link.send({"close": True})
    _expect(side, link, "closed")
    side.close()
    return {"role": "decode", "steps_done": done}


def _step(
    worker: Worker, side: Side, link: Link, step: dict[str, Any], chooser: random.Random, ends_at: float
) -> float:
    """Measure one series and verify it; returns the seconds of its last sample."""
    requests = range(step.get("in_flight", 1))
    prefill_ids: list[list[list[int]]] = [[] for _ in requests]
    decode_ids: list[list[list[int]]] = [[] for _ in requests]
    shape = side.shapes[step["shape"]]
    for group, blocks in zip(shape.groups, step["blocks"], strict=True):
        wanted = blocks * len(prefill_ids)
        for target, offset in ((prefill_ids, 3), (decode_ids, 7)):
            ids = _block_ids(step["order"], group.pool_blocks, wanted, offset, chooser)
            for i, request in enumerate(target):
                request.append(ids[i * blocks : (i + 1) * blocks])
    order = {**step, "seconds_left": max(0.0, ends_at - time.perf_counter())}
    verify = worker.args.get("verify", True)
    if verify:
        side.memory.clear()
    if step["op"] == "READ":
        seconds = _samples(worker, side, "READ", order, decode_ids, prefill_ids, link)
    else:
        link.send({"write": {**order, "prefill_ids": prefill_ids, "decode_ids": decode_ids}})
        seconds = float(_expect(side, link, "written"))
    if verify:
        bad: int = sum(
            side.mismatches(shape, mine, theirs) for mine, theirs in zip(decode_ids, prefill_ids, strict=True)
        )
        worker.emit("verified", step=step["id"], bad_words=bad)
        if bad:
            raise WorkerFailure(
                f"{step['op']} {step['id']} left {bad:,} wrong words at the decode side: the transport corrupts data.",
                "Do not serve over this path; report it to the NIXL and UCX projects with this run's recording.",
            )
    return seconds


def _block_ids(order: str, pool: int, wanted: int, offset: int, chooser: random.Random) -> list[int]:
    if wanted > pool:
        raise WorkerFailure(f"{wanted} blocks do not fit into a pool of {pool}.")
    if order == "shuffled":
        return chooser.sample(range(pool), wanted)
    first = min(offset, pool - wanted)
    return list(range(first, first + wanted))


def _samples(
    worker: Worker,
    side: Side,
    operation: str,
    step: dict[str, Any],
    mine: list[Any],
    theirs: list[Any],
    link: Link,
) -> float:
    """One cold sample of this shape, then warm ones: as many as asked for, within the step's seconds.

    Returns the seconds of the last one.
    """
    shape = side.shapes[step["shape"]]
    requests = [(shape.indices(a), shape.indices(b)) for a, b in zip(mine, theirs, strict=True)]
    started = told = time.perf_counter()
    limit = min(step["max_seconds"], step["seconds_left"])
    count = 0
    sample: dict[str, Any] = {}
    timeout = worker.args["transfer_timeout_seconds"]
    while count < 1 + step["samples"]:
        with worker.limit(timeout + 5.0, f"{operation} {step['id']}"):
            staged: dict[str, float] = {}
            if side.memory.staged and operation == "READ":
                link.send({"stage": theirs, "shape": step["shape"]})
                staged["stage_out_seconds"] = sum(_expect(side, link, "staged"))
            sample = side.transfer(shape, operation, requests, timeout) | staged
            if side.memory.staged:
                sample["stage_in_seconds"] = sum(side.stage(shape, ids, to_host=False) for ids in mine)
        worker.emit("sample", step=step["id"], cold=count == 0, **sample)
        count += 1
        if time.perf_counter() - told > _ALIVE_SECONDS:
            # A long series is no silence: the other side waits for the next message only so long.
            link.send({"alive": True})
            told = time.perf_counter()
        if count >= 1 + step.get("min_samples", 1) and time.perf_counter() - started > limit:
            break
    return float(
        sample["total_seconds"] + sample.get("stage_out_seconds", 0.0) + sample.get("stage_in_seconds", 0.0)
    )


def _expect(side: Side, link: Link, key: str) -> Any:
    message = _next(side, link)
    if key not in message:
        raise WorkerFailure(f"The peer sent {sorted(message)} where {key!r} was expected.")
    return message[key]


def _next(side: Side, link: Link) -> dict[str, Any]:
    """The next message; meanwhile NIXL's progress is driven, without which emulated transfers stand still."""
    ends_at = time.perf_counter() + _PEER_SECONDS
    while time.perf_counter() < ends_at:
        readable, _, _ = select.select([link.sock], [], [], _PROGRESS_SECONDS)
        if readable:
            message = link.receive(_PEER_SECONDS)
            if "alive" not in message:
                return message
            ends_at = time.perf_counter() + _PEER_SECONDS
        side.progress()
    raise PeerGone(f"The peer process was silent for {_PEER_SECONDS:.0f} s.")


if __name__ == "__main__":
    main(run)
