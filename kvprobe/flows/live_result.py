"""What a live run's report holds: facts for the rules, ``result``, evidence."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.flows.live_predict import planned_descriptors
from kvprobe.flows.live_session import Session
from kvprobe.models.ladder import Rung, describe
from kvprobe.models.paired import LengthResult
from kvprobe.models.paired_facts import Failed, FourHops, LiveFacts, Prediction
from kvprobe.models.statistics import median
from kvprobe.probes.pd_endpoint import host_of
from kvprobe.report import Report

_JUDGED_TOKENS = 8192
_HOPS = tuple(f for f in FourHops.__struct_fields__ if f.endswith("_seconds") or f == "prompt_tokens")


def facts_of(session: Session, predicted: tuple[Prediction, ...], report: Report | None) -> LiveFacts:
    """All of the run for the rules."""
    rows = (report.result.get("tax") or []) if report else []
    return LiveFacts(
        servers=session.servers,
        prefill_host=host_of(session.ends.urls["prefill"]),
        decode_host=host_of(session.ends.urls["decode"]),
        alone_role=session.alone_role,
        allow_busy=session.request.allow_busy,
        params=session.params,
        greeting=session.greeting,
        smoke_fetch=session.smoke_fetch,
        fetch=session.fetch,
        failed=tuple(
            Failed(role=role, way=way, explained=why, count=count, of=max(count, session.outcomes[way]))
            for (role, way, _), (why, count) in session.failures.items()
        ),
        first_contact_seconds=session.cold.decode_first_seconds if session.cold else None,
        lengths=tuple(session.lengths),
        stopped=session.stopped,
        stop_remedy=session.stop_remedy,
        asked_tokens=session.prompt_tokens,
        left_out=tuple(session.left_out),
        health=session.health,
        proxy=tuple(session.proxy),
        windows=tuple(session.windows),
        slo=session.slo,
        hops=tuple(session.hops),
        turns=session.turns,
        predictions=predicted,
        planned=planned_descriptors(report),
        rung4={r["prompt_tokens"]: r["transfer_seconds"] for r in rows if r.get("transfer_seconds")},
    )


def subject(session: Session) -> dict[str, Any]:
    decode = next((s for s in session.servers if s.role == "decode"), None)
    version = f"vLLM {decode.version}" if decode and decode.version else None
    return {
        "model": session.model or None,
        **{role: {"url": url} for role, url in session.ends.urls.items()},
        "vllm_version": decode.version if decode else None,
        "headline": version,
    }


def result(session: Session, facts: LiveFacts, report: Report | None) -> dict[str, Any]:
    """The command's own answer; seconds, bytes, tokens; null: not measured."""
    decode = facts.server("decode")
    return {
        "vllm_version": decode.version if decode else None,
        "kv_buffer_device": session.request.kv_buffer_device,
        "baseline": facts.baseline,
        "stopped": session.stopped,
        "left_out": session.left_out,
        "servers": msgspec.to_builtins(session.servers),
        "kv_transfer_params": msgspec.to_builtins(session.params),
        "side_channel": msgspec.to_builtins(session.greeting),
        "first_contact": {
            "ttft_seconds": session.cold.ttft_seconds if session.cold else None,
            "decode_first_seconds": facts.first_contact_seconds,
        },
        "lengths": [_length(one) for one in session.lengths],
        "ladder": ladder(session.lengths, report),
        "fetch": _fetch(facts),
        "health": msgspec.to_builtins(session.health),
        "predictions": [
            {
                **msgspec.to_builtins(p),
                "error_seconds": p.error_seconds,
                "error_ratio": p.error_ratio,
                "within": p.within,
            }
            for p in facts.predictions
        ],
        "proxy": msgspec.to_builtins(session.proxy),
        "load": msgspec.to_builtins(session.windows),
        "four_hops": {"requests": msgspec.to_builtins(session.hops), "medians": _hop_medians(session.hops)},
        "turns": msgspec.to_builtins(session.turns),
        "failed": msgspec.to_builtins(facts.failed),
    }


