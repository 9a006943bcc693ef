"""What a transfer measurement is made of: setup, steps, series. Seconds and bytes."""

from __future__ import annotations

import msgspec

from kvprobe.formats.ucx_proto import ProtocolRow, Transport, observed_transport
from kvprobe.models.cost_fit import CostFit, Point, fit
from kvprobe.models.statistics import median

VLLM_BACKEND = {"num_threads": "4"}
"""vLLM 0.33's UCX backend parameters (kv_connector_extra_config num_threads, default 4)."""


def operation_of(connector: str) -> str:
    """``pull``: decode READs; ``push``: prefill WRITEs."""
    return "READ" if connector == "pull" else "WRITE"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the two sides run."""

    memory: str = "vram"
    """``vram`` or ``dram``."""
    prefill_gpu: int = 0
    decode_gpu: int = 1
    visibility: str = "one"
    """``one``: each process sees its own GPU only, as vLLM under an orchestrator; ``both``: both GPUs."""
    processes: int = 2
    """1: both agents in one process (cuda_ipc refuses that)."""
    env: dict[str, str | None] = {}
    """Variables set on top of the user's environment; None takes one away."""
    backend: dict[str, str] = msgspec.field(default_factory=lambda: dict(VLLM_BACKEND))
    progress_thread: bool = True
    kv_buffer_device: str = "cuda"
    """``cpu``: through host buffers on both sides, READ only."""

    @property
    def name(self) -> str:
        """``vram 0->1`` with what differs from vLLM's defaults."""
        where = f"vram {self.prefill_gpu}->{self.decode_gpu}" if self.memory == "vram" else "dram"
        extra = [f"{k}={v}" if v is not None else f"without {k}" for k, v in sorted(self.env.items())]
        if self.backend != VLLM_BACKEND:
            extra += [f"{k}={v}" for k, v in sorted(self.backend.items())] or ["backend defaults"]
        if self.kv_buffer_device == "cpu" and self.memory == "vram":
            extra.append("kv_buffer_device=cpu")
        if self.processes == 1:
            extra.append("one process")
        if self.visibility != "one" and self.memory == "vram":
            extra.append(f"{self.visibility} GPUs visible")
        return ", ".join([where, *extra])


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """``regions`` regions, ``blocks`` blocks of ``descriptor_bytes`` out of each."""

    regions: int
    descriptor_bytes: int
    blocks: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One series to measure."""

    id: str
    op: str
    """``READ`` (decode pulls) or ``WRITE`` (prefill pushes)."""
    order: str
    """``contiguous`` or ``shuffled`` block ids."""
    prompt_tokens: int
    groups: tuple[StepGroup, ...]
    samples: int = 10
    """Warm samples wanted."""
    min_samples: int = 5
    max_seconds: float = 5.0
    in_flight: int = 1

    @property
    def shape(self) -> tuple[tuple[int, int], ...]:
        """Regions and descriptor size of each group: what must be prepared once."""
        return tuple((g.regions, g.descriptor_bytes) for g in self.groups)

    @property
    def bytes(self) -> int:
        return sum(g.regions * g.descriptor_bytes * g.blocks for g in self.groups) * self.in_flight

    @property
    def descriptors(self) -> int:
        """Before NIXL merges neighbours."""
        return sum(g.regions * g.blocks for g in self.groups) * self.in_flight


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one step, all kept."""

    id: str
    op: str
    order: str
    prompt_tokens: int
    in_flight: int
    bytes: int
    descriptors: int
    """As asked for."""
    nixl_descriptors: int | None
    """As sent, after NIXL merged neighbours (per request); None if NIXL did not tell."""
    cold_seconds: tuple[float, ...]
    """The first sample of this shape; the run's very first one includes UCX's wire-up."""
    seconds: tuple[float, ...]
    """Warm samples: post until done, tight polling."""
    post_seconds: tuple[float, ...]
    request_seconds: tuple[tuple[float, ...], ...] = ()
    """Per sample, the end of each request, when several were in flight."""
    overhead_seconds: tuple[float, ...] = ()
    """kvprobe's own share per sample: building the request in Python."""
    stage_out_seconds: tuple[float, ...] = ()
    """Device to host on the prefill side, per sample; only with kv_buffer_device=cpu, not part of ``seconds``."""
    stage_in_seconds: tuple[float, ...] = ()
    """Host to device on the decode side."""
    verified: bool = False
    """The bytes at the decode side were compared with the pattern."""

    @property
    def median_seconds(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    @property
    def whole_seconds(self) -> float | None:
        """Median of transfer and staging copies together; None without samples."""
        if not self.stage_out_seconds:
            return self.median_seconds
        parts = zip(self.seconds, self.stage_out_seconds, self.stage_in_seconds, strict=True)
        return median([sum(p) for p in parts])

    @property
    def sent_descriptors(self) -> int:
        return (self.nixl_descriptors or 0) * self.in_flight or self.descriptors


class TransferFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the two sides."""

    setup: Setup
    series: tuple[Series, ...]
    protocols: tuple[ProtocolRow, ...]
    """Empty when the workers did not end in order: then the transport is unknown."""
    handshake_seconds: float | None
    versions: dict[str, str]
    workers: dict[str, dict[str, str | float | int | None]]
    """What each side told about itself: NIXL package, GPU name, set-up seconds."""
    skipped: tuple[str, ...] = ()
    """Steps that the budget left out."""
    failure: str | None = None
    failure_remedy: str = ""
    failure_log: str = ""

    def find(
        self, op: str, order: str, prompt_tokens: int | None = None, in_flight: int = 1
    ) -> Series | None:
        """The series with warm samples for op, order and prompt; the longest prompt when None."""
        mine = [
            s for s in self.series if (s.op, s.order, s.in_flight) == (op, order, in_flight) and s.seconds
        ]
        if prompt_tokens is None:
            return max(mine, key=lambda s: s.prompt_tokens, default=None)
        return next((s for s in mine if s.prompt_tokens == prompt_tokens), None)

    def transport(self, op: str) -> Transport | None:
        """The transport as observed for READ or WRITE; None: not observed."""
        return observed_transport(self.protocols, op)

    def fit(self, op: str) -> CostFit | None:
        """Cost fit over the warm medians of an operation, one request at a time.

        None for fewer than two different transfers: any term explains a single one, and would predict anything.
        """
        points = [
            Point(descriptors=s.sent_descriptors, bytes=s.bytes, seconds=median(s.seconds))
            for s in self.series
            if s.op == op and s.seconds and s.in_flight == 1
        ]
        return fit(points) if len({(p.descriptors, p.bytes) for p in points}) > 1 else None
