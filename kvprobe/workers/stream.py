"""One plain TCP stream between two nodes: what the network gives without UCX. ``prefill`` sends, ``decode`` receives and times."""

from __future__ import annotations

import time
from typing import Any

from kvprobe.workers.base import Link, PeerGone, Worker, main

_CHUNK = 4 << 20
_WARM_UPS = 1
_LINK_SECONDS = 60.0


def run(worker: Worker) -> dict[str, Any]:
    link = worker.links["peer"]
    return _send(worker, link) if worker.args["role"] == "prefill" else _receive(worker, link)


def _send(worker: Worker, link: Link) -> dict[str, Any]:
    data = memoryview(bytes(_CHUNK))
    largest = max(worker.args["sizes"])
    while True:
        left = int(link.receive(_LINK_SECONDS).get("send", 0))
        if not 0 < left <= largest:
            return {}
        link.sock.settimeout(worker.args["transfer_timeout_seconds"])
        try:
            while left > 0:
                left -= link.sock.send(data[: min(left, _CHUNK)])
        except OSError:
            raise PeerGone("The peer process took no more data.") from None


def _receive(worker: Worker, link: Link) -> dict[str, Any]:
    buffer = memoryview(bytearray(_CHUNK))
    size = max(worker.args["sizes"])
    stop = time.monotonic() + worker.args["budget_seconds"]
    for index in range(-_WARM_UPS, worker.args["samples"]):
        if index > 0 and time.monotonic() > stop:
            break
        started = time.perf_counter()
        link.send({"send": size})
        link.sock.settimeout(worker.args["transfer_timeout_seconds"])
        left = size
        try:
            while left > 0:
                got = link.sock.recv_into(buffer[: min(left, _CHUNK)])
                if not got:
                    raise PeerGone("The peer process closed the connection.")
                left -= got
        except OSError as error:
            raise PeerGone(f"The stream stood still: {error}.") from None
        worker.emit("sample", bytes=size, seconds=time.perf_counter() - started, warm_up=index < 0)
    link.send({"send": 0})
    return {}


if __name__ == "__main__":
    main(run)
