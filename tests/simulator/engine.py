"""What the simulated servers do with a request: sleep as told, and answer as vLLM does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.simulator.state import BYTES_PER_BLOCK, LAYERS, FreeList, State, pieces

Params = dict[str, Any]


class Fault(Exception):
    """An HTTP error as vLLM answers it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Clock:
    """Delays counted from the arrival of the request, so that the simulator's own work does not add to them."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def pause(self, seconds: float) -> None:
        self.at += seconds
        time.sleep(max(0.0, self.at - time.perf_counter()))


def salt_refused(salt: Any) -> str | None:
    """vLLM 0.30's own rule (entrypoints/generate/base/protocol.py), so that no test passes with a salt it refuses."""
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt:
        return "Parameter 'cache_salt' must be a non-empty string if provided."
    if len(salt) > 128 or any(char in "@/\\\x00" for char in salt):
        return "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
    return None


class Cut(Exception):
    """Close the connection in the middle."""


def prompt_of(body: dict[str, Any]) -> tuple[int, ...]:
    prompt = body.get("token_ids", body.get("prompt"))
    if isinstance(prompt, str):
        return tuple(sum(map(ord, word)) % 30000 for word in prompt.split())
    return tuple(prompt or ())


def most(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens", body.get("sampling_params", {}).get("max_tokens", 16)))


def output(prompt: tuple[int, ...], count: int) -> list[int]:
    """Greedy decoding, simulated: a function of the prompt alone."""
    seed = sum((i % 97 + 1) * t for i, t in enumerate(prompt)) % 1_000_003
    return [(seed * (k + 3) + k * k) % 28000 + 1000 for k in range(count)]


def prefill(state: State, role: str, body: dict[str, Any], request_id: str, clock: Clock) -> Params | None:
    """Compute the prompt, less what a bidirectional decode still holds, and offer its blocks."""
    prompt, params = prompt_of(body), body.get("kv_transfer_params") or {}
    known = 0
    if params.get("remote_block_ids") and not state.has("no_readback"):
        held = state.offered.get(str(params.get("remote_request_id")), (0, ()))
        known = min(int(params.get("remote_num_tokens") or 0), len(prompt), held[0])
    if known:
        transfer(state, role, known, clock)
    compute(state, role, len(prompt) - known, clock)
    if not params.get("do_remote_decode") or state.has("no_connector") or state.has("params_null"):
        return None
    return offer(state, prompt, len(prompt), f"{request_id}-p", remote_prefill=True)


def compute(state: State, role: str, tokens: int, clock: Clock) -> None:
    with state.lock:
        state.prefilling[role] = state.prefilling.get(role, 0) + 1
    clock.pause(state.plan.prefill * min(tokens, 1) + state.plan.prefill_per_token * tokens)
    with state.lock:
        state.prefilling[role] -= 1
    state.count(role, "local_compute", tokens)


def offer(state: State, prompt: tuple[int, ...], tokens: int, key: str, *, remote_prefill: bool) -> Params:
    state.offered[key] = (tokens, prompt)
    blocks = (
        state.pools["prefill"].take(state.blocks(tokens))
        if remote_prefill
        else list(range(state.blocks(tokens)))
    )
    if remote_prefill:
        state.held[key] = blocks
    found: Params = {
        "do_remote_prefill": remote_prefill,
        "do_remote_decode": not remote_prefill,
        "remote_block_ids": [blocks],
        "remote_engine_id": "simulated",
        "remote_request_id": key,
        "remote_host": "localhost" if state.has("localhost") else state.plan.side_channel_host,
        "remote_port": state.side_channel_port,
        "tp_size": 1,
        "remote_num_tokens": tokens,
    }
    if state.has("missing_keys"):
        del found["remote_request_id"], found["remote_port"]
    return found


def transfer(state: State, role: str, tokens: int, clock: Clock, merged: int | None = None) -> None:
    plan = state.plan
    with state.lock:
        first, state.contacts = state.contacts == 0, state.contacts + 1
    spent = plan.transfer + plan.transfer_per_token * tokens
    clock.pause(spent)
    if first:
        clock.pause(plan.first_contact)
    blocks = state.blocks(tokens)
    state.count(role, "transfers")
    state.count(role, "nixl_xfer_time_seconds", spent)
    state.count(role, "nixl_bytes_transferred", float(blocks * LAYERS * BYTES_PER_BLOCK))
    state.count(role, "nixl_num_descriptors", float((blocks if merged is None else merged) * LAYERS))
    state.count(role, "external_kv_transfer", tokens)


def fetch(
    state: State, role: str, prompt: tuple[int, ...], params: Params, clock: Clock, local: list[int]
) -> bool:
    """Decode's side of the hand-over; False: it computes the prompt itself without a word to the client."""
    held = state.offered.get(str(params.get("remote_request_id")))
    if not params.get("do_remote_prefill") or held is None or state.has("recompute"):
        return False
    if state.has("kv_load_500"):
        state.count(role, "failed_transfers")
        raise Fault(500, "Internal server error")
    remote = state.held.pop(str(params.get("remote_request_id")), None)
    transfer(state, role, len(prompt), clock, pieces(remote, local) if remote else None)
    state.pools["prefill"].give(remote or ())
    if state.has("expired"):
        state.count("prefill", "notifications_after_expiry")
        state.count("prefill", "kv_expired_reqs")
    return True


def decode(
    state: State, role: str, body: dict[str, Any], entry: dict[str, Any], clock: Clock
) -> Iterator[list[int]]:
    """One token a step, in a list; the first after fetching or computing the prompt."""
    blocks: list[int] = []
    pool = state.pools[role]
    try:
        for sent, tokens in enumerate(_decode(state, role, body, entry, clock, pool, blocks)):
            blocks += pool.take(state.blocks(len(prompt_of(body)) + sent + 1) - len(blocks))
            yield tokens
    finally:
        pool.give(blocks)


def _decode(
    state: State,
    role: str,
    body: dict[str, Any],
    entry: dict[str, Any],
    clock: Clock,
    pool: FreeList,
    blocks: list[int],
) -> Iterator[list[int]]:
    prompt, params = prompt_of(body), body.get("kv_transfer_params") or {}
    blocks += pool.take(state.blocks(len(prompt)))
    tokens = output(prompt, most(body))
    handed = bool(params.get("do_remote_prefill"))
    fetched = handed and not state.has("no_connector") and fetch(state, role, prompt, params, clock, blocks)
    if fetched:
        clock.pause(state.plan.schedule + state.plan.step)
    else:
        compute(state, role, len(prompt), clock)
    entry["fetched"] = fetched
    if fetched and state.has("wrong_output"):
        tokens = [t + 1 for t in tokens]
    for index, token in enumerate(tokens):
        if index:
            busy = state.prefilling.get(role, 0)
            clock.pause(state.plan.interference if busy and state.plan.interference else state.plan.step)
        if handed and index == 3:
            if state.has("stream_cut"):
                raise Cut
            if state.has("stream_ends"):
                return
        yield [token]


def event(state: State, path: str, tokens: list[int], *, ids: bool, last: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
    if path.startswith("/inference"):
        choice["token_ids"] = tokens
    else:
        choice["text"] = "".join(f" t{t}" for t in tokens)
        if ids:
            choice["token_ids"] = tokens
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"
