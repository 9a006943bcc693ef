"""A conversation of several turns through P/D, with or without decode's KV read back by prefill.

Decode's answer of a turn carries ``kv_transfer_params`` when bidirectional transfer is on
(``kv_connector_extra_config: {"bidirectional_kv_xfer": true}``, vLLM 0.22+, whole answers only); the router hands
them to prefill with the next turn (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py). Token ids
are asked for, so that the next prompt is exactly what decode holds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.formats import completion, kv_transfer_params
from kvprobe.formats.http_answer import Explained, explain
from kvprobe.models.paired_facts import Conversation, Turn
from kvprobe.probes.pd_endpoint import Endpoints
from kvprobe.probes.pd_endpoint_drive import PATHS, ask_of, random_ids, request_id


def converse(
    ends: Endpoints,
    *,
    seed: int,
    label: str,
    turns: int,
    turn_tokens: int,
    output_tokens: int,
    model: str,
    read_back: bool,
) -> Conversation:
    """Drive one conversation; every turn adds ``turn_tokens`` user tokens to what was said before."""
    history: list[int] = []
    held: Any = None
    seen: list[Turn] = []
    offered = False
    for number in range(1, turns + 1):
        history += random_ids(seed, f"{label} turn {number}", turn_tokens)
        ask = ask_of(seed, f"{label} turn {number}", history, model, "completions", conversation=label)
        headers = request_id(ask.salt, ask.label)
        params = {**kv_transfer_params.ASK_PREFILL, **(held if read_back and held else {})}
        back = held.get("remote_num_tokens") if read_back and isinstance(held, dict) else None
        ends.touch("prefill", "decode")
        body = ask.body(1, stream=False, way="pd", params=params)
        first = ends.post("prefill", PATHS["completions"], body, f"{ask.label} prefill", headers=headers)
        failure = explain(ends.name("prefill"), first)
        if failure is not None:
            return _failed(label, read_back, seen, offered, "prefill", number, failure)
        kv = completion.read_completion(first.body).kv_transfer_params
        turn = Turn(
            turn=number,
            prompt_tokens=len(history),
            prefill_seconds=first.seconds,
            read_back_tokens=back if isinstance(back, int) else None,
        )
        last = number == turns
        body = ask.body(output_tokens, stream=last, way="pd", params=kv, ids=not last)
        call = ends.stream if last else ends.post
        second = call("decode", PATHS["completions"], body, f"{ask.label} decode", headers=headers)
        failure = explain(ends.name("decode"), second)
        if failure is not None:
            return _failed(label, read_back, [*seen, turn], offered, "decode", number, failure)
        if last:
            assert second.stream is not None  # explain() refuses a stream without tokens
            ttft = second.stream.tokens[0].at_seconds - first.started
            seen.append(msgspec.structs.replace(turn, ttft_seconds=ttft))
            break
        seen.append(turn)
        whole = completion.read_completion(second.body)
        held = whole.kv_transfer_params if isinstance(whole.kv_transfer_params, dict) else None
        offered = offered or bool(held and held.get("remote_block_ids"))
        history += whole.ids
    return Conversation(label=label, read_back=read_back, turns=tuple(seen), offered=offered)


def _failed(
    label: str,
    read_back: bool,
    seen: list[Turn],
    offered: bool,
    role: str,
    turn: int,
    failure: Explained,
) -> Conversation:
    return Conversation(
        label=label,
        read_back=read_back,
        turns=tuple(seen),
        offered=offered,
        failed_role=role,
        failed_turn=turn,
        failure=failure,
    )
