"""The two-step protocol driven by kvprobe itself: prefill, then decode with the answered ``kv_transfer_params``.

https://docs.vllm.ai/en/stable/features/nixl_connector_usage/ describes the protocol; the token-in/token-out form
is vllm/entrypoints/scale_out/token_in_token_out. Every request has random token ids of its own and a
``cache_salt`` of its own, so that no prefix cache helps, not even between the two ways of the same prompt.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec

from kvprobe.formats import completion, kv_transfer_params
from kvprobe.formats.http_answer import Answer, Explained, explain
from kvprobe.probes.pd_endpoint import Endpoints

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9.-]+")
PATHS = {"completions": "/v1/completions", "generate": "/inference/v1/generate"}
SALT_LIMIT = 128
_FIRST_ID, _LAST_ID = 1000, 29_999
"""Ordinary tokens in every vocabulary in use; special tokens lie outside."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, encoded once so that encoding is not timed."""

    label: str
    prompt_tokens: int
    prompt: bytes
    """The token ids as a JSON array."""
    model: str
    api: str = "completions"
    salt: str = ""
    conversation: str | None = None
    """Turns of one conversation share a prefix cache; every other request has one of its own."""

    def body(
        self, max_tokens: int, *, stream: bool, way: str, params: Any = None, ids: bool = False
    ) -> bytes:
        """The request body; ``way`` (``pd``, ``alone`` ...) keeps the prefix caches apart."""
        salt = cache_salt(f"{self.salt}-{self.conversation or f'{self.label}-{way}'}")
        sampling = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        fields: dict[str, Any] = {"model": self.model, "stream": stream, "cache_salt": salt}
        if self.api == "generate":
            fields["sampling_params"] = sampling
        else:
            fields |= sampling
        if params is not None:
            fields["kv_transfer_params"] = params
        if ids and self.api != "generate":
            fields["return_token_ids"] = True
        name = b'"token_ids"' if self.api == "generate" else b'"prompt"'
        return b"{" + name + b":" + self.prompt + b"," + json.dumps(fields).encode()[1:]


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One request through one way. Times are seconds; None: it did not come so far."""

    label: str
    way: str
    prompt_tokens: int
    started: float
    ttft_seconds: float | None = None
    prefill_seconds: float | None = None
    handover_seconds: float | None = None
    """Between the prefill answer's last byte and the decode call's start, on the client."""
    decode_first_seconds: float | None = None
    itl_seconds: tuple[float, ...] = ()
    output: str = ""
    """Generated token ids if the server sent them, else the text."""
    output_tokens: int = 0
    token_times: tuple[float, ...] = ()
    params: kv_transfer_params.Params | None = None
    failed_role: str | None = None
    failure: Explained | None = None
    status: int | None = None


def request_id(*parts: str) -> dict[str, str]:
    """The header by which the servers' logs name a request; letters, digits, dots and dashes only."""
    return {"X-Request-Id": _NOT_IN_IDS.sub("-", "-".join(parts))}


def cache_salt(text: str) -> str:
    """``text`` as a salt that vLLM takes: since 0.30 none of ``@ / \\ NUL``, at most 128 characters.

    vllm/entrypoints/generate/base/protocol.py (``validate_cache_salt``) answers 400 to any other.
    """
    plain = _NOT_IN_IDS.sub("-", text)
    if plain == text and len(text) <= SALT_LIMIT:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{plain[: SALT_LIMIT - len(mark) - 1]}-{mark}"


def make_ask(seed: int, label: str, tokens: int, model: str, api: str) -> Ask:
    """Random token ids that only this seed and label give."""
    return ask_of(seed, label, random_ids(seed, label, tokens), model, api)


def random_ids(seed: int, label: str, tokens: int) -> list[int]:
    """Token ids that no other request shares."""
    draw = random.Random(f"{seed} {label} {tokens}")
    return [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(tokens)]


