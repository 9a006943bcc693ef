"""KVP686 to KVP689: how the requests of a live run ended, and whether their answers can be trusted."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding, Quantity, Remedy, Status
from kvprobe.models.paired_facts import Failed, LiveFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

_LOST_CODES = ("unreachable", "tls_failed", "timeout", "unauthorized", "not_found", "protocol_error", "answer_too_large")  # fmt: skip


def requests_succeed(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP686: every request ends with all its tokens."""
    for one in facts.failed:
        yield _failure(one)
    if facts.lengths and not facts.failed:
        total = sum(2 * length.pairs for length in facts.lengths)
        yield Finding(
            id="KVP686",
            name="requests-succeed",
            status=Status.PASS,
            title=f"All {total} timed requests ended with all their tokens",
            evidence=("pairs",),
        )


def output_equal(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP687: greedy output through P/D is the output of the same model without it."""
    compared = sum(length.compared_output for length in facts.lengths)
    same = sum(length.same_output for length in facts.lengths)
    if not compared:
        return
    if same == compared:
        status = Status.PASS
        title = f"Greedy output equals that of {facts.baseline} in all {compared} prompts"
    else:
        # Different kernels for other batch shapes flip near ties now and then; most prompts differing is no tie.
        status = Status.FAIL if same * 2 < compared else Status.WARN
        title = (
            f"Greedy output differs from that of {facts.baseline} in {compared - same} of {compared} prompts"
        )
    yield Finding(
        id="KVP687",
        name="output-equal",
        status=status,
        title=title,
        measured=Quantity(value=same / compared, unit="ratio", samples=compared),
        remedy=None
        if status is Status.PASS
        else Remedy(
            text="A few may be near ties of floating point; many mean that decode uses wrong KV: compare KV layout, "
            "dtype and block size of both sides, and look for expired leases.",
            commands=("kvprobe lint prefill.sh decode.sh", "kvprobe logs prefill.log"),
        ),
        evidence=("pairs",),
        code=None if status is Status.PASS else "pd_output_differs",
    )


def leases(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP688: no transfer failed, no lease ran out, and nothing was read after it had."""
    seen = facts.health
    late, gone, failed = (
        int(v or 0) for v in (seen.notifications_after_expiry, seen.kv_expired, seen.failed_transfers)
    )
    if late:
        text, code = (
            f"{late} reads ended after the lease had run out: answers may be wrong",
            "late_read_possible_corruption",
        )
    elif gone:
        text, code = f"{gone} requests lost their KV blocks before decode read them", "kv_lease_expired"
    elif failed:
        text, code = f"{failed} transfers failed during the run", "transfers_failed_counter"
    else:
        if seen.failed_transfers is not None:
            yield Finding(
                id="KVP688",
                name="leases",
                status=Status.PASS,
                title="No transfer failed and no lease expired",
            )
        return
    yield Finding(
        id="KVP688",
        name="leases",
        status=Status.FAIL,
        title=text,
        remedy=Remedy(
            text="Raise kv_lease_duration, find out why decode waits so long (its queue), and read both logs.",
            commands=("kvprobe logs prefill.log decode.log",),
        ),
        code=code,
    )


def no_cache(facts: LiveFacts, policy: Policy) -> Iterable[Finding]:
    """KVP689: no prefix cache gave what the run meant to measure."""
    hits = facts.health.cache_hit_tokens
    if not hits or facts.fetch is None:
        return
    yield Finding(
        id="KVP689",
        name="no-prefix-cache",
        status=Status.WARN,
        title=f"A prefix cache gave {hits:,.0f} tokens although every prompt was unique: other traffic, or a server "
        "that ignores cache_salt",
        remedy=Remedy(text="Measure servers without traffic, or start them with --no-enable-prefix-caching."),
        code="suspect_prefix_cache",
    )


def _failure(one: Failed) -> Finding:
    unknown = one.explained.code in _LOST_CODES
    which = "" if one.count == one.of == 1 else f" ({one.count} of {one.of} requests)"
    return Finding(
        id="KVP686",
        name="requests-succeed",
        status=Status.UNKNOWN if unknown else Status.FAIL,
        title=one.explained.reason.rstrip(".") + which,
        measured=Quantity(value=one.count, unit="requests", samples=one.of),
        remedy=Remedy(text=one.explained.remedy),
        where=f"{one.role}, {one.way}",
        code=one.explained.code,
    )


RULES: tuple[Rule[LiveFacts], ...] = (
    Rule("KVP686", "requests-succeed", requests_succeed),
    Rule("KVP687", "output-equal", output_equal),
    Rule("KVP688", "leases", leases),
    Rule("KVP689", "no-prefix-cache", no_cache),
)
