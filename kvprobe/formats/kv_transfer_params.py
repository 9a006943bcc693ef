"""``kv_transfer_params``: what prefill answers and the proxy hands to decode, one dict a request.

https://docs.vllm.ai/en/stable/features/nixl_connector_usage/ and
vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py, where decode refuses a dict that lacks the
engine id, request id, host or port and computes the prompt itself.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec

ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What the first call sends."""
_NIXL_NEEDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_OTHER_CONNECTORS = ("transfer_id", "remote_bootstrap_addr", "remote_handshake_port")


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of one answered dict; ``problem`` is None when decode can use it."""

    present: bool
    problem: str | None = None
    host: str | None = None
    port: int | None = None
    blocks: int | None = None
    """Blocks offered, all KV-cache groups together; None where the connector names none."""
    prompt_tokens: int | None = None
    keys: tuple[str, ...] = ()


def inspect(params: Any) -> Params:
    """Judge an answered ``kv_transfer_params``; any JSON value may come."""
    if params is None:
        return Params(present=False, problem="prefill answered kv_transfer_params null")
    if not isinstance(params, dict):
        return Params(
            present=False, problem=f"kv_transfer_params is a {type(params).__name__}, not an object"
        )
    keys = tuple(sorted(str(k) for k in params))
    host, port = params.get("remote_host"), params.get("remote_port")
    blocks = count_blocks(params.get("remote_block_ids"))
    tokens = params.get("remote_num_tokens")
    return Params(
        present=True,
        problem=_problem(params, blocks),
        host=host if isinstance(host, str) and host else None,
        port=port if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536 else None,
        blocks=blocks,
        prompt_tokens=tokens if isinstance(tokens, int) else None,
        keys=keys,
    )


def count_blocks(value: Any) -> int | None:
    """Block ids in a list or (several KV-cache groups) a list of lists; None if it is neither."""
    if not isinstance(value, list):
        return None
    return sum(len(v) if isinstance(v, list) else 1 for v in value)


def is_loopback(host: str) -> bool:
    """Whether no other machine can reach this host name or address."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _problem(params: dict[str, Any], blocks: int | None) -> str | None:
    if params.get("do_remote_prefill") is not True:
        return "do_remote_prefill is not true, so decode will not fetch"
    if any(key in params for key in _OTHER_CONNECTORS) and "remote_block_ids" not in params:
        return None  # Mooncake and MoRIIO name a transfer instead of blocks
    lacking = [key for key in _NIXL_NEEDS if params.get(key) in (None, "")]
    if lacking:
        return f"it lacks {', '.join(lacking)}"
    if not blocks:
        return "remote_block_ids is empty, so there is nothing to fetch"
    return None
