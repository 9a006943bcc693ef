"""KVP680 to KVP685: does the running deployment hand over what P/D is meant to hand over?

A deployment can answer every request correctly while decode computes each prompt a second time. Whatever makes
that happen is a finding here, before any figure of the run is believed.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.kv_transfer_params import is_loopback
from kvprobe.models.paired_facts import Fetch, LiveFacts, Server
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

_PROTOCOL = "https://docs.vllm.ai/en/stable/features/nixl_connector_usage/"
_FULLY = 0.95
"""Fetched share above which all prompts count as fetched: partly filled last blocks make small differences."""


def servers_answer(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP680: every server that was named answers."""
    silent = [s for s in facts.servers if s.failure is not None]
    for server in silent:
        assert server.failure is not None
        yield Finding(
            id="KVP680",
            name="servers-answer",
            status=Status.UNKNOWN,
            title=server.failure.reason,
            remedy=Remedy(text=server.failure.remedy, commands=(f"curl -sS {server.url}/v1/models",)),
            where=server.role,
            code=server.failure.code,
        )
    if facts.servers and not silent:
        told = ", ".join(f"{s.role} {s.version or 'version not told'}" for s in facts.servers)
        yield Finding(
            id="KVP680",
            name="servers-answer",
            status=Status.PASS,
            title=f"All servers answer: {told}",
            evidence=("servers",),
        )


def same_engines(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP681: prefill and decode are the same vLLM with the same model."""
    one, two = facts.server("prefill"), facts.server("decode")
    if one is None or two is None or one.failure or two.failure:
        return
    if one.version and two.version and one.version != two.version:
        yield Finding(
            id="KVP681",
            name="same-engines",
            status=Status.FAIL,
            title=f"Prefill runs vLLM {one.version}, decode {two.version}: the NIXL handshake refuses the pair",
            remedy=Remedy(text="Run the same vLLM on both; its version is part of the compatibility hash."),
            links=(_PROTOCOL,),
            evidence=("servers",),
            code="vllm_version_mismatch",
        )
    elif one.models and two.models and not set(one.models) & set(two.models):
        yield Finding(
            id="KVP681",
            name="same-engines",
            status=Status.FAIL,
            title=f"Prefill serves {one.models[0]}, decode {two.models[0]}",
            remedy=Remedy(text="Check that both URLs belong to the same deployment."),
            evidence=("servers",),
            code="model_differs",
        )
    elif one.version is None or two.version is None:
        role = "prefill" if one.version is None else "decode"
        yield Finding(
            id="KVP681",
            name="same-engines",
            status=Status.SKIP,
            title=f"{role} does not tell its version (GET /version)",
        )
    else:
        yield Finding(
            id="KVP681",
            name="same-engines",
            status=Status.PASS,
            title=f"Prefill and decode both run vLLM {one.version}",
            evidence=("servers",),
        )


def servers_idle(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP682: nobody else uses the servers while they are measured."""
    busy = [s for s in facts.servers if _load(s)]
    if not busy:
        return
    told = ", ".join(f"{s.role} {_load(s):.0f}" for s in busy)
    if facts.allow_busy:
        status, text = Status.WARN, "The figures hold for this load only."
    else:
        status = Status.UNKNOWN
        text = "Take the pair out of the traffic, or measure it under its load with --allow-busy."
    yield Finding(
        id="KVP682",
        name="servers-idle",
        status=status,
        title=f"Requests in flight before kvprobe sent any: {told}",
        measured=Quantity(value=sum(_load(s) for s in busy), unit="requests"),
        remedy=Remedy(text=text),
        evidence=("servers",),
        code="server_busy",
    )


def params_complete(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP683: prefill answers kv_transfer_params that decode can use."""
    params = facts.params
    if params is None:
        return
    if params.problem is None:
        blocks = f"{params.blocks:,} blocks" if params.blocks is not None else "a transfer"
        yield Finding(
            id="KVP683",
            name="kv-params-complete",
            status=Status.PASS,
            title=f"Prefill hands over {blocks} with complete kv_transfer_params",
        )
        return
    null = not params.present
    yield Finding(
        id="KVP683",
        name="kv-params-complete",
        status=Status.FAIL,
        title=f"Decode gets nothing to fetch: {params.problem}"
        if null
        else f"Decode will ignore the kv_transfer_params: {params.problem}",
        remedy=Remedy(
            text="Start prefill with a --kv-transfer-config (and without a proxy in between that drops the field); "
            "its log says 'no KVConnector found' when it has none."
            if null
            else "Something between prefill and kvprobe rewrites the answer, or prefill runs another connector.",
            commands=(
                """vllm serve MODEL --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'""",
            ),
        ),
        links=(_PROTOCOL,),
        notes=(f"keys answered: {', '.join(params.keys) or 'none'}",),
        code="kv_params_null" if null else "invalid_kv_transfer_params",
    )


