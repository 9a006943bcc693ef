"""Bring a fresh deployment into the state that traffic leaves, before anything is timed.

vLLM takes KV blocks from a free list and puts them back in reverse (vllm/v1/core/block_pool.py). Where requests come
one by one, some of them therefore find their blocks in rising order on both sides, and NIXL merges those into one
piece a region: with 6 pairs of 512 tokens on a fresh pair 2 of 6 transfers had 28 descriptors instead of 896
(samples/scenarios/h200-x2-live-nvlink). Requests that overlap leave the list mixed. So decode first serves short
streams that grow side by side, each block of one lying between those of the others.
"""

from __future__ import annotations

from kvprobe.flows.live_session import Session
from kvprobe.formats.http_answer import explain
from kvprobe.probes.pd_endpoint_drive import PATHS, make_ask, request_id

_PROMPT_TOKENS = 8
_BLOCK_TOKENS = 16
"""vLLM's default; larger blocks are mixed as well, for every stream then grows by fewer of them."""
_STREAMS, _MOST_STREAMS = 64, 256
_TOKENS, _MOST_TOKENS = 16, 512


def streams(longest: int) -> tuple[int, int]:
    """How many streams of how many tokens at least hold as many blocks as the longest prompt."""
    count = max(2, min(_STREAMS, longest // _BLOCK_TOKENS))
    tokens = max(_TOKENS, -(-longest // count))
    if tokens > _MOST_TOKENS:
        count, tokens = min(_MOST_STREAMS, -(-longest // _MOST_TOKENS)), _MOST_TOKENS
    return count, tokens


def settle_phase(session: Session) -> None:
    """Streams of random lengths, all at once, on the decode server."""
    if session.stopped or not session.request.settle or not session.in_time("settle"):
        return
    longest = session.prompt_tokens[-1]
    count, tokens = streams(longest)
    session.step(3, f"{count} short streams at once, so that decode's free blocks lie as traffic leaves them")
    room = min((s.max_model_len for s in session.servers if s.max_model_len), default=1 << 30)
    requests = []
    for k in range(count):
        ask = make_ask(session.seed, f"settle {k}", _PROMPT_TOKENS, session.model, session.request.api)
        most = min(session.draw.randint(tokens, 2 * tokens), room - _PROMPT_TOKENS - 1)
        body = ask.body(max(1, most), stream=False, way="settle")
        requests.append((body, request_id(ask.salt, ask.label)))
    done = session.ends.burst("decode", PATHS[session.request.api], requests, "settle")
    session.outcomes["settle"] += done.requests
    failure = explain(session.ends.name("decode"), done.first_failure) if done.first_failure else None
    if failure is not None:
        session.note_failure("decode", "settle", failure, count=done.failed)
