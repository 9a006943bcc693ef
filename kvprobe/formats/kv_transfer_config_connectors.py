"""The connectors of vLLM's factory: since and until which version, and which extra keys each reads.

Read from kv_connector/factory.py and the connectors' own get_from_extra_config calls in the released wheels.
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from kvprobe.formats.serve_command_surface import Version

NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")


class Connector(NamedTuple):
    """``since``/``until``: first version with it, first version without it; ``pd``: it hands KV from P to D."""

    name: str
    since: Version | None
    until: Version | None
    pd: bool
    hma: bool
    """Supports the hybrid KV cache manager (0.33)."""
    keys: frozenset[str] | None
    """Extra keys it reads (0.33); None: it passes them on, so none is unknown."""
    required: tuple[str, ...] = ()


_NIXL_KEYS = {
    "backends", "num_threads", "enforce_handshake_compat", "kv_lease_duration", "bidirectional_kv_xfer",
    "decoder_kv_blocks_ttl", "kv_recompute_threshold", "engine_ttl", "enable_cross_layers_blocks",
}  # fmt: skip
_MORIIO_KEYS = {
    "backend", "defer_timeout", "handshake_port", "host_ip", "http_port", "notify_port", "num_workers",
    "post_batch_size", "proxy_ip", "proxy_ping_port", "qp_per_transfer", "read_mode", "recv_abort_timeout",
    "transfer_timeout",
}  # fmt: skip


def _row(
    name: str,
    since: str | None,
    until: str | None,
    pd: bool,
    hma: bool,
    keys: set[str] | None,
    *required: str,
) -> Connector:
    from kvprobe.formats.serve_command_surface import parse_version

    return Connector(
        name,
        parse_version(since) if since else None,
        parse_version(until) if until else None,
        pd,
        hma,
        None if keys is None else frozenset(keys),
        required,
    )


CONNECTORS = {
    row.name: row
    for row in (
        _row("NixlConnector", None, None, True, True, _NIXL_KEYS),
        _row("NixlPullConnector", "0.24.0", None, True, True, _NIXL_KEYS),
        _row("NixlPushConnector", "0.24.0", None, True, True, {*_NIXL_KEYS, "push_registration_timeout"}),
        _row("MooncakeConnector", "0.13.0", None, True, True,
             {"bootstrap_server_address", "mooncake_protocol", "num_workers", "device_name"}),
        _row("MooncakeStoreConnector", "0.22.0", None, False, True, None),
        _row("MoRIIOConnector", "0.14.0", None, True, True, _MORIIO_KEYS, "http_port"),
        _row("LMCacheConnectorV1", None, None, False, False, None),
        _row("LMCacheMPConnector", "0.11.2", None, False, False, None),
        _row("FlexKVConnectorV1", "0.18.0", None, False, False, None),
        _row("OffloadingConnector", "0.11.0", None, False, True, None),
        _row("SimpleCPUOffloadConnector", "0.20.2", None, False, True, None),
        _row("HF3FSKVConnector", "0.20.2", None, False, False, None),
        _row("HiSparseConnector", "0.30.0", None, False, True, None, "host_pool_gib"),
        _row("DecodeBenchConnector", "0.11.2", None, False, True, None),
        _row("ExampleConnector", "0.13.0", None, False, False, None),
        _row("ExampleHiddenStatesConnector", "0.17.0", None, False, True, None),
        _row("MultiConnector", None, None, False, True, None),
        _row("P2pNcclConnector", None, "0.24.0", True, False, None),
        _row("SharedStorageConnector", None, "0.13.0", False, False, None),
    )
}  # fmt: skip

EXTRA_KEY_SINCE: dict[str, Version] = {
    "num_threads": (0, 11, 2),
    "enforce_handshake_compat": (0, 13, 0),
    "kv_lease_duration": (0, 22, 0),
    "bidirectional_kv_xfer": (0, 22, 0),
    "decoder_kv_blocks_ttl": (0, 22, 0),
    "kv_recompute_threshold": (0, 22, 0),
    "engine_ttl": (0, 24, 0),
    "push_registration_timeout": (0, 24, 0),
}
"""First version in which NIXL reads the key; older ones ignore it without a word."""


def nearest_connector(name: str) -> str | None:
    """The registered name that was probably meant."""
    by_lower = {known.lower(): known for known in CONNECTORS}
    lower = name.lower()
    for guess in (lower, f"{lower}connector", lower.removesuffix("v1"), f"{lower}v1"):
        if guess in by_lower:
            return by_lower[guess]
    near = difflib.get_close_matches(lower, by_lower, 1, 0.7)
    return by_lower[near[0]] if near else None


def nearest_key(key: str, connector: Connector) -> str | None:
    """The extra key that was probably meant."""
    near = difflib.get_close_matches(key, connector.keys or (), 1, 0.7)
    return near[0] if near else None