def side_channel(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP684: decode can reach the host and port of the handshake; kvprobe connects and sends nothing."""
    params, seen = facts.params, facts.greeting
    if params is None or params.host is None:
        return
    where = f"{params.host}:{params.port}"
    if is_loopback(params.host):
        same = facts.prefill_host == facts.decode_host
        address = "ADDRESS" if is_loopback(facts.prefill_host) else facts.prefill_host
        greets = seen is not None and seen.zmq
        yield Finding(
            id="KVP684",
            name="side-channel",
            status=Status.WARN if same else Status.FAIL,
            title=f"Prefill tells decode to fetch from {where}, which only its own host can reach"
            + (f": works while decode is there too{' (it greets as ZMQ)' if greets else ''}" if same else ""),
            remedy=Remedy(
                text="Set VLLM_NIXL_SIDE_CHANNEL_HOST on prefill to an address that decode can reach.",
                commands=(f"VLLM_NIXL_SIDE_CHANNEL_HOST={address} vllm serve ...",),
            ),
            links=(_PROTOCOL,),
            where=where,
            code="side_channel_host_loopback" if same else "side_channel_host_unroutable",
        )
        if not same or greets:
            return
    if seen is None:
        return
    if seen.connected and seen.zmq:
        yield Finding(
            id="KVP684",
            name="side-channel",
            status=Status.PASS,
            title=f"The side channel {where} greets as ZMQ (connected, nothing sent)",
        )
    elif seen.connected:
        yield Finding(
            id="KVP684",
            name="side-channel",
            status=Status.WARN,
            title=f"Something listens on the side channel {where}, but it does not greet as ZMQ",
            remedy=Remedy(
                text="Check that no other service has this port; vLLM's default is 5600 (5557 before 0.11.1)."
            ),
            where=where,
            code="side_channel_not_zmq",
        )
    else:
        yield Finding(
            id="KVP684",
            name="side-channel",
            status=Status.WARN,
            title=f"The side channel {where} cannot be reached from here: {seen.detail}",
            remedy=Remedy(
                text="If decode cannot reach it either, every handshake times out after 5 s: check "
                "VLLM_NIXL_SIDE_CHANNEL_HOST, the port, and network policies.",
            ),
            where=where,
            code="side_channel_unreachable",
        )


def decode_fetches(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP685: decode fetches the prompts that are handed over to it, instead of computing them."""
    seen = facts.fetch or facts.smoke_fetch
    if seen is None or not seen.handed_requests:
        return
    share = seen.share
    if share is None:
        yield Finding(
            id="KVP685",
            name="decode-fetches",
            status=Status.UNKNOWN,
            title="Decode's /metrics do not tell whether it fetched the prompts or computed them",
            remedy=Remedy(
                text="Open /metrics of the decode server to kvprobe (vLLM 0.17+ counts prompt tokens by source)."
            ),
        )
        return
    good = share >= _FULLY
    yield Finding(
        id="KVP685",
        name="decode-fetches",
        status=Status.PASS if good else Status.FAIL,
        title=f"Decode fetched {share * 100:.0f} % of {seen.handed_requests} handed-over prompts"
        + ("" if good else " and computed the rest itself: it looks fine and saves nothing"),
        measured=Quantity(value=share, unit="ratio", samples=seen.handed_requests),
        expected=Expected(source="every handed-over prompt is fetched", min=_FULLY, unit="ratio"),
        remedy=None
        if good
        else Remedy(
            text="Give decode the same connector, and read its log: kv_load_failure_policy=recompute, an expired "
            "lease or a failed handshake make it compute without a word to the client.",
            commands=("kvprobe logs decode.log", "kvprobe lint prefill.sh decode.sh"),
        ),
        notes=_counted(seen),
        links=(_PROTOCOL,),
        code=None if good else "no_kv_transfer_seen",
    )


def _counted(seen: Fetch) -> tuple[str, ...]:
    told = []
    if seen.external_tokens is not None:
        told.append(f"external_kv_transfer {seen.external_tokens:,.0f} of {seen.handed_tokens:,} tokens")
    if seen.transfers is not None:
        told.append(f"{seen.transfers:,.0f} transfers for {seen.handed_requests} requests")
    if seen.local_compute_tokens is not None:
        told.append(
            f"local_compute {seen.local_compute_tokens:,.0f} tokens, {seen.alone_tokens:,} of them kvprobe's baseline"
        )
    return tuple(told)


def _load(server: Server) -> float:
    return (server.requests_running or 0) + (server.requests_waiting or 0)


RULES: tuple[Rule[LiveFacts], ...] = (
    Rule("KVP680", "servers-answer", servers_answer),
    Rule("KVP681", "same-engines", same_engines),
    Rule("KVP682", "servers-idle", servers_idle),
    Rule("KVP683", "kv-params-complete", params_complete),
    Rule("KVP684", "side-channel", side_channel),
    Rule("KVP685", "decode-fetches", decode_fetches),
)
