"""KVP411 to KVP417: one finding a root cause that the log doctor recognised, its consequences counted in notes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.log_facts import LogFacts
from kvprobe.policy import Policy

_STATUS = {"fail": Status.FAIL, "warn": Status.WARN, "info": Status.PASS}
_HIDDEN = {
    "code", "topic", "title", "severity", "count", "file", "line", "source", "side", "first", "last", "cause",
    "first_remedy", "commands", "reference", "since", "until", "consequence_of", "excerpt", "files", "counter",
}  # fmt: skip


def startup_failed(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP411: the engine started with a working NIXL, side channel and configuration."""
    return _findings("KVP411", "startup", facts)


def handshake_failed(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP412: decode and prefill accepted each other in the handshake."""
    return _findings("KVP412", "handshake", facts)


def transfer_failed(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP413: every transfer that was set up arrived."""
    return _findings("KVP413", "transfer", facts)


def lease_expired(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP414: decode read every block before its lease ended."""
    return _findings("KVP414", "lease", facts)


def scheduler_reported(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP415: the scheduler got the KV it was promised, and the router's parameters were whole."""
    return _findings("KVP415", "scheduler", facts)


def transport_failed(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP416: UCX found its devices and took a fast path."""
    return _findings("KVP416", "transport", facts)


def connector_failed(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP417: the connector's own parts (bootstrap, store, engine) work."""
    return _findings("KVP417", "connector", facts)


def _findings(rule: str, topic: str, facts: LogFacts) -> Iterable[Finding]:
    for row in (*facts.failures, *facts.notes):
        if row["topic"] == topic and row["consequence_of"] is None:
            yield _finding(rule, row, facts)


def _finding(rule: str, row: dict[str, Any], facts: LogFacts) -> Finding:
    follow = [f for f in facts.failures if f["consequence_of"] == row["code"]]
    notes = [f"cause: {row['cause']}"]
    details = {k: v for k, v in row.items() if k not in _HIDDEN and v is not None}
    if details:
        notes.append(", ".join(f"{k}: {_text(v)}" for k, v in details.items()))
    if row["excerpt"]:
        notes.append(f"line {row['line']}: {row['excerpt']}")
    if follow:
        notes.append("followed by " + ", ".join(f"{f['code']} ({f['count']:,})" for f in follow))
    place = f"{row['file']}:{row['line']}" if row["line"] else row["file"]
    return Finding(
        id=rule,
        name=f"log-{row['topic']}",
        # A consequence can weigh more than its cause: transfers lost because of what UCX only warned about.
        status=max((_STATUS[r["severity"]] for r in (row, *follow)), key=lambda status: status.rank),
        title=f"{row['title']}{_times(row)}",
        measured=Quantity(value=row["count"], unit="occurrences"),
        remedy=Remedy(text=row["first_remedy"], commands=tuple(row["commands"])),
        links=_links(row["reference"]),
        evidence=(facts.evidence,),
        where=f"{place} ({row['source']})" if row["source"] else place,
        notes=tuple(notes),
        code=row["code"],
    )


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _times(row: dict[str, Any]) -> str:
    count = f" ({row['count']:,} times" if row["count"] > 1 else " (once"
    if row["first"] and row["last"] and row["first"] != row["last"]:
        return f"{count}, {row['first']} to {row['last']})"
    return f"{count}, {row['first']})" if row["first"] else f"{count})"


def _links(source: str) -> tuple[str, ...]:
    links = []
    for word in source.replace(";", " ").split():
        name, hash_, number = word.strip(",()").partition("#")
        if hash_ and number.isdigit() and name.count("/") == 1:
            links.append(f"https://github.com/{name}/issues/{number}")
    return tuple(links)
