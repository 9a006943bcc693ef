"""The four-hop path: render -> prefill -> decode -> derender, each hop timed (``vllm launch render``, vLLM 0.24+).

Bodies as vllm/entrypoints/scale_out/token_in_token_out/protocol.py defines them. Text goes in and comes out; between
the hops there are token ids only.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from kvprobe.formats import completion, kv_transfer_params
from kvprobe.formats.http_answer import Explained, explain
from kvprobe.models.paired_facts import FourHops
from kvprobe.probes.pd_endpoint import Endpoints
from kvprobe.probes.pd_endpoint_drive import PATHS, cache_salt, request_id

_WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "life",
    "world",
    "school",
    "state",
    "group",
    "hand",
    "part",
    "place",
    "case",
)
"""One token each in the usual vocabularies."""


def four_hops(ends: Endpoints, seed: int, label: str, words: int, max_tokens: int, model: str) -> FourHops:
    """Drive the path once with ``words`` random words. Failures are told in the result."""
    draw = random.Random(f"{seed} {label}")
    asked = {
        "model": model,
        "prompt": " ".join(draw.choice(_WORDS) for _ in range(words)),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    headers = request_id(f"kvprobe-{seed:x}", label)
    salt = headers["X-Request-Id"]
    ends.touch("render", "prefill", "decode")
    first = ends.post("render", "/v1/completions/render", _bytes(asked), f"{label} render", headers=headers)
    seen = FourHops(words=words, render_seconds=first.seconds)
    ids = _token_ids(first.body) if first.ok else None
    failure = explain(ends.name("render"), first) or (None if ids else _odd(ends, "render", "no token_ids"))
    if failure is not None or ids is None:
        return msgspec.structs.replace(seen, failed_hop="render", failure=failure)

    sampling = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    body: dict[str, Any] = {
        "model": model,
        "token_ids": ids,
        "sampling_params": sampling,
        "cache_salt": cache_salt(salt),
        "stream": False,
    }
    asked_kv = {**body, "kv_transfer_params": kv_transfer_params.ASK_PREFILL}
    second = ends.post("prefill", PATHS["generate"], _bytes(asked_kv), f"{label} prefill", headers=headers)
    seen = msgspec.structs.replace(seen, prompt_tokens=len(ids), prefill_seconds=second.seconds)
    failure = explain(ends.name("prefill"), second)
    if failure is not None:
        return msgspec.structs.replace(seen, failed_hop="prefill", failure=failure)
    params = completion.read_completion(second.body).kv_transfer_params

    body |= {
        "stream": True,
        "sampling_params": {**sampling, "max_tokens": max_tokens},
        "kv_transfer_params": params,
    }
    third = ends.stream("decode", PATHS["generate"], _bytes(body), f"{label} decode", headers=headers)
    tokens = third.stream.tokens if third.stream else ()
    seen = msgspec.structs.replace(
        seen,
        params=kv_transfer_params.inspect(params),
        decode_seconds=third.seconds,
        decode_first_seconds=tokens[0].at_seconds - third.started if tokens else None,
        ttft_seconds=tokens[0].at_seconds - first.started if tokens else None,
    )
    failure = explain(ends.name("decode"), third)
    if failure is not None:
        return msgspec.structs.replace(seen, failed_hop="decode", failure=failure)

    choice = {"index": 0, "finish_reason": "length", "token_ids": [i for t in tokens for i in t.ids]}
    answer = {"request_id": salt, "model": model, "choices": [choice]}
    back = {"model": model, "generate_responses": [answer], "prompt_tokens": [len(ids)]}
    fourth = ends.post(
        "render", "/v1/completions/derender", _bytes(back), f"{label} derender", headers=headers
    )
    whole = completion.read_completion(fourth.body) if fourth.ok else completion.Completion()
    failure = explain(ends.name("render"), fourth) or (
        _odd(ends, "render", whole.error) if whole.error else None
    )
    return msgspec.structs.replace(
        seen,
        derender_seconds=fourth.seconds,
        total_seconds=fourth.ended - first.started,
        text=whole.text[:200],
        failed_hop="derender" if failure else None,
        failure=failure,
    )


def _bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _token_ids(body: str) -> list[int] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    first = found[0] if isinstance(found, list) and found else found
    ids = first.get("token_ids") if isinstance(first, dict) else None
    return ids if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids) else None


def _odd(ends: Endpoints, role: str, what: str) -> Explained:
    return Explained(
        code="protocol_error",
        reason=f"{ends.name(role)} answered 200, but {what}.",
        remedy="Check that the URL is a render server (`vllm launch render`).",
    )
