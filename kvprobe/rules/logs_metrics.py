"""KVP407 and KVP408: what only ``/metrics`` tells."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.log_facts import LogFacts
from kvprobe.policy import Policy


def decode_recomputes(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP407: decode takes its prompts' KV from prefill instead of computing them."""
    threshold = policy.thresholds.get("decode_recompute_share")
    for r in facts.recompute:
        share = r.share
        if share is None or threshold is None:
            continue
        status = threshold.status(share)
        yield Finding(
            id="KVP407",
            name="decode-recomputes",
            status=status,
            title=f"decode computed {share:.1%} of its prompt tokens itself ({r.computed:,.0f}; {r.external:,.0f} came from prefill)",
            measured=Quantity(value=share, unit="ratio"),
            expected=Expected(source=policy.cite("decode_recompute_share"), max=threshold.warn_above, unit="ratio"),
            remedy=None
            if status is Status.PASS
            else Remedy(
                text="Requests reach decode without kv_transfer_params, or their KV failed to load: check the router and the decode log.",
                commands=("kvprobe logs decode.log",),
            ),
            links=("https://docs.vllm.ai/en/latest/usage/metrics/",),
            where=f"{r.url} engine {r.engine}",
            evidence=(facts.evidence,),
            code="no_kv_transfer_seen" if status is Status.FAIL else None,
        )  # fmt: skip


def cache_config_differs(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP408: prefill and decode store the KV cache alike (block size, dtype, layout)."""
    differences = facts.cache_differences
    if differences is None:
        return
    if not differences:
        yield Finding(
            id="KVP408",
            name="cache-config-differs",
            status=Status.PASS,
            title="prefill and decode differ in no exposed block size, KV cache dtype or layout",
            evidence=(facts.evidence,),
        )
    for d in differences:
        # Unequal block sizes work where decode's is a multiple; dtype and layout never do.
        breaks = d.name in ("cache_dtype", "kv_cache_layout")
        yield Finding(
            id="KVP408",
            name="cache-config-differs",
            status=Status.FAIL if breaks else Status.WARN,
            title=f"{d.name} is {d.prefill} on prefill and {d.decode} on decode",
            remedy=Remedy(
                text="Give both sides the same value; the handshake refuses other dtypes and layouts."
            ),
            evidence=(facts.evidence,),
            code={"block_size": "block_size_differs", "kv_cache_layout": "kv_layout_mismatch"}.get(d.name),
        )
