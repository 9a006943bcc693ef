"""The listening side of a measurement between two nodes: grants or refuses phases, runs this side's workers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kvprobe import processes
from kvprobe.formats.ucx_proto import observed_transport, parse_protocol_tables
from kvprobe.models.host import HostFacts
from kvprobe.models.two_nodes import Failure, Listened, NodeFacts, Phase, PhaseRun, Served, Summary, refusal
from kvprobe.probes.peer_gate import Gate
from kvprobe.probes.peer_wire import PeerError, Wire
from kvprobe.probes.two_nodes import LOG_TAIL
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

_BEGIN_SECONDS = 10.0
_BETWEEN_SECONDS = 120.0
_LINK_SECONDS = 15.0
_SILENCE_SECONDS = 6.0
_SETUP_SECONDS = 60.0
_MOST_REQUESTS = 16
_MODULES = {
    "stream": "kvprobe.workers.stream",
    "ucx": "kvprobe.workers.ucx",
    "nixl": "kvprobe.workers.nixl",
}


class Lending(msgspec.Struct, frozen=True, kw_only=True):
    """What this node gives a peer."""

    dram_bytes: int
    vram_bytes: int = 0
    gpu_index: int | None = None
    """nvidia-smi's number of the GPU that may be used."""
    no_gpu: str = ""
    """Why there is none."""
    progress_thread: bool = True


def listen(
    system: System,
    lending: Lending,
    mine: NodeFacts,
    address: tuple[str, int],
    token: str,
    *,
    wait_seconds: float,
    keep: bool,
    on_line: Callable[[str], None] = lambda line: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Listened:
    """Serve one session (or, with ``keep``, one after another) and tell what happened; ``wait_seconds`` for each caller."""

    def look() -> Any:
        try:
            gate = Gate(*address, token, on_line)
        except PeerError as error:
            failure = Failure(code=error.code, reason=error.reason, remedy=error.remedy)
            return msgspec.to_builtins(Listened(address=str(address[1]), failure=failure))
        sessions: list[Served] = []
        with gate:
            on_line(f"listening on {gate.address}")
            try:
                while wire := gate.next(wait_seconds):
                    on_line(f"{wire.who} knows the token, measuring")
                    sessions.append(_Session(gate, wire, lending, on_event).run(mine))
                    if not keep:
                        break
            except KeyboardInterrupt:
                # The usual end of --keep; without a session there is nothing to report.
                if not sessions:
                    raise
        return msgspec.to_builtins(
            Listened(address=gate.address, sessions=tuple(sessions), turned_away=dict(gate.turned_away))
        )

    return msgspec.convert(system.observe("two_nodes", {"role": "listen"}, look), Listened)


class _Session:
    def __init__(self, gate: Gate, wire: Wire, lending: Lending, on_event: Callable[[Event], None]) -> None:
        self._gate, self._wire, self._lending, self._on_event = gate, wire, lending, on_event
        self._phases: list[PhaseRun] = []

    def run(self, mine: NodeFacts) -> Served:
        remote: NodeFacts | None = None
        summary: Summary | None = None
        failure: Failure | None = None
        # Whoever else knows the token is told that this node is busy.
        self._gate.expect(secrets.token_hex(16))
        try:
            remote = msgspec.convert(self._wire.receive(_BEGIN_SECONDS).get("node"), NodeFacts)
            self._wire.send({"node": msgspec.to_builtins(mine)})
            for _ in range(_MOST_REQUESTS):
                if summary is None:
                    summary = self._turn()
            if summary is None:
                raise PeerError(
                    "refused", f"{self._wire.who} asked for more than {_MOST_REQUESTS} measurements."
                )
        except PeerError as error:
            failure = Failure(code=error.code, reason=error.reason, remedy=error.remedy)
        except msgspec.ValidationError as error:
            failure = Failure(code="not_kvprobe", reason=f"{self._wire.who} sent nonsense: {error}.")
        finally:
            self._gate.expect("")
            self._wire.close()
        return Served(
            remote=remote or _nobody(), phases=tuple(self._phases), summary=summary, failure=failure
        )

    def _turn(self) -> Summary | None:
        message = self._wire.receive(_BETWEEN_SECONDS)
        if "end" in message:
            return msgspec.convert(message["end"], Summary)
        try:
            phase = msgspec.convert(message.get("phase"), Phase)
        except msgspec.ValidationError as error:
            self._refuse(f"the request is malformed: {error}")
            return None
        reason = self._objection(phase)
        if reason:
            self._phases.append(
                PhaseRun(kind=phase.kind, bytes=phase.bytes, memory=phase.memory, refused=reason)
            )
            self._refuse(reason)
            return None
        self._run(phase)
        return None

    def _objection(self, phase: Phase) -> str | None:
        lending = self._lending
        if phase.memory == "dram":
            return refusal(phase, lending.dram_bytes)
        if lending.gpu_index is None:
            return lending.no_gpu or "this node lends no GPU"
        return refusal(phase, min(lending.vram_bytes, lending.dram_bytes) if phase.memory == "staged" else lending.vram_bytes)  # fmt: skip

    def _refuse(self, reason: str) -> None:
        self._wire.send({"refused": "request", "reason": reason})

    def _run(self, phase: Phase) -> None:
        ticket = secrets.token_hex(16)
        self._gate.expect(ticket)
        self._wire.send({"ticket": ticket})
        link = self._gate.next(_LINK_SECONDS)
        if link is None:
            raise PeerError("peer_silent", f"{self._wire.who} did not open its second connection.")
        self._wire.send({"ready": True})
        started = time.monotonic()
        (outcome,) = processes.run_workers(
            [_job(phase, self._lending)],
            deadline_seconds=phase.budget_seconds + phase.transfer_timeout_seconds + _SETUP_SECONDS,
            silence_seconds=_SILENCE_SECONDS,
            on_event=lambda _, event: self._on_event(event),
            sockets={"peer": link.sock},
        )
        if outcome.error_kind == "interrupted":
            raise KeyboardInterrupt
        self._phases.append(_told(phase, outcome))
        answer = msgspec.to_builtins(msgspec.structs.replace(outcome, log=outcome.log[-LOG_TAIL:]))
        answer["seconds"] = time.monotonic() - started
        self._wire.send({"outcome": answer})


def _job(phase: Phase, lending: Lending) -> WorkerJob:
    env: dict[str, str | None] = {
        "UCX_PROTO_INFO": "used",
        "UCX_LOG_FILE": None,
        **phase.env,
        "KVPROBE_TOKEN": None,
    }
    if phase.memory != "dram":
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(lending.gpu_index)}
    args = msgspec.to_builtins(phase)
    args.pop("env")
    args.pop("kind")
    args |= {"role": "prefill", "device": 0, "verify": True, "progress_thread": lending.progress_thread}
    return WorkerJob(name="prefill", module=_MODULES[phase.kind], args=args, env=env, links=("peer",))


def _told(phase: Phase, outcome: WorkerOutcome) -> PhaseRun:
    rows = parse_protocol_tables(outcome.log)
    seen = {op: found for op in ("READ", "WRITE") if (found := observed_transport(rows, op)) is not None}
    return PhaseRun(
        kind=phase.kind,
        bytes=phase.bytes,
        memory=phase.memory,
        error=outcome.error,
        via={op: found.via for op, found in seen.items()},
    )


def _nobody() -> NodeFacts:
    return NodeFacts(peer_hostname="unknown", kvprobe="unknown", machine="", host=HostFacts())
