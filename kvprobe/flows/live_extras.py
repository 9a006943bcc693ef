"""What ``live`` measures beside the tax: the operator's proxy, conversations, the four-hop path, load."""

from __future__ import annotations

import msgspec

from kvprobe.flows.live_session import Session, fetch_of
from kvprobe.models.paired_counters import minus
from kvprobe.models.paired_facts import ProxyResult, TurnsResult
from kvprobe.models.paired_load import broken, summarize_window
from kvprobe.models.statistics import bootstrap_interval, summarize
from kvprobe.probes.pd_endpoint_drive import alone_request, pd_request
from kvprobe.probes.pd_endpoint_load import STREAM_PROMPT_TOKENS, Load
from kvprobe.probes.pd_endpoint_render import four_hops
from kvprobe.probes.pd_endpoint_turns import converse
from kvprobe.units import format_seconds

_CONVERSATIONS = 3
_LOAD_PROMPT_TOKENS = 8192
_ARRIVAL_OUTPUT_TOKENS = 32
_STREAM_TOKENS = 16_384


def proxy_phase(session: Session) -> None:
    """The same prompt through the proxy and driven directly, interleaved, at the shortest and longest length."""
    request = session.request
    if session.stopped or not request.proxy:
        return
    session.step(5, "the proxy against the same protocol driven directly")
    for tokens in sorted({session.prompt_tokens[0], session.prompt_tokens[-1]}):
        before = session.counters(f"before proxy {tokens}")
        overheads, ttfts, direct_tokens = [], [], 0
        for k in range(request.requests):
            if not session.in_time(f"proxy {tokens} {k}"):
                return
            session.door.progress.detail(f"{tokens:,} tokens {k + 1}/{request.requests}")
            ask = session.ask(f"proxy {k} {tokens}", tokens)
            first = session.draw.random() < 0.5
            seen = {}
            for way in ("direct", "proxy") if first else ("proxy", "direct"):
                if way == "proxy":
                    one = alone_request(session.ends, "proxy", ask, request.output_tokens, way="proxy")
                else:
                    one = pd_request(session.ends, ask, request.output_tokens)
                seen[way] = session.note(one)
            direct, through = seen["direct"], seen["proxy"]
            direct_tokens += tokens if direct.failure is None else 0
            if (
                direct.ttft_seconds is None
                or through.ttft_seconds is None
                or direct.failure
                or through.failure
            ):
                continue
            overheads.append(through.ttft_seconds - direct.ttft_seconds)
            ttfts.append(through.ttft_seconds)
        counted = minus(session.counters(f"after proxy {tokens}"), before)
        if not ttfts:
            continue
        if (
            counted.external_kv_transfer is not None
        ):  # the direct requests fetched too; the rest is the proxy's
            external = max(0.0, counted.external_kv_transfer - direct_tokens)
            counted = msgspec.structs.replace(counted, external_kv_transfer=external)
        fetch = fetch_of(len(ttfts), tokens * len(ttfts), 0, counted)
        session.proxy.append(
            ProxyResult(
                prompt_tokens=tokens,
                overhead=summarize(overheads),
                overhead_interval=bootstrap_interval(overheads),
                ttft=summarize(ttfts),
                fetch=fetch,
            )
        )


def turns_phase(session: Session) -> None:
    """Conversations with decode's KV read back by prefill, and the same without."""
    request = session.request
    if session.stopped or not request.turns:
        return
    session.step(6, f"conversations of {request.turns} turns, with and without read-back")
    before = session.counters("before turns", "prefill")
    room = min((s.max_model_len for s in session.servers if s.max_model_len), default=32_768)
    each = max(16, min(1024, (room - 2) // request.turns - request.output_tokens))
    found = []
    for k in range(_CONVERSATIONS):
        for read_back in (True, False) if session.draw.random() < 0.5 else (False, True):
            if not session.in_time(f"turns {k} {read_back}"):
                break
            one = converse(
                session.ends,
                seed=session.seed,
                label=f"conversation {k} {'read back' if read_back else 'plain'}",
                turns=request.turns,
                turn_tokens=each,
                output_tokens=request.output_tokens,
                model=session.model,
                read_back=read_back,
            )
            found.append(one)
            if one.failure is not None:
                session.note_failure(one.failed_role or "", "turns", one.failure)
        if found and found[-1].failure is not None:
            break
    seen = minus(session.counters("after turns", "prefill"), before)
    ttfts = {flag: [t for c in found if c.read_back is flag for t in [c.turns[-1].ttft_seconds if c.turns else None] if t is not None] for flag in (True, False)}  # fmt: skip
    session.turns = TurnsResult(
        conversations=tuple(found),
        read_back_ttft=summarize(ttfts[True]) if ttfts[True] else None,
        plain_ttft=summarize(ttfts[False]) if ttfts[False] else None,
        prefill_external_tokens=seen.external_kv_transfer,
    )


def four_hop_phase(session: Session) -> None:
    """render -> prefill -> decode -> derender at every prompt length."""
    request = session.request
    if session.stopped or not request.render:
        return
    session.step(6, "the four-hop path: render, prefill, decode, derender")
    for tokens in session.prompt_tokens:
        for k in range(request.requests):
            if not session.in_time(f"render {tokens} {k}"):
                return
            label = f"four hops {k} {tokens}"
            one = four_hops(session.ends, session.seed, label, tokens, request.output_tokens, session.model)
            session.hops.append(one)
            if one.failure is not None:
                session.note_failure(one.failed_hop or "", "render", one.failure)
                return


def load_phase(session: Session) -> None:
    """Streams while long prompts arrive, both ways, at a doubling rate until the colocated tail breaks."""
    request = session.request
    if session.stopped or not request.load_seconds:
        return
    most = request.load_seconds * 2 * request.ramp
    session.step(7, f"{request.streams} streams while long prompts arrive, at most {format_seconds(most)}")
    room = min((s.max_model_len for s in session.servers if s.max_model_len), default=_STREAM_TOKENS)
    load = Load(
        session.door.system,
        session.ends,
        seed=session.seed,
        model=session.model,
        api=request.api,
        prompt_tokens=min(_LOAD_PROMPT_TOKENS, session.prompt_tokens[-1]),
        output_tokens=_ARRIVAL_OUTPUT_TOKENS,
        stream_tokens=max(16, min(_STREAM_TOKENS, room - STREAM_PROMPT_TOKENS - 1)),
        # Two servers against two: without a colocated deployment both serve whole requests, in turn.
        alone_roles=("colocated",) if request.colocated else ("decode", "prefill"),
    )
    for index in range(request.ramp):
        rate = request.rate * 2**index
        order = ("pd", "colocated") if session.draw.random() < 0.5 else ("colocated", "pd")
        seen = {}
        for way in order:
            if not session.in_time(f"load {way} {rate:g}"):
                return
            session.door.progress.detail(f"{way} at {rate:g}/s")
            window, requests = load.window(way, rate, request.load_seconds, request.streams)
            for one in requests:
                session.note(one, f"load {way}")
            seen[way] = summarize_window(window, session.slo)
            session.windows.append(seen[way])
        if broken(seen["colocated"], session.slo):
            break
