"""One run against a deployment: identify, first contact, pairs. What it finds is kept even if it stops early."""

from __future__ import annotations

import random
import secrets
from collections import Counter

import msgspec

from kvprobe.errors import UsageError
from kvprobe.flows import Door
from kvprobe.flows.live_request import LiveRequest
from kvprobe.formats.http_answer import Explained
from kvprobe.formats.kv_transfer_params import Params, is_loopback
from kvprobe.models.paired import LengthResult, Pair, summarize_length
from kvprobe.models.paired_counters import Counters, minus, plus, totals, transfer_of
from kvprobe.models.paired_facts import (
    Fetch,
    FourHops,
    Greeting,
    Health,
    ProxyResult,
    Server,
    TurnsResult,
)
from kvprobe.models.paired_load import Slo, WindowResult
from kvprobe.probes.pd_endpoint import Access, Endpoints, host_of
from kvprobe.probes.pd_endpoint_drive import Ask, Timed, alone_request, make_ask, pd_request
from kvprobe.probes.pd_endpoint_facts import ask_server, read_greeting, read_metrics
from kvprobe.units import format_seconds

STEPS = 7
_GIVE_UP = 3
"""Failed pairs of one prompt length after which the rest of it is left out."""
_FETCHED = 0.5
"""Below this share of fetched tokens decode computes by itself, and a tax would be the tax of something else."""