def ask_of(
    seed: int, label: str, ids: list[int], model: str, api: str, conversation: str | None = None
) -> Ask:
    """A prompt of given token ids."""
    return Ask(
        label=label,
        prompt_tokens=len(ids),
        prompt=json.dumps(ids, separators=(",", ":")).encode(),
        model=model,
        api=api,
        salt=f"kvprobe-{seed:x}",
        conversation=conversation,
    )


def pd_request(
    ends: Endpoints,
    ask: Ask,
    max_tokens: int,
    *,
    ids: bool = False,
    until: Callable[[], bool] = lambda: False,
    touch: bool = True,
) -> Timed:
    """Prefill with ``max_tokens=1``, then decode, streaming. Failures are told in the result."""
    path = PATHS[ask.api]
    headers = request_id(ask.salt, ask.label)
    body = ask.body(1, stream=False, way="pd", params=kv_transfer_params.ASK_PREFILL)
    if touch:
        ends.touch("prefill", "decode")
    first = ends.post("prefill", path, body, f"{ask.label} pd prefill", headers=headers)
    whole = completion.read_completion(first.body) if first.ok else completion.Completion()
    failure = explain(ends.name("prefill"), first) or _unreadable(ends, "prefill", whole)
    base = Timed(
        label=ask.label,
        way="pd",
        prompt_tokens=ask.prompt_tokens,
        started=first.started,
        prefill_seconds=first.seconds if first.ok else None,
        status=first.status,
    )
    if failure is not None:
        return msgspec.structs.replace(base, failure=failure, failed_role="prefill")
    params = whole.kv_transfer_params
    body = ask.body(max_tokens, stream=True, way="pd", params=params, ids=ids)
    second = ends.stream("decode", path, body, f"{ask.label} pd decode", headers=headers, until=until)
    base = msgspec.structs.replace(
        base, params=kv_transfer_params.inspect(params), handover_seconds=second.started - first.ended
    )
    return _with_stream(base, ends, "decode", second)


def alone_request(
    ends: Endpoints,
    role: str,
    ask: Ask,
    max_tokens: int,
    *,
    way: str = "alone",
    ids: bool = False,
    until: Callable[[], bool] = lambda: False,
    touch: bool = True,
) -> Timed:
    """The same prompt in one streaming call: to the colocated server, the decode server alone, or a proxy."""
    if touch:
        ends.touch(role)
    body = ask.body(max_tokens, stream=True, way=way, ids=ids)
    headers = request_id(ask.salt, ask.label, way)
    answer = ends.stream(role, PATHS[ask.api], body, f"{ask.label} {way}", headers=headers, until=until)
    base = Timed(label=ask.label, way=way, prompt_tokens=ask.prompt_tokens, started=answer.started)
    return _with_stream(base, ends, role, answer)


def _with_stream(base: Timed, ends: Endpoints, role: str, answer: Answer) -> Timed:
    tokens = answer.stream.tokens if answer.stream else ()
    times = tuple(t.at_seconds for t in tokens)
    failure = explain(ends.name(role), answer)
    ids = [i for t in tokens for i in t.ids]
    return msgspec.structs.replace(
        base,
        ttft_seconds=times[0] - base.started if times else None,
        decode_first_seconds=times[0] - answer.started if times else None,
        itl_seconds=tuple(b - a for a, b in zip(times, times[1:], strict=False)),
        token_times=times,
        output=" ".join(map(str, ids)) if ids else "".join(t.text for t in tokens),
        output_tokens=len(ids) or len(tokens),
        failure=failure,
        failed_role=role if failure else None,
        status=answer.status,
    )


def _unreadable(ends: Endpoints, role: str, whole: completion.Completion) -> Explained | None:
    if whole.error is None:
        return None
    return Explained(
        code="protocol_error",
        reason=f"{ends.name(role)} answered 200, but {whole.error}.",
        remedy="Check that the URL is a vLLM server (GET /version).",
    )
