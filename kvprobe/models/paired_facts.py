"""Everything that a run against a deployment found out, as the rules on it see it. None: not measured."""

from __future__ import annotations

import msgspec

from kvprobe.formats.http_answer import Explained
from kvprobe.formats.kv_transfer_params import Params
from kvprobe.models.paired import LengthResult
from kvprobe.models.paired_load import Slo, WindowResult
from kvprobe.models.statistics import Interval, Summary


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server by its own account."""

    role: str
    url: str
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    prefix_caching: bool | None = None
    failure: Explained | None = None
    """Why it does not answer at all, or refuses."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a TCP connection to a side-channel port gave, without a byte sent."""

    host: str
    port: int
    connected: bool
    zmq: bool = False
    """It greeted as a ZMQ socket does."""
    detail: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended in the same way."""

    role: str
    way: str
    """``pd``, ``alone``, ``proxy``, ``load`` ..."""
    explained: Explained
    count: int
    of: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """What decode's counters say of prompts that were handed over to it; None: not exposed."""

    handed_tokens: int
    handed_requests: int
    external_tokens: float | None = None
    transfers: float | None = None
    local_compute_tokens: float | None = None
    alone_tokens: int = 0
    """Tokens that kvprobe itself made decode compute, as the colocated baseline."""

    @property
    def share(self) -> float | None:
        """Fetched tokens over handed ones; by transfers where the token counter is missing."""
        if self.external_tokens is not None and self.handed_tokens:
            return self.external_tokens / self.handed_tokens
        if self.transfers is not None and self.handed_requests:
            return min(1.0, self.transfers / self.handed_requests)
        return None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of trouble over the run, both sides together; None: not exposed."""

    failed_transfers: float | None = None
    kv_expired: float | None = None
    notifications_after_expiry: float | None = None
    cache_hit_tokens: float | None = None
    """Prompt tokens that a prefix cache gave although every prompt is unique."""


class ProxyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's proxy against the same protocol driven directly."""

    prompt_tokens: int
    overhead: Summary
    overhead_interval: Interval
    ttft: Summary
    fetch: Fetch


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn; seconds."""

    turn: int
    prompt_tokens: int
    prefill_seconds: float | None = None
    ttft_seconds: float | None = None
    """Of the last turn only, which streams; earlier turns need the whole answer."""
    read_back_tokens: int | None = None
    """Tokens that decode offered to prefill for this turn; None: it offered none."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation from its first to its last turn."""

    label: str
    read_back: bool
    turns: tuple[Turn, ...]
    offered: bool = False
    """Decode answered params for reading back."""
    failed_role: str | None = None
    failed_turn: int | None = None
    failure: Explained | None = None


class TurnsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations with and without reading back."""

    conversations: tuple[Conversation, ...]
    read_back_ttft: Summary | None = None
    plain_ttft: Summary | None = None
    prefill_external_tokens: float | None = None
    """What prefill's counters say it fetched from decode; None: not exposed."""

    @property
    def offered(self) -> bool:
        return any(c.offered for c in self.conversations)


class FourHops(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt through render, prefill, decode, derender; seconds; None: it did not come so far."""

    words: int
    """Random words that were asked for."""

    prompt_tokens: int | None = None
    """As the render server counted them."""
    render_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_first_seconds: float | None = None
    decode_seconds: float | None = None
    derender_seconds: float | None = None
    ttft_seconds: float | None = None
    """From the render call to decode's first token."""
    total_seconds: float | None = None
    """To the end of derender."""
    text: str = ""
    params: Params | None = None
    failed_hop: str | None = None
    failure: Explained | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured tax of one prompt length."""

    prompt_tokens: int
    predicted_seconds: float
    measured_seconds: float
    tolerance_seconds: float
    predicted_transfer_seconds: float | None
    measured_transfer_seconds: float | None
    source: str
    asked: bool = True
    """A report was given to be held against the truth; False: only the model's assumed terms."""
    interval: Interval | None = None
    """95 % interval of the measured tax."""
    planned_descriptors: float | None = None
    """Of a transfer whose blocks lie scattered, from the report."""
    seen_descriptors: float | None = None
    """Mean of the measured transfers."""

    @property
    def error_seconds(self) -> float:
        return self.predicted_seconds - self.measured_seconds

    @property
    def error_ratio(self) -> float | None:
        return self.error_seconds / self.measured_seconds if self.measured_seconds > 0 else None

    @property
    def within(self) -> bool:
        return abs(self.error_seconds) <= self.tolerance_seconds


class LiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    servers: tuple[Server, ...]
    prefill_host: str
    decode_host: str
    alone_role: str
    """``colocated``, or ``decode`` when it serves as its own baseline."""
    allow_busy: bool = False
    params: Params | None = None
    """Of the first prefill answer; None: prefill did not answer."""
    greeting: Greeting | None = None
    smoke_fetch: Fetch | None = None
    """The first requests, before anything is timed."""
    fetch: Fetch | None = None
    """The timed requests."""
    failed: tuple[Failed, ...] = ()
    first_contact_seconds: float | None = None
    """Decode call to first token of the first request of the run."""
    lengths: tuple[LengthResult, ...] = ()
    stopped: str | None = None
    """Why less was measured than asked for."""
    stop_remedy: str = ""
    asked_tokens: tuple[int, ...] = ()
    """Prompt lengths that fit and were to be measured."""
    left_out: tuple[str, ...] = ()
    """Prompt lengths that do not fit, with the reason."""
    health: Health = Health()
    proxy: tuple[ProxyResult, ...] = ()
    windows: tuple[WindowResult, ...] = ()
    slo: Slo = Slo()
    hops: tuple[FourHops, ...] = ()
    turns: TurnsResult | None = None
    predictions: tuple[Prediction, ...] = ()
    planned: dict[int, float] = {}
    """Descriptors of a transfer of scattered blocks by prompt length, from the preflight report."""
    rung4: dict[int, float] = {}
    """Transfer of NIXL alone by prompt length, seconds, from the preflight report."""

    def server(self, role: str) -> Server | None:
        return next((s for s in self.servers if s.role == role), None)

    @property
    def baseline(self) -> str:
        """How the other half of each pair is named."""
        return "the colocated server" if self.alone_role == "colocated" else "the decode server alone"
