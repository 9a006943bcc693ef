"""The connecting side of a measurement between two nodes: meets the listener, runs phase after phase with it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvprobe import processes
from kvprobe.models.two_nodes import Failure, NodeFacts, Phase, Summary
from kvprobe.probes.peer_wire import PeerError, Wire, plain, show_address
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.system import System

_DIAL_SECONDS = 10.0
_GREET_SECONDS = 10.0
_ANSWER_SECONDS = 20.0
_SILENCE_SECONDS = 10.0
_SETUP_SECONDS = 60.0
LOG_TAIL = 512 * 1024


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: what the listener is asked for, and this side's worker."""

    phase: Phase
    job: WorkerJob

    @property
    def deadline_seconds(self) -> float:
        return self.phase.budget_seconds + self.phase.transfer_timeout_seconds + _SETUP_SECONDS


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    remote: NodeFacts | None = None
    outcomes: dict[str, tuple[WorkerOutcome, ...]] = {}
    """Kind of phase -> outcomes, this side's first; also of a phase that failed."""
    refused: dict[str, str] = {}
    """Kind -> why the listener did not grant it."""
    failure: Failure | None = None


def conduct(
    system: System,
    address: tuple[str, int],
    token: str,
    mine: NodeFacts,
    asks: Sequence[Ask],
    *,
    key: Any,
    summarise: Callable[[Sequence[WorkerOutcome]], Summary],
    on_phase: Callable[[str], None] = lambda kind: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Conversation:
    """Meet the listener at ``address`` and run the phases. Failures are facts: what was measured before them is kept."""

    def look() -> Any:
        talk = _Talk(address, token, on_event)
        try:
            talk.run(mine, asks, summarise, on_phase)
        except PeerError as error:
            talk.failure = Failure(code=error.code, reason=error.reason, remedy=error.remedy)
        finally:
            talk.close()
        return msgspec.to_builtins(
            Conversation(
                remote=talk.remote,
                outcomes={kind: tuple(found) for kind, found in talk.outcomes.items()},
                refused=talk.refused,
                failure=talk.failure,
            )
        )

    found = msgspec.convert(system.observe("two_nodes", key, look), Conversation)
    if any(o.error_kind == "interrupted" for outcomes in found.outcomes.values() for o in outcomes):
        system.interrupted = True
    return found


class _Talk:
    def __init__(self, address: tuple[str, int], token: str, on_event: Callable[[Event], None]) -> None:
        self.address, self.token, self.on_event = address, token, on_event
        self.remote: NodeFacts | None = None
        self.outcomes: dict[str, list[WorkerOutcome]] = {}
        self.refused: dict[str, str] = {}
        self.failure: Failure | None = None
        self._wire: Wire | None = None

    def run(
        self,
        mine: NodeFacts,
        asks: Sequence[Ask],
        summarise: Callable[[Sequence[WorkerOutcome]], Summary],
        on_phase: Callable[[str], None],
    ) -> None:
        self._wire = wire = _dial(self.address, self.token)
        wire.send({"node": msgspec.to_builtins(mine)})
        answer = _answer(wire, "node", _ANSWER_SECONDS)
        try:
            self.remote = msgspec.convert(answer, NodeFacts)
        except msgspec.ValidationError as error:
            raise PeerError("not_kvprobe", f"{wire.who} told nonsense about itself: {error}.") from None
        for ask in asks:
            on_phase(ask.phase.kind)
            self._phase(wire, ask)
            if any(o.error_kind == "interrupted" for o in self.outcomes.get(ask.phase.kind, ())):
                return
        last = asks[-1].phase.kind
        wire.send({"end": msgspec.to_builtins(summarise(self.outcomes.get(last, [])))})

    def _phase(self, wire: Wire, ask: Ask) -> None:
        kind = ask.phase.kind
        wire.send({"phase": msgspec.to_builtins(ask.phase)})
        answer = wire.receive(_ANSWER_SECONDS)
        if answer.get("refused"):
            self.refused[kind] = plain(answer.get("reason", "no reason given"))
            return
        ticket = str(answer.get("ticket", ""))
        link = _dial(self.address, self.token, ticket=ticket)
        try:
            _answer(wire, "ready", _ANSWER_SECONDS)
        except PeerError:
            link.close()
            raise
        mine = processes.run_workers(
            [ask.job],
            deadline_seconds=ask.deadline_seconds,
            silence_seconds=_SILENCE_SECONDS,
            on_event=lambda _, event: self.on_event(event),
            sockets={"peer": link.sock},
        )
        found = self.outcomes.setdefault(kind, mine)
        if any(o.error_kind == "interrupted" for o in mine):
            return
        theirs = _answer(wire, "outcome", _ANSWER_SECONDS)
        try:
            found.append(msgspec.convert(theirs, WorkerOutcome))
        except msgspec.ValidationError as error:
            raise PeerError("not_kvprobe", f"{wire.who} told nonsense about its worker: {error}.") from None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


def _answer(wire: Wire, key: str, seconds: float) -> Any:
    message = wire.receive(seconds)
    if message.get("refused"):
        if message["refused"] == "busy":
            raise PeerError(
                "busy", f"{wire.who} is measuring with another node.", "Try again when it is done."
            )
        raise PeerError("refused", f"{wire.who} refused: {plain(message.get('reason', message['refused']))}.")
    if key not in message:
        raise PeerError("not_kvprobe", f"{wire.who} answered something else than {key!r}.")
    return message[key]


def _dial(address: tuple[str, int], token: str, **purpose: str) -> Wire:
    host, port = address
    where = show_address(host, port)
    try:
        sock = socket.create_connection(address, timeout=_DIAL_SECONDS)
    except socket.gaierror as error:
        raise PeerError("address_unknown", f"{host} cannot be resolved ({error.strerror}).", "Give an address that this node can reach.") from None  # fmt: skip
    except TimeoutError:
        raise PeerError("no_route", f"{where} did not answer within {_DIAL_SECONDS:.0f} s.", "A firewall may drop the packets, or the address is wrong.") from None  # fmt: skip
    except ConnectionRefusedError:
        raise PeerError(
            "nobody_listens", f"Nobody listens on {where}.",
            f"Start `kvprobe transfer --listen 0.0.0.0:{port}` there first; without an address it listens on loopback only.",
        ) from None  # fmt: skip
    except OSError as error:
        raise PeerError("no_route", f"{where} cannot be reached: {error.strerror}.", "Check address, route and firewall.") from None  # fmt: skip
    wire = Wire(sock, where)
    try:
        wire.greet(token, _GREET_SECONDS, **purpose)
    except PeerError:
        wire.close()
        raise
    return wire
