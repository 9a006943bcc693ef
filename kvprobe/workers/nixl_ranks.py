"""Tensor-parallel ranks through NIXL: every ``decode`` rank pulls from its ``prefill`` ranks, all at the same moment.

Decode's rank 0 is the starter: before each sample the ranks report ready, it names a moment a little ahead on the
host's monotonic clock, and all post at that moment. A step may let only some ranks pull (one alone), the others wait.
"""

from __future__ import annotations

import random
import select
import time
from typing import Any

from kvprobe.workers.base import Link, PeerGone, Worker, WorkerFailure, main
from kvprobe.workers.memory import Piece, make_memory
from kvprobe.workers.nixl_agent import Side, ucx_version
from kvprobe.workers.nixl_shape import Ids, Shape

_PEER_SECONDS = 60.0
_AHEAD_SECONDS = 0.003
_POLL_SECONDS = 0.001


def run(worker: Worker) -> dict[str, Any]:
    return _prefill(worker) if worker.args["role"] == "prefill" else _Decode(worker).run()


def _side(worker: Worker) -> Side:
    args = worker.args
    memory = make_memory(args["memory"], args.get("device", 0))
    side = Side(f"kvprobe-{args['role']}-{args['rank']}", memory, {**args, "shapes": []})
    worker.emit(
        "setup", role=f"{args['role']} {args['rank']}", nixl_package=side.package, nixl_version=side.version,
        ucx_version=ucx_version(), **memory.facts(), **side.timings,
    )  # fmt: skip
    return side


def _prefill(worker: Worker) -> dict[str, Any]:
    """Tell every reader where the regions are, then let NIXL answer until all have closed."""
    side = _side(worker)
    links = list(worker.links.values())
    for link in links:
        link.send({"hello": side.describe()})
    reading = {link.sock.fileno(): link for link in links}
    while reading:
        for fd in _ready(side, list(reading), time.perf_counter() + _POLL_SECONDS):
            message = reading[fd].receive(_PEER_SECONDS)
            if "close" not in message:
                raise WorkerFailure(f"A decode rank sent an unknown message: {sorted(message)}.")
            del reading[fd]
    for link in links:
        link.send({"closed": True})
    side.close()
    return {"rank": worker.args["rank"]}


def _ready(side: Side, fds: list[int], until: float) -> list[int]:
    """Readable descriptors; meanwhile NIXL's progress is driven. Empty when ``until`` has passed."""
    while True:
        found, _, _ = select.select(fds, [], [], _POLL_SECONDS)
        if found:
            return [int(fd) for fd in found]
        side.progress()
        if time.perf_counter() > until:
            return []


class _Source:
    """One prefill rank as this decode rank reads from it."""

    def __init__(
        self, side: Side, spec: dict[str, Any], hello: dict[str, Any], first_of_set: list[int]
    ) -> None:
        self.numbers = [i for i, g in enumerate(spec["groups"]) if g]
        self.specs = [g for g in spec["groups"] if g]
        self.pattern: int = spec["pattern"]
        name = side.agent.add_remote_agent(_decoded(hello["metadata"]))
        peer = name.decode() if isinstance(name, bytes) else name
        self.shape = Shape([_cut(g, "my") for g in self.specs], first_of_set)
        theirs = Shape([_cut(g, "their") for g in self.specs], first_of_set)
        self.name = peer
        self.local = self._list(side, self.shape, "NIXL_INIT_AGENT", side.describe_memory())
        self.remote = self._list(side, theirs, peer, hello)

    @staticmethod
    def _list(side: Side, shape: Shape, agent: str, memory: dict[str, Any]) -> Any:
        return shape.prepare(
            side.agent, side.version, agent, memory["addresses"], memory["device"], memory["segment"]
        )

    def indices(self, ids: Ids) -> Any:
        return self.shape.indices([ids[n] for n in self.numbers])

    def mismatches(self, side: Side, mine: Ids, theirs: Ids) -> int:
        bad = 0
        for number, spec, group in zip(self.numbers, self.specs, self.shape.groups, strict=True):
            piece = Piece(
                spec["piece_bytes"],
                spec["my_offset"],
                spec["their_stride"],
                spec["their_offset"],
                self.pattern,
            )
            for region in range(group.first, group.first + group.regions):
                bad += side.memory.mismatches(region, spec["my_stride"], mine[number], theirs[number], piece)
        return bad


def _cut(group: dict[str, Any], whose: str) -> dict[str, Any]:
    return {
        "set": group["set"],
        "regions": group["regions"],
        "descriptor_bytes": group["piece_bytes"],
        "pool_blocks": group["pool_blocks"],
        "stride": group[f"{whose}_stride"],
        "offset": group[f"{whose}_offset"],
    }


