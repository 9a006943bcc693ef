"""``TransferEngine`` as the worker uses it. STAND_IN_FAULT: ``init``, ``register``, ``corrupt`` or ``deaf``."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time

_DEFAULT_QUEUE = 1024


class TransferEngine:
    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int:
        assert (metadata, protocol) == ("P2PHANDSHAKE", "tcp")
        if os.environ.get("STAND_IN_FAULT") == "init":
            return -1
        self._server = socket.create_server((host, 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self._peers: dict[str, socket.socket] = {}
        return 0

    def get_rpc_port(self) -> int:
        return int(self._server.getsockname()[1])

    def batch_register_memory(self, addresses: list[int], sizes: list[int]) -> int:
        return -1 if os.environ.get("STAND_IN_FAULT") == "register" else 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        fault = os.environ.get("STAND_IN_FAULT")
        if fault == "deaf":
            time.sleep(600)
        limit = int(os.environ.get("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", _DEFAULT_QUEUE))
        if len(lengths) > limit:
            return -1
        if session not in self._peers:
            host, port = session.split(":")
            self._peers[session] = socket.create_connection((host, int(port)))
        peer = self._peers[session]
        for source, target, length in zip(sources, targets, lengths, strict=True):
            data = bytearray(ctypes.string_at(source, length))
            if fault == "corrupt":
                data[0] ^= 1
            peer.sendall(struct.pack("!QQ", target, length) + data)
            assert peer.recv(1) == b"."
        return 0

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(16):
                target, length = struct.unpack("!QQ", head)
                ctypes.memmove(target, stream.read(length), length)
                connection.sendall(b".")
