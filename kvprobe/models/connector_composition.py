"""How the children of a MultiConnector fit together (``multi_connector.py`` of vLLM 0.33)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.formats.kv_transfer_config import KvConfig
from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS, NIXL
from kvprobe.models.connectors import NOT_READY, ConnectorState, Problem


def with_composition(state: ConnectorState, problems: Sequence[Problem]) -> ConnectorState:
    """MultiConnector's own state: not ready while its children do not fit together."""
    broken = tuple(p for p in problems if p.fatal)
    return msgspec.structs.replace(
        state, status=NOT_READY if broken else state.status, problems=(*state.problems, *broken)
    )


def composition_problems(config: KvConfig) -> list[Problem]:
    """What is wrong with a MultiConnector (``multi_connector.py`` of vLLM 0.33); not fatal: what it costs."""
    children = config.children
    if not children:
        text = "MultiConnector has no list kv_connector_extra_config.connectors"
        return [_option(text, 'Set {"connectors": [...]}.')]
    names = [c.connector for c in children]
    found = [
        _option(f"child {name or '(without kv_connector)'} is no connector of vLLM")
        for name in names
        if name not in CONNECTORS
    ]
    if any("engine_id" in c.raw for c in children):
        found.append(
            _option(
                "a child has an engine_id: vLLM fails with a TypeError", "Set it at the outer level only."
            )
        )
    found += [
        _option(f"child {c.connector} has no kv_role", "Each child needs its own kv_role.")
        for c in children
        if not c.role
    ]
    nixl = [n for n in names if n in NIXL]
    if len(nixl) > 1:
        found.append(
            _option(f"{len(nixl)} NIXL children: only one can hand out handshake metadata", "Keep one.")
        )
    if names.count("HiSparseConnector") > 1:
        found.append(_option("more than one HiSparseConnector: only one is possible", "Keep one."))
    pools = [c.connector for c in children if c.extra.get("custom_mem_pool")]
    if len(pools) > 1:
        found.append(
            _option(f"{' and '.join(pools)} each ask for a memory pool: only one is possible", "Keep one.")
        )
    handing = list(dict.fromkeys(n for n in names if n in CONNECTORS and CONNECTORS[n].pd and n not in NIXL))
    handing += ["NIXL"] if nixl else []
    if len(handing) > 1:
        text = f"{' and '.join(handing)} both hand out kv_transfer_params: equal keys end in a RuntimeError (Key clash)"
        found.append(_option(text, "Keep one connector for P/D."))
    bare = list(dict.fromkeys(n for n in names if n in CONNECTORS and not CONNECTORS[n].hma))
    if bare:
        text = f"{', '.join(bare)} cannot work with the hybrid KV cache manager, so it is off for the whole instance"
        fix = "Pass --disable-hybrid-kv-cache-manager on both sides: it is part of the compatibility hash."
        found.append(_option(text, fix, fatal=False))
    if len(names) > 1:
        text = f"loads come from the first child with a match ({' before '.join(names)}); saves go to all"
        found.append(_option(text, fatal=False))
    return found


def _option(text: str, fix: str = "", *, fatal: bool = True) -> Problem:
    return Problem(kind="option", text=text, fix=fix, fatal=fatal)
