"""KVP701 to KVP710: are the KV connectors ready on this machine, and does Mooncake move bytes?"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.connector_facts import ConnectorFacts
from kvprobe.models.connectors import NOT_IN_VERSION, READY, ConnectorState, Problem
from kvprobe.models.mooncake import LIMIT_MAX, LIMIT_VARIABLE
from kvprobe.models.statistics import summarize
from kvprobe.models.transfer import Series
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes, format_rate, format_seconds


def in_version(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP701: the connector is registered in this vLLM."""
    yield from _problems(facts, "KVP701", "connector-in-version", ("version",))


def packages(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP702: the connector's packages are installed, new enough, and their native libraries load."""
    yield from _problems(facts, "KVP702", "connector-package", ("package", "library"))
    for state in facts.states:
        if not state.asked and state.status != NOT_IN_VERSION:
            for problem in (p for p in state.problems if p.kind == "library"):
                yield _finding(state, problem, "KVP702", "connector-package", Status.WARN)
        if (
            state.asked
            and state.packages
            and not any(p.kind in ("package", "library") for p in state.problems)
        ):
            told = ", ".join(
                f"{p.distribution} {p.version} loads ({format_seconds(p.loaded.seconds)})"
                for p in state.packages
                if p.loaded and p.loaded.seconds is not None
            )
            if told:
                yield Finding(
                    id="KVP702", name="connector-package", status=Status.PASS, title=f"{state.name}: {told}",
                    evidence=("connectors",),
                )  # fmt: skip


def ports(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP703: the ports that the connector listens on are free, and servers that it calls answer."""
    for state in facts.states:
        if not state.asked:
            continue
        for problem in (p for p in state.problems if p.kind == "port"):
            status = Status.UNKNOWN if "could not be tried" in problem.text else Status.FAIL
            yield _finding(state, problem, "KVP703", "connector-ports", status)
        free = [p for p in state.ports if p.serves and p.free]
        if free and not any(p.kind == "port" for p in state.problems):
            numbers = f"{free[0].port}" if len(free) == 1 else f"{free[0].port} to {free[-1].port}"
            yield Finding(
                id="KVP703", name="connector-ports", status=Status.PASS,
                title=f"{state.name}: {free[0].what} port {numbers} on {free[0].host} is free", evidence=("connectors",),
            )  # fmt: skip


def config_file(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP704: the connector's configuration file is there and holds what vLLM accepts."""
    yield from _problems(facts, "KVP704", "connector-config", ("config",))
    for state in facts.states:
        config = state.config
        if state.asked and config and config.path and not config.problem:
            yield Finding(
                id="KVP704", name="connector-config", status=Status.PASS,
                title=f"{state.name}: {config.variable} names a file that vLLM accepts", where=config.path,
            )  # fmt: skip


def devices(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP705: the devices and the memory that the connector works with are here."""
    yield from _problems(facts, "KVP705", "connector-devices", ("device",))


def substitutes(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP706: no connector silently works with a mock or with made-up KV."""
    yield from _problems(facts, "KVP706", "connector-substitute", ("substitute",))


def composition(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP707: the connector's options, and a MultiConnector's children, fit together."""
    yield from _problems(facts, "KVP707", "connector-options", ("option",), without="MultiConnector")
    state = facts.state("MultiConnector")
    if state is None or not facts.multi:
        return
    for problem in facts.composition:
        status = Status.FAIL if problem.fatal else Status.PASS
        yield _finding(state, problem, "KVP707", "connector-options", status)


def mooncake_transfer(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP708: Mooncake moves the plan over TCP loopback and every byte arrives."""
    found = facts.mooncake
    if found is None:
        if facts.measure_note:
            yield Finding(
                id="KVP708",
                name="mooncake-transfer",
                status=Status.SKIP,
                title=f"no transfer measured: {facts.measure_note}",
            )
        return
    if found.failure and found.refused_batch is None:
        yield Finding(
            id="KVP708", name="mooncake-transfer", status=Status.UNKNOWN, title=found.failure,
            remedy=Remedy(text=found.failure_remedy) if found.failure_remedy else None, evidence=("mooncake",),
        )  # fmt: skip
    for series in found.series:
        if not series.seconds:
            continue
        figure = summarize(series.seconds)
        beside = _nixl_series(facts, series.order)
        title = (
            f"Mooncake WRITE of {series.prompt_tokens:,} tokens, {series.order}, TCP loopback: {format_seconds(figure.median)}"
            f" ({format_bytes(series.bytes)} in {series.nixl_descriptors:,} pieces, {format_rate(series.bytes / figure.median)})"
        )
        if beside:
            nixl = summarize(beside.seconds)
            title += f"; NIXL READ of the same plan {format_seconds(nixl.median)}"
        yield Finding(
            id="KVP708",
            name="mooncake-transfer",
            status=Status.PASS if series.verified else Status.UNKNOWN,
            title=title if series.verified else f"{title}; the bytes were not verified",
            measured=figure.quantity("s"),
            evidence=("mooncake", "nixl-beside") if beside else ("mooncake",),
        )


def _nixl_series(facts: ConnectorFacts, order: str) -> Series | None:
    if facts.nixl is None:
        return None
    return next((s for s in facts.nixl.series if s.order == order and s.seconds), None)


def mooncake_queue(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP709: Mooncake's TCP queue takes a whole request, as vLLM hands it over in one batch."""
    refused = facts.mooncake_default
    if refused is None or refused.refused_batch is None:
        return
    still = facts.mooncake is not None and facts.mooncake.refused_batch is not None
    yield Finding(
        id="KVP709",
        name="mooncake-queue",
        status=Status.FAIL if "MooncakeConnector" in facts.asked and facts.mooncake_over_tcp else Status.WARN,
        title=f"Mooncake over TCP refused a batch of {refused.refused_batch:,} pieces: vLLM hands over a request as one batch and would fail it",
        measured=Quantity(value=refused.refused_batch, unit="pieces", note=facts.plan),
        remedy=Remedy(
            text=f"Raise Mooncake's limit of queued transfers per peer (default 1,024, at most {LIMIT_MAX:,}) on both sides, or use a larger block size."
            + (
                f" {LIMIT_MAX:,} were not enough here."
                if still
                else " With it the same batch went through here."
            ),
            commands=(f"export {LIMIT_VARIABLE}={LIMIT_MAX}",),
        ),
        notes=("only the TCP transport has this queue; RDMA was not tested",),
        evidence=("mooncake-default",),
    )


def one_is_ready(facts: ConnectorFacts, policy: Policy) -> Iterable[Finding]:
    """KVP710: at least one connector that hands KV from prefill to decode is ready here."""
    if facts.asked:
        return
    pd = [s for s in facts.states if s.pd]
    ready = [s.name for s in pd if s.status == READY]
    if ready:
        title = f"ready for P/D with vLLM {facts.vllm}: {', '.join(ready)}"
        yield Finding(
            id="KVP710", name="pd-connector", status=Status.PASS, title=title, evidence=("connectors",)
        )
        return
    nixl = facts.state("NixlConnector")
    first = nixl.problems[0] if nixl and nixl.problems else None
    yield Finding(
        id="KVP710",
        name="pd-connector",
        status=Status.FAIL,
        title=f"no connector for P/D is ready here with vLLM {facts.vllm}",
        remedy=Remedy(text=f"NIXL is the usual one: {first.text}. {first.fix}".strip()) if first else None,
        evidence=("connectors",),
    )


def _problems(
    facts: ConnectorFacts, id: str, name: str, kinds: tuple[str, ...], without: str = ""
) -> Iterable[Finding]:
    """A finding for each such problem of a connector that has to be ready."""
    for state in (s for s in facts.states if s.asked and s.name != without):
        for problem in (p for p in state.problems if p.kind in kinds):
            yield _finding(state, problem, id, name, Status.FAIL if problem.fatal else Status.WARN)


def _finding(state: ConnectorState, problem: Problem, id: str, name: str, status: Status) -> Finding:
    return Finding(
        id=id,
        name=name,
        status=status,
        title=f"{state.name}: {problem.text}",
        remedy=Remedy(text=problem.fix) if problem.fix and status is not Status.PASS else None,
        evidence=("connectors",),
        code=f"connector_{problem.kind}",
    )


RULES: tuple[Rule[ConnectorFacts], ...] = (
    Rule("KVP701", "connector-in-version", in_version),
    Rule("KVP702", "connector-package", packages),
    Rule("KVP703", "connector-ports", ports),
    Rule("KVP704", "connector-config", config_file),
    Rule("KVP705", "connector-devices", devices),
    Rule("KVP706", "connector-substitute", substitutes),
    Rule("KVP707", "connector-options", composition),
    Rule("KVP708", "mooncake-transfer", mooncake_transfer),
    Rule("KVP709", "mooncake-queue", mooncake_queue),
    Rule("KVP710", "pd-connector", one_is_ready),
)