def judged_length(lengths: list[LengthResult]) -> LengthResult | None:
    """The 8,192-token prompt, as in preflight; else the longest that was measured."""
    exact = [one for one in lengths if one.prompt_tokens == _JUDGED_TOKENS]
    return exact[0] if exact else max(lengths, key=lambda one: one.prompt_tokens, default=None)


def ladder(lengths: list[LengthResult], report: Report | None) -> list[dict[str, Any]]:
    """Rungs 5 and 6 of the judged length, on top of the preflight report's where it climbed the same prompt."""
    one = judged_length(lengths)
    if one is None:
        return []
    moved = one.transfer
    engine = Rung(
        number=5,
        status="measured" if moved else "unknown",
        bytes=round(moved.bytes) if moved and moved.bytes else None,
        seconds=one.transfer_seconds,
        statistic="median" if one.xfer else "mean",
        note=f"decode /metrics, n={one.xfer.samples if one.xfer else moved.transfers}"
        if moved
        else "no transfer in decode /metrics",
    )
    user = Rung(
        number=6,
        status="measured",
        bytes=engine.bytes,
        seconds=one.tax.median,
        statistic="median",
        samples=one.taxes,
        note="paired TTFT difference",
    )
    below: list[dict[str, Any]] = []
    if report is not None and one.prompt_tokens == _JUDGED_TOKENS:
        below = [
            r for r in report.result.get("ladder") or [] if isinstance(r, dict) and r.get("rung", 9) <= 4
        ]
    upper = describe([engine, user])
    last = next((r.get("seconds") for r in reversed(below) if r.get("seconds")), None)
    if last and engine.seconds:
        upper[0] |= {"loss_seconds": engine.seconds - last, "loss_ratio": engine.seconds / last}
    return [*below, *upper]


def evidence(session: Session) -> tuple[AnyEvidence, ...]:
    """Who the servers said they are, every pair that was timed, and the engine's counters."""
    found: list[AnyEvidence] = [
        Evidence(
            id="servers",
            kind="pd_servers",
            origin=Origin.READ,
            source="GET /v1/models, /version, /metrics",
            facts=session.servers,
            versions={f"vllm ({s.role})": s.version for s in session.servers if s.version},
        )
    ]
    if session.pairs:
        found.append(
            Evidence(
                id="pairs",
                kind="pd_pairs",
                origin=Origin.MEASURED,
                source="kvprobe drove the two-step protocol and the baseline itself; all samples, seconds",
                facts=tuple(session.pairs),
            )
        )
    moved = {one.prompt_tokens: one.transfer for one in session.lengths if one.transfer}
    if moved:
        found.append(
            Evidence(
                id="engine-transfer",
                kind="engine_transfer",
                origin=Origin.READ,
                source="decode /metrics, difference over the requests of each prompt length",
                facts=moved,
            )
        )
    return tuple(found)


def _hop_medians(hops: list[FourHops]) -> list[dict[str, Any]]:
    """One row a length: medians of the requests that came through."""
    rows = []
    for words in sorted({h.words for h in hops}):
        good = [h for h in hops if h.words == words and h.failure is None]
        row: dict[str, Any] = {"words": words, "requests": len(good)}
        for name in _HOPS:
            known = [v for h in good if (v := getattr(h, name)) is not None]
            row[name] = median(known) if known else None
        rows.append(row)
    return rows


def _length(one: LengthResult) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(one),
        "transfer_seconds": one.transfer_seconds,
        "beside_transfer_seconds": one.beside_transfer_seconds,
    }


def _fetch(facts: LiveFacts) -> dict[str, Any] | None:
    seen = facts.fetch or facts.smoke_fetch
    return {**msgspec.to_builtins(seen), "share": seen.share} if seen else None