class Session:
    """The state of one run."""

    def __init__(self, door: Door, request: LiveRequest) -> None:
        self.door, self.request = door, request
        roles = ("prefill", "decode", "proxy", "colocated", "render")
        urls = {role: url for role in roles if (url := getattr(request, role))}
        access = Access(
            timeout_seconds=request.timeout,
            ca_file=request.ca_file,
            insecure=request.insecure,
            api_key_env=request.api_key_env,
        )
        self.ends = Endpoints(door.system, urls, access)
        self.seed = int(door.system.observe("seed", "live", lambda: secrets.randbits(48)))
        self.draw = random.Random(self.seed)
        self.slo = Slo(ttft_seconds=request.ttft_slo, tpot_seconds=request.tpot_slo)
        self.alone_role = "colocated" if request.colocated else "decode"
        self.servers: tuple[Server, ...] = ()
        self.model = request.model or ""
        self.prompt_tokens = tuple(sorted(set(request.prompt_tokens)))
        self.stopped: str | None = None
        self.stop_remedy = ""
        self.left_out: list[str] = []
        self.params: Params | None = None
        self.greeting: Greeting | None = None
        self.cold: Timed | None = None
        self.smoke_fetch: Fetch | None = None
        self.fetch: Fetch | None = None
        self.health = Health()
        self.pairs: list[Pair] = []
        self.lengths: list[LengthResult] = []
        self.proxy: list[ProxyResult] = []
        self.windows: list[WindowResult] = []
        self.hops: list[FourHops] = []
        self.turns: TurnsResult | None = None
        self.outcomes: Counter[str] = Counter()
        self.failures: dict[tuple[str, str, str], tuple[Explained, int]] = {}

    def step(self, index: int, text: str) -> None:
        self.door.progress.step(text, index=index, total=STEPS)

    def stop(self, why: str, remedy: str = "") -> None:
        """Leave out what is still to come; the first reason counts."""
        if self.stopped is None:
            self.stopped, self.stop_remedy = why, remedy

    def interrupt(self) -> None:
        """Ctrl-C: what was measured so far is kept, judged and shown."""
        self.door.system.interrupted = True
        self.stop("interrupted", "Run it again.")

    def close(self) -> None:
        self.ends.close()

    def in_time(self, label: str) -> bool:
        """Whether --max-time allows another request; recorded, so that a replay decides alike."""
        left = self.door.system.observe(
            "time_left", label, lambda: self.request.max_seconds - self.ends.now()
        )
        if left <= 0:
            used = f"--max-time {format_seconds(self.request.max_seconds)} was used up"
            self.stop(used, "Raise --max-time, or lower --requests.")
        return bool(left > 0)

    def identify(self) -> None:
        """Ask every server who it is; stop if one is missing, busy, or not the one that was meant."""
        pairs = len(self.prompt_tokens) * self.request.requests
        most = format_seconds(self.request.max_seconds)
        self.step(1, f"asking the servers who they are; then {pairs} pairs of requests, at most {most}")
        self.servers = tuple(ask_server(self.ends, role) for role in self.ends.urls)
        by_role = {s.role: s for s in self.servers}
        if missing := [
            s.role for s in self.servers if s.failure and s.role in ("prefill", "decode", self.alone_role)
        ]:
            return self.stop(f"{' and '.join(missing)} did not answer")
        named = by_role["prefill"].models or by_role["decode"].models
        self.model = self.model or (named[0] if named else "")
        if not self.model:
            raise UsageError("The servers name no model.", "Name it with --model.")
        busy = [s for s in self.servers if (s.requests_running or 0) + (s.requests_waiting or 0) > 0]
        if busy and not self.request.allow_busy:
            return self.stop(f"{busy[0].role} is serving requests")
        limits = [s.max_model_len for s in self.servers if s.max_model_len]
        if limits:
            room = min(limits) - self.request.output_tokens - 1
            fitting = tuple(n for n in self.prompt_tokens if n <= room)
            gone = [n for n in self.prompt_tokens if n > room]
            if not fitting:
                raise UsageError(
                    f"No prompt length fits into max_model_len {min(limits):,} of the servers.",
                    f"Give --prompt-tokens of at most {max(2, room):,}.",
                )
            self.prompt_tokens = fitting
            self.left_out += [f"{n:,} tokens: max_model_len is {min(limits):,}" for n in gone]
        return None

    def first_contact(self) -> None:
        """The cold request apart, one warm one both ways, and what the counters say of them."""
        if self.stopped:
            return
        self.step(2, "first contact: handshake, kv_transfer_params, does decode fetch, is the output equal")
        tokens = self.prompt_tokens[0]
        before = self.counters("before first contact")
        ask = self.ask("first contact", tokens)
        self.cold = self.note(pd_request(self.ends, ask, self.request.output_tokens, ids=True))
        self.params = self.cold.params
        handed = 1 if self.cold.failure is None else 0
        if self.params is not None and self.params.host and self.params.port:
            self.greeting = self._greet(self.params.host, self.params.port)
        alone_tokens = 0
        if self.cold.failure is None:
            pair = self.pair("smoke", tokens, pd_first=True, ids=True)
            if pair is not None:
                handed += 1
                alone_tokens = tokens if self.alone_role == "decode" else 0
        seen = minus(self.counters("after first contact"), before)
        self.smoke_fetch = fetch_of(handed, handed * tokens, alone_tokens, seen)
        share = self.smoke_fetch.share
        if self.cold.failure is not None:
            self.stop("the first request through P/D failed")
        elif self.params is not None and self.params.problem is not None:
            self.stop("prefill hands nothing over that decode could fetch")
        elif share is not None and share < _FETCHED:
            self.stop("decode does not fetch, so there is no P/D tax to measure")

    def measure(self) -> None:
        """The pairs: warm-ups of every length tell how long the rest takes, then N pairs a length."""
        if self.stopped:
            return
        seconds = 0.0
        # The first transfer of a length is slow; so is the first whose blocks are scattered (samples/ttft).
        for label in ("warm-up", "warm-up 2") if self.request.settle else ("warm-up",):
            self.step(3, f"warming up every prompt length: {label}")
            seconds = 0.0
            for tokens in self.prompt_tokens:
                began = self._clock(f"{label} {tokens} begin")
                self.pair(label, tokens, pd_first=True)
                seconds += self._clock(f"{label} {tokens} end") - began
        pairs = len(self.prompt_tokens) * self.request.requests
        self.step(4, f"{pairs} pairs of requests, about {format_seconds(seconds * self.request.requests)}")
        handed, alone = 0, 0
        prefill_before = self.counters("before pairs", "prefill")
        first = self.counters("before pairs")
        for tokens in self.prompt_tokens:
            before = self.counters(f"before {tokens}")
            found, failed = self._length(tokens, before)
            transfer = transfer_of(minus(self.counters(f"after {tokens}"), before))
            self.pairs += found
            handed += tokens * len(found)
            alone += tokens * len(found) if self.alone_role == "decode" else 0
            if found:
                self.lengths.append(summarize_length(tokens, found, failed=failed, transfer=transfer))
            if self.stopped:
                break
        all_seen = minus(self.counters("after pairs"), first)
        prefill_seen = minus(self.counters("after pairs", "prefill"), prefill_before)
        self.fetch = fetch_of(len(self.pairs), handed, alone, all_seen)
        self.health = Health(
            failed_transfers=plus(all_seen.failed_transfers, prefill_seen.failed_transfers),
            kv_expired=plus(all_seen.kv_expired, prefill_seen.kv_expired),
            notifications_after_expiry=plus(
                all_seen.notifications_after_expiry, prefill_seen.notifications_after_expiry
            ),
            cache_hit_tokens=plus(all_seen.local_cache_hit, prefill_seen.local_cache_hit),
        )

    def _length(self, tokens: int, seen: Counters) -> tuple[list[Pair], int]:
        found: list[Pair] = []
        failed = 0
        for k in range(self.request.requests):
            if failed >= _GIVE_UP or not self.in_time(f"{tokens} {k}"):
                break
            self.door.progress.detail(f"{tokens:,} tokens {k + 1}/{self.request.requests}")
            try:
                pair = self.pair(f"pair {k}", tokens, pd_first=self.draw.random() < 0.5)
            except KeyboardInterrupt:
                self.interrupt()
                break
            if self.request.settle:
                now = self.counters(f"after pair {k} {tokens}")
                pair, seen = _with_transfer(pair, minus(now, seen)), now
            if pair is None:
                failed += 1
            else:
                found.append(pair)
        return found, failed

    def pair(self, label: str, tokens: int, *, pd_first: bool, ids: bool = False) -> Pair | None:
        """One prompt both ways; None if either failed (the failure is kept)."""
        ask = self.ask(f"{label} {tokens}", tokens)
        seen: dict[str, Timed] = {}
        for way in ("pd", "alone") if pd_first else ("alone", "pd"):
            if way == "pd":
                one = pd_request(self.ends, ask, self.request.output_tokens, ids=ids)
            else:
                one = alone_request(self.ends, self.alone_role, ask, self.request.output_tokens, ids=ids)
            seen[way] = self.note(one)
        pd, alone = seen["pd"], seen["alone"]
        if pd.failure or alone.failure or pd.ttft_seconds is None or alone.ttft_seconds is None:
            return None
        return Pair(
            prompt_tokens=tokens,
            pd_ttft=pd.ttft_seconds,
            colocated_ttft=alone.ttft_seconds,
            prefill_call=pd.prefill_seconds or 0.0,
            handover=pd.handover_seconds or 0.0,
            decode_first=pd.decode_first_seconds or 0.0,
            pd_itl=pd.itl_seconds,
            colocated_itl=alone.itl_seconds,
            pd_first=pd_first,
            same_output=pd.output == alone.output if pd.output and alone.output else None,
        )

    def ask(self, label: str, tokens: int) -> Ask:
        return make_ask(self.seed, label, tokens, self.model, self.request.api)

    def note(self, one: Timed, way: str | None = None) -> Timed:
        """Count a request, and keep its failure."""
        way = way or one.way
        if one.failure is not None:
            self.note_failure(one.failed_role or "", way, one.failure)
        self.outcomes[way] += 1
        return one

    def note_failure(self, role: str, way: str, failure: Explained, count: int = 1) -> None:
        key = (role, way, failure.code)
        kept, before = self.failures.get(key, (failure, 0))
        self.failures[key] = (kept, before + count)

    def counters(self, label: str, role: str = "decode") -> Counters:
        return totals(read_metrics(self.ends, role, label))

    def _greet(self, host: str, port: int) -> Greeting:
        # A loopback name means the prefill host itself; from here only the host of --prefill can be that.
        reachable = host_of(self.ends.urls["prefill"]) if is_loopback(host) else host
        return read_greeting(self.door.system, reachable, port)

    def _clock(self, label: str) -> float:
        return float(self.door.system.observe("run_clock", label, self.ends.now))


def _with_transfer(pair: Pair | None, seen: Counters) -> Pair | None:
    """The pair with its own transfer, where the counters moved by exactly one."""
    if pair is None or seen.transfers != 1:
        return pair
    return msgspec.structs.replace(pair, transfer_seconds=seen.xfer_seconds, descriptors=seen.descriptors)


def fetch_of(requests: int, tokens: int, alone: int, seen: Counters) -> Fetch:
    """What decode's counters say of ``requests`` handed over to it."""
    return Fetch(
        handed_requests=requests,
        handed_tokens=tokens,
        alone_tokens=alone,
        external_tokens=seen.external_kv_transfer,
        transfers=seen.transfers,
        local_compute_tokens=seen.local_compute,
    )
