"""``kvprobe logs --metrics-url``: the same judgement from ``/metrics``, two scrapes apart."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.flows import Door, Draft
from kvprobe.formats.vllm_metrics import EngineSeries, Scrape, scrape_delta
from kvprobe.models.log_doctor import Doctor
from kvprobe.models.log_facts import LogFacts, cache_differences, recompute_of
from kvprobe.models.log_meaning import aggregate_of, assessment, compare_with_fit, meaning
from kvprobe.models.log_summary import Aggregate
from kvprobe.probes.log_signatures import load_signatures
from kvprobe.probes.metrics_endpoint import metrics_url, scrape_twice
from kvprobe.rules.base import run_rules
from kvprobe.rules.logs import RULES

_ROLES = ("prefill", "decode")


def read_metrics(
    door: Door, texts: list[str], seconds: float, fit: dict[str, Any], report: str | None
) -> Draft:
    """``texts``: URLs, each with ``prefill=`` or ``decode=`` in front if it is known."""
    roles, urls = _named(texts)
    door.progress.step(f"scraping {', '.join(urls)}" + (f", again in {seconds:.0f} s" if seconds else ""))
    first, second, gone = scrape_twice(door.system, urls, seconds)
    window = {u: scrape_delta(first[u], second[u]) for u in urls} if second else first
    last = second or first
    for url in urls:
        roles.setdefault(url, _role(last[url]))
    total = Aggregate()
    rows = []
    for url in urls:
        for engine in window[url].engines:
            for transfer in engine.transfers:
                one = aggregate_of(transfer)
                total.merge(one)
                rows.append({
                    "url": url,
                    "role": roles[url],
                    "engine": engine.engine,
                    "connector": transfer.connector,
                    **one.result(),
                    "goodput_bytes_per_second": one.bytes / gone if gone and one.timed else None,
                    "implied_concurrency": one.xfer_seconds / gone if gone and one.timed else None,
                })  # fmt: skip
    doctor = Doctor(load_signatures(door.system))
    for row in rows:
        doctor.conclude(
            "transfers_failed_counter",
            (row["num_failed_transfers"] or 0) + (row["num_failed_recvs"] or 0),
            row["url"],
        )
        doctor.conclude("kv_lease_expired", row["num_kv_expired_reqs"] or 0, row["url"])
        doctor.conclude("late_read_possible_corruption", row["num_notifs_after_expiry"] or 0, row["url"])
    # Recomputed prompts are told since the start: a window may hold a handful of requests.
    recompute = tuple(
        r
        for u in urls
        if roles[u] == "decode"
        for e in last[u].engines
        if (r := recompute_of(u, e)) is not None
    )
    facts = LogFacts(
        origin="/metrics",
        sources=urls,
        total=total,
        warm=total,
        meaning=meaning(total),
        concurrency=max(
            (r["implied_concurrency"] for r in rows if r["implied_concurrency"] is not None), default=None
        ),
        failures=tuple(doctor.failures()),
        others=tuple(
            sorted({name.split("{")[0] for u in urls for e in last[u].engines for name in e.others})
        ),
        read_notes=() if gone else ("counters since the servers started, first transfers included",),
        comparison=compare_with_fit(total, fit),
        report=report,
        recompute=recompute,
        cache_differences=_differences(urls, roles, last),
        evidence="metrics",
    )
    slow = door.policy.thresholds.get("engine_transfer_seconds")
    result = {
        "kv_transfer_intervals": [],
        "window_seconds": gone,
        "totals": {**total.result(), "implied_concurrency": facts.concurrency},
        "engines": rows,
        "sources": [_source(u, roles[u], e) for u in urls for e in last[u].engines],
        "failures": list(facts.failures),
        "cache_differences": msgspec.to_builtins(facts.cache_differences),
        "assessment": assessment(total, total, list(facts.failures), slow.fail_above if slow else None),
        "meaning": msgspec.to_builtins(facts.meaning),
        "against_nixl": msgspec.to_builtins(facts.comparison) if facts.comparison else None,
    }
    evidence = Evidence(
        id="metrics", kind="engine_metrics", origin=Origin.READ, source=", ".join(urls), at=door.system.now().isoformat(), facts=total.result()
    )  # fmt: skip
    return Draft(
        subject={"headline": ", ".join(urls)},
        findings=tuple(run_rules(RULES, facts, door.policy)),
        evidence=(evidence,),
        result=result,
    )


def _named(texts: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    roles: dict[str, str] = {}
    urls = []
    for text in texts:
        role, equals, rest = text.partition("=")
        named = bool(equals) and role in _ROLES
        url = metrics_url(rest if named else text)
        urls.append(url)
        if named:
            roles[url] = role
    if len(set(urls)) != len(urls):
        raise UsageError("The same --metrics-url is given twice.")
    return roles, tuple(urls)


def _role(page: Scrape) -> str:
    """Who it is when nobody says: decode has external prompt tokens or starts the transfers; otherwise prefill."""
    for engine in page.engines:
        external = engine.prompt_tokens_by_source.get("external_kv_transfer", 0)
        pulled = any(t.connector == "nixl" and t.count for t in engine.transfers)
        if external or pulled or engine.kv_fetch_by_stage:
            return "decode"
    return "prefill"


def _differences(urls: tuple[str, ...], roles: dict[str, str], pages: dict[str, Scrape]) -> Any:
    sides = {role: next((pages[u].engines[0] for u in urls if roles[u] == role), None) for role in _ROLES}
    if sides["prefill"] is None or sides["decode"] is None:
        return None
    return cache_differences(sides["prefill"], sides["decode"])


def _source(url: str, role: str, engine: EngineSeries) -> dict[str, Any]:
    return {
        "url": url,
        "role": role,
        "engine": engine.engine,
        "model": engine.model,
        "prompt_tokens_by_source": engine.prompt_tokens_by_source,
        "kv_fetch_by_stage": engine.kv_fetch_by_stage,
        "requests_running": engine.requests_running,
        "requests_waiting": engine.requests_waiting,
        "ttft_seconds_mean": engine.ttft_seconds.mean if engine.ttft_seconds else None,
        "cache_config": {k: v for k, v in engine.cache_config.items() if not k.startswith("_")},
        "other_connectors": engine.others,
    }
