"""Starts the simulated deployment and serves it until it is killed or its parent is gone."""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.simulator import engine  # noqa: E402
from tests.simulator.state import Plan, State, metrics_page  # noqa: E402

ROLES = ("prefill", "decode", "proxy", "colocated", "render")
GENERATE = ("/v1/completions", "/inference/v1/generate")
GREETING = bytes.fromhex("ff00000000000000017f")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State
    role: str

    clock: engine.Clock

    def parse_request(self) -> bool:
        self.clock = engine.Clock()
        return super().parse_request()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is http.server's
        return

    def do_GET(self) -> None:
        plan = self.state.plan
        model = plan.models.get(self.role, "m")
        if self.path == "/simulator/log":
            return self.answer({
                "log": self.state.log,
                "side_channel_bytes": self.state.side_channel_bytes.hex(),
                "counters": self.state.counters,
            })  # fmt: skip
        if not self.allowed():
            return None
        if self.path == "/v1/models":
            return self.answer({"data": [{"id": model, "max_model_len": plan.max_model_len}]})
        if self.path == "/version":
            return self.answer({"version": plan.versions.get(self.role, "0.30.0")})
        if self.path == "/health":
            return self.reply(200, b"", "text/plain")
        if self.path == "/metrics" and not self.state.has("no_metrics"):
            return self.reply(200, metrics_page(self.state, self.role).encode(), "text/plain")
        return self.fault(engine.Fault(404, f"Not Found: {self.path}"))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request_id = self.headers.get("X-Request-Id", "none")
        entry = self.state.note(received=self.clock.at, role=self.role, path=self.path, id=request_id)
        self.state.busy(self.role, 1)
        try:
            if self.state.has("no_overlap") and self.state.active[self.role] > 2:
                raise engine.Fault(429, "too many requests")
            if self.allowed():
                self.handle_body(json.loads(data), request_id, entry)
        except engine.Fault as error:
            self.fault(error)
        except engine.Cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.state.busy(self.role, -1)
        entry["done"] = time.perf_counter()

    def handle_body(self, body: dict[str, Any], request_id: str, entry: dict[str, Any]) -> None:
        if self.path.endswith(("/render", "/derender")):
            return self.rendering(body)
        if self.path == GENERATE[1] and self.state.has("scale_out_off"):
            raise engine.Fault(
                403, "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out"
            )
        if refused := engine.salt_refused(body.get("cache_salt")):
            raise engine.Fault(400, refused)
        if self.path not in GENERATE:
            raise engine.Fault(404, f"Not Found: {self.path}")
        if len(engine.prompt_of(body)) >= self.state.plan.max_model_len:
            raise engine.Fault(400, "This model's maximum context length is exceeded")
        if self.role == "proxy":
            return self.proxy(body, request_id, entry)
        if self.role == "prefill" and not body.get("stream") and engine.most(body) == 1:
            tokens = engine.output(engine.prompt_of(body), 1)
            params = engine.prefill(self.state, self.role, body, request_id, self.clock)
            return self.answer(self.whole(params, tokens), entry)
        if body.get("stream"):
            return self.stream(body, entry)
        tokens = [t for piece in engine.decode(self.state, self.role, body, entry, self.clock) for t in piece]
        prompt = engine.prompt_of(body)
        params = None
        if (body.get("kv_transfer_params") or {}) and not self.state.has("no_readback"):
            held = (*prompt, *tokens)[:-1]
            params = engine.offer(self.state, held, len(held), f"{request_id}-d", remote_prefill=False)
        return self.answer(self.whole(params, tokens), entry)

    def whole(self, params: Any, tokens: list[int]) -> dict[str, Any]:
        text = "".join(f" t{t}" for t in tokens)
        choice = {"index": 0, "text": text, "finish_reason": "length", "token_ids": tokens}
        return {"model": "m", "choices": [choice], "kv_transfer_params": params}

    def stream(self, body: dict[str, Any], entry: dict[str, Any]) -> None:
        handed = bool((body.get("kv_transfer_params") or {}).get("do_remote_prefill"))
        pieces = engine.decode(self.state, self.role, body, entry, self.clock)
        first = next(pieces) if not (handed and self.state.has("kv_load_event")) else None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if first is None:
            self.chunk(
                b'data: {"error": {"message": "Internal server error", "code": 500}}\n\ndata: [DONE]\n\n'
            )
            return self.chunk(b"")
        sent, wanted = 0, engine.most(body)
        ids = bool(body.get("return_token_ids"))
        tokens: list[int] | None = first
        while tokens is not None:
            sent += 1
            data = engine.event(self.state, self.path, tokens, ids=ids, last=sent == wanted)
            if sent == 1:
                entry["first"] = time.perf_counter()
            self.chunk(data)
            tokens = next(pieces, None)
        if sent == wanted:
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        return None

    def proxy(self, body: dict[str, Any], request_id: str, entry: dict[str, Any]) -> None:
        """What a router does, over real HTTP: prefill, then decode with the params, passed through."""
        self.clock.pause(self.state.plan.proxy)
        ask = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        with self.call("prefill", ask, request_id) as found:
            params = json.loads(found.read()).get("kv_transfer_params")
        if self.state.has("proxy_drops_params"):
            params = None
        with self.call("decode", {**body, "kv_transfer_params": params}, request_id) as found:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while line := found.readline():
                entry.setdefault("first", time.perf_counter())
                self.chunk(line)
        self.chunk(b"")

    def call(self, role: str, body: dict[str, Any], request_id: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.state.ports[role]}{self.path}",
            data=json.dumps(body).encode(),
            headers={"X-Request-Id": request_id, "Authorization": self.headers.get("Authorization", "")},
        )
        return urllib.request.urlopen(request)

    def rendering(self, body: dict[str, Any]) -> None:
        self.clock.pause(self.state.plan.render)
        if self.state.has("scale_out_off") and self.role != "render":
            raise engine.Fault(
                403, "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out"
            )
        if self.path == "/v1/completions/render":
            ids = list(engine.prompt_of(body))
            sampling = {"max_tokens": body.get("max_tokens", 16), "temperature": 0.0, "ignore_eos": True}
            return self.answer(
                [{"request_id": "r", "token_ids": ids, "sampling_params": sampling, "model": "m"}]
            )
        if self.path == "/v1/completions/derender":
            tokens = [t for g in body["generate_responses"] for c in g["choices"] for t in c["token_ids"]]
            return self.answer(
                {
                    "object": "text_completion",
                    "choices": [{"index": 0, "text": "".join(f" t{t}" for t in tokens)}],
                }
            )
        raise engine.Fault(404, f"Not Found: {self.path}")

    def allowed(self) -> bool:
        key = self.state.plan.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.fault(engine.Fault(401, "Unauthorized"))
            return False
        return True

    def fault(self, error: engine.Fault) -> None:
        data = {"error": {"message": error.message, "type": "error", "code": error.status}}
        self.reply(error.status, json.dumps(data).encode(), "application/json")

    def answer(self, value: Any, entry: dict[str, Any] | None = None) -> None:
        data = json.dumps(value).encode()
        if entry is not None:
            entry["first"] = time.perf_counter()
        self.reply(200, data, "application/json")

    def reply(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that left is no event here


def side_channel(state: State, listener: socket.socket) -> None:
    while True:
        link, _ = listener.accept()
        with link:
            if not state.has("silent_side_channel"):
                link.sendall(GREETING)
            link.settimeout(0.2 if state.has("silent_side_channel") else 5)
            try:
                while data := link.recv(1024):
                    state.side_channel_bytes += data
            except OSError:
                continue


def serve(plan: Plan, certificate: str | None = None) -> None:
    state = State(plan)
    listener = socket.create_server(("127.0.0.1", 0))
    state.side_channel_port = listener.getsockname()[1]
    if state.has("dead_side_channel"):
        listener.close()
    else:
        threading.Thread(target=side_channel, args=(state, listener), daemon=True).start()
    for role in ROLES:
        handler = type(f"{role.title()}Handler", (Handler,), {"state": state, "role": role})
        server = Server(("127.0.0.1", 0), handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        state.ports[role] = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({**state.ports, "side_channel": state.side_channel_port}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    pem = settings.pop("certificate", None)
    settings["faults"] = tuple(settings.get("faults", ()))
    serve(Plan(**settings), pem)