def _decoded(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


class _Decode:
    def __init__(self, worker: Worker) -> None:
        self.worker, self.args = worker, worker.args
        self.rank: int = self.args["rank"]
        self.side = _side(worker)
        first_of_set, total = [], 0
        for region_set in self.args["sets"]:
            first_of_set.append(total)
            total += region_set["regions"]
        self.peers = [worker.links[s["link"]] for s in self.args["sources"]]
        started = time.perf_counter()
        self.sources = [
            _Source(self.side, spec, self._from(link, "hello"), first_of_set)
            for spec, link in zip(self.args["sources"], self.peers, strict=True)
        ]
        worker.emit("handshake", rank=self.rank, seconds=time.perf_counter() - started)
        # Rank 0 has a line to each other rank, the others one to rank 0.
        self.others = [worker.links[name] for name in self.args["starters"]]

    def run(self) -> dict[str, Any]:
        # The same seed on every rank: vLLM's scheduler gives all ranks the same block ids.
        chooser = random.Random(self.args["seed"])
        ends_at = time.perf_counter() + self.args["budget_seconds"]
        for number, step in enumerate(self.args["steps"]):
            if self.rank == 0:
                self.worker.emit("step", step=step["id"], index=number + 1, total=len(self.args["steps"]))
            self._step(step, chooser, ends_at)
        for link in self.peers:
            link.send({"close": True})
        for link in self.peers:
            self._from(link, "closed")
        self._close()
        return {"rank": self.rank}

    def _close(self) -> None:
        for source in self.sources:
            source.local = source.remote = None
            self.side.agent.remove_remote_agent(source.name)
        self.side.close()

    def _step(self, step: dict[str, Any], chooser: random.Random, ends_at: float) -> None:
        mine, theirs = ([self._ids(step, count, pool, offset, chooser) for count, pool in self.args["pools"]] for offset in (7, 3))  # fmt: skip
        active = self.rank in step["active"]
        if active:
            self.side.memory.clear()
        stop = min(time.perf_counter() + step["max_seconds"], ends_at)
        count = 0
        while True:
            enough = count >= 1 + step["samples"] or (
                count >= 1 + step["min_samples"] and time.perf_counter() > stop
            )
            handles = self._handles(mine, theirs) if active else []
            moment = self._agree(enough)
            if moment is None:
                for handle in handles:
                    self.side.agent.release_xfer_handle(handle)
                break
            if active:
                self._pull(step, handles, moment, cold=count == 0)
            count += 1
        if active:
            bad = sum(source.mismatches(self.side, mine, theirs) for source in self.sources)
            self.worker.emit("verified", step=step["id"], rank=self.rank, bad_words=bad)
            if bad:
                raise WorkerFailure(
                    f"Decode rank {self.rank} found {bad:,} wrong words after {step['id']}: the transport corrupts data.",
                    "Do not serve over this path; report it to the NIXL and UCX projects with this run's recording.",
                )

    @staticmethod
    def _ids(step: dict[str, Any], count: int, pool: int, offset: int, chooser: random.Random) -> list[int]:
        if step["order"] == "shuffled":
            return chooser.sample(range(pool), count)
        first = min(offset, pool - count)
        return list(range(first, first + count))

    def _handles(self, mine: Ids, theirs: Ids) -> list[Any]:
        return self.side.make(
            "READ", [(s.local, s.indices(mine), s.remote, s.indices(theirs)) for s in self.sources]
        )

    def _pull(self, step: dict[str, Any], handles: list[Any], moment: float, *, cold: bool) -> None:
        timeout = self.args["transfer_timeout_seconds"]
        with self.worker.limit(timeout + 5.0, f"{step['id']} on rank {self.rank}"):
            while time.perf_counter() < moment:
                pass
            late = time.perf_counter() - moment
            sample = self.side.run(handles, "READ", timeout)
        self.worker.emit(
            "sample", step=step["id"], rank=self.rank, cold=cold, late_seconds=late,
            seconds=late + sample["total_seconds"], nixl_descriptors=sample["nixl_descriptors"],
        )  # fmt: skip

    def _agree(self, enough: bool) -> float | None:
        """The common moment of the next sample; None: the step is over. Rank 0 decides."""
        if self.rank:
            self.others[0].send({"ready": True})
            moment = self._from(self.others[0], "go")
            return None if moment is None else float(moment)
        for link in self.others:
            self._from(link, "ready")
        moment = None if enough else time.perf_counter() + _AHEAD_SECONDS
        for link in self.others:
            link.send({"go": moment})
        return moment

    def _from(self, link: Link, key: str) -> Any:
        if not _ready(self.side, [link.sock.fileno()], time.perf_counter() + _PEER_SECONDS):
            raise PeerGone(f"A peer process was silent for {_PEER_SECONDS:.0f} s.")
        message = link.receive(_PEER_SECONDS)
        if key not in message:
            raise WorkerFailure(f"A peer sent {sorted(message)} where {key!r} was expected.")
        return message[key]


if __name__ == "__main__":
    main(run)
