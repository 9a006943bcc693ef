"""KVP401 to KVP409: what the engine's own numbers say. KVP411 to KVP417: what its messages say, by topic."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.log_facts import LogFacts
from kvprobe.models.log_meaning import DESCRIPTOR_SHARE, judged_seconds
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.logs_doctor import (
    connector_failed,
    handshake_failed,
    lease_expired,
    scheduler_reported,
    startup_failed,
    transfer_failed,
    transport_failed,
)
from kvprobe.rules.logs_lines import lines_whole, zeros_told
from kvprobe.rules.logs_metrics import cache_config_differs, decode_recomputes
from kvprobe.units import format_bytes, format_rate, format_seconds

_GUIDE = "https://docs.vllm.ai/en/latest/features/nixl_connector_usage/"
_SEMANTICS = "https://github.com/vllm-project/vllm/issues/41230"


def transfers_seen(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP401: the input tells about transfers from prefill to decode."""
    total = facts.total
    notes = tuple(facts.read_notes)
    if total.transfers:
        size = f", {format_bytes(total.bytes)}" if total.timed else ""
        where = (
            f" in {total.intervals:,} {'interval' if total.intervals == 1 else 'intervals'}"
            if facts.origin == "log"
            else ""
        )
        yield Finding(
            id="KVP401",
            name="kv-transfers-seen",
            status=Status.PASS,
            title=f"{total.transfers:,} successful transfers{size}{where}; a transfer is one rank's of one request",
            links=(_SEMANTICS,),
            evidence=(facts.evidence,),
            notes=notes,
        )
        return
    if total.intervals or facts.failures:
        failed = total.failures
        title = (
            f"0 successful transfers, {failed:,} failed: transfer times are undefined"
            if failed
            else "no successful transfer in the input"
        )
        yield Finding(
            id="KVP401", name="kv-transfers-seen", status=Status.SKIP, title=title, evidence=(facts.evidence,), notes=notes
        )  # fmt: skip
        return
    yield Finding(
        id="KVP401",
        name="kv-transfers-seen",
        status=Status.UNKNOWN,
        title=_nothing(facts),
        remedy=_where_to_look(facts),
        evidence=(facts.evidence,),
        notes=notes,
    )


def _where_to_look(facts: LogFacts) -> Remedy:
    if facts.others:
        return Remedy(text="Give the log of a prefill or decode instance with a P/D connector.")
    return Remedy(
        text="NIXL's pull connector prints transfers on decode, push and Mooncake on prefill; with several API servers, "
        "--disable-log-stats or a level above INFO nothing is printed: read /metrics.",
        commands=("kvprobe logs --metrics-url http://DECODE:8000/metrics",),
    )


def _nothing(facts: LogFacts) -> str:
    if facts.others:
        return f"only {', '.join(facts.others)}, which moves KV inside one server: nothing about prefill to decode"
    if facts.damaged:
        return f"{facts.damaged:,} metrics lines, all damaged or cut"
    if facts.origin != "log":
        return "no KV transfer series: this server runs no NIXL or Mooncake connector, or an old vLLM"
    if facts.roles == ("prefill",):
        return "a prefill log without a metrics line: the times of pull transfers are in the decode log"
    return "nothing about KV transfers"


def transfer_time(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP402: the engine's mean transfer is fast enough for a first token."""
    a = facts.warm
    mean, judged = a.xfer_mean_seconds, judged_seconds(a)
    if mean is None or judged is None:
        if facts.total.transfers:
            yield Finding(
                id="KVP402",
                name="engine-transfer-time",
                status=Status.UNKNOWN,
                title=f"{facts.total.transfers:,} transfers without a time: this vLLM (0.11.0) prints only their number, or the lines are cut",
                remedy=Remedy(text="Upgrade to 0.11.1 or later, or measure with kvprobe live."),
                evidence=(facts.evidence,),
            )
        return
    key = (
        "engine_transfer_seconds" if "engine_transfer_seconds" in policy.thresholds else "transfer_8k_seconds"
    )
    threshold = policy.thresholds.get(key)
    status = threshold.status(judged) if threshold else Status.PASS
    size = f" for {format_bytes(a.bytes_mean)}" if a.bytes_mean else ""
    notes = [f"a transfer's own rate is {format_rate(a.rate)}; the log's MB are MiB" if a.rate else ""]
    if facts.concurrency is not None and facts.concurrency > 1.5:
        notes.append(
            f"{facts.concurrency:.1f} transfers overlap on average, so each looks slower than the link is"
        )
    notes.append("the time holds the post call and the wait until the engine polls")
    if a.p90_ms:
        low, high = (format_seconds(v / 1e3) for v in a.p90_ms)
        both = f"P90 between {low} and {high}: P90s of intervals cannot be averaged, only bound it"
        notes.append(f"P90 {low}" if a.measured == 1 and low == high else both)
    if status is not Status.PASS and facts.meaning.looks_like:
        notes.append(f"looks like {facts.meaning.looks_like}: {facts.meaning.looks_like_why}")
    yield Finding(
        id="KVP402",
        name="engine-transfer-time",
        status=status,
        title=f"mean xfer time {format_seconds(mean)}{size}",
        measured=Quantity(value=mean, unit="s", statistic="mean", samples=a.timed),
        expected=Expected(source=policy.cite(key), max=threshold.fail_above or threshold.warn_above, unit="s") if threshold else None,
        remedy=None if status is Status.PASS else _faster(facts),
        links=(_GUIDE,),
        evidence=(facts.evidence,),
        notes=tuple(n for n in notes if n),
    )  # fmt: skip


def _faster(facts: LogFacts) -> Remedy:
    if facts.meaning.bound == "descriptors":
        return Remedy(
            text="Raise --block-size (64 or 128) on both sides: fewer descriptors, not a faster network."
        )
    return Remedy(
        text="Find the transport first (UCX_PROTO_INFO=y on both sides names it in the log): the numbers are too slow for "
        "CUDA IPC or RDMA, or many transfers overlap.",
        commands=("kvprobe preflight --model MODEL",),
    )


def descriptor_bound(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP403: moving bytes, not posting descriptors, takes the transfer's time."""
    a = facts.warm
    share = a.post_share
    if share is None:
        return
    piece, count = a.bytes_per_descriptor, a.descriptors_mean
    pieces = f"{count:,.0f} descriptors of {format_bytes(piece)}" if count and piece else "descriptors"
    bound = facts.meaning.bound == "descriptors"
    each = f", {format_seconds(a.seconds_per_descriptor)} each" if a.seconds_per_descriptor else ""
    # A transfer that ends inside the post call also shows a large share; it is fast, so it is no fault.
    threshold = policy.thresholds.get("engine_transfer_seconds") or policy.thresholds.get(
        "transfer_8k_seconds"
    )
    quick = threshold is not None and threshold.status(judged_seconds(a) or 0.0) is Status.PASS
    warns = bound and not quick
    limit = Expected(
        source="above half the descriptors cost more than the bytes", max=DESCRIPTOR_SHARE, unit="ratio"
    )
    remedy = Remedy(
        text="Raise --block-size (64 or 128) on both sides, or use a layout that packs blocks; the network is not the limit."
    )
    yield Finding(
        id="KVP403",
        name="post-share",
        status=Status.WARN if warns else Status.PASS,
        title=f"posting takes {share:.0%} of the transfer time ({pieces}{each})",
        measured=Quantity(value=share, unit="ratio", statistic="mean", samples=a.posted),
        expected=limit if warns else None,
        remedy=remedy if bound else None,
        links=("https://github.com/vllm-project/vllm/issues/34054",),
        evidence=(facts.evidence,),
    )  # fmt: skip


def first_contact(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP404: first transfers, which pay for the connection, are kept apart from the rest."""
    for row in facts.outliers:
        yield Finding(
            id="KVP404",
            name="first-contact",
            status=Status.PASS,
            title=f"the first interval took {format_seconds(row['xfer_seconds_mean'])} a transfer and is kept apart",
            where=f"{row['file']}:{row['line']}",
            evidence=(facts.evidence,),
            notes=("connection set-up and cold memory handles; the later ones are judged",),
        )


def engine_against_nixl(facts: LogFacts, policy: Policy) -> Iterable[Finding]:
    """KVP406: the engine needs no more than what NIXL alone needed for the same bytes and descriptors."""
    if facts.report is None:
        return
    c = facts.comparison
    if c is None:
        yield Finding(
            id="KVP406",
            name="engine-against-nixl",
            status=Status.SKIP,
            title=f"{facts.report} and the log cannot be compared: one lacks a cost fit, the other bytes and descriptors",
        )
        return
    threshold = policy.thresholds.get("engine_over_nixl")
    status = threshold.status(c.ratio) if threshold else Status.PASS
    more = "more" if c.loss_seconds >= 0 else "less"
    notes = [
        f"rung 4 predicts {format_seconds(c.predicted_seconds)} over {c.transport or 'its transport'} for {c.descriptors:,} descriptors"
    ]
    if c.extrapolated:
        notes.append("outside the range that was measured: the prediction is an extrapolation")
    if facts.concurrency is not None and facts.concurrency > 1.2:
        notes.append(
            f"{facts.concurrency:.1f} transfers overlap on average: they share the link and the pollers"
        )
    yield Finding(
        id="KVP406",
        name="engine-against-nixl",
        status=status,
        title=f"in the engine a transfer takes {c.ratio:.2f} times what NIXL alone needs ({format_seconds(abs(c.loss_seconds))} {more})",
        measured=Quantity(value=c.ratio, unit="times", statistic="mean", samples=facts.warm.timed),
        expected=Expected(source=policy.cite("engine_over_nixl"), max=threshold.warn_above, unit="times") if threshold else None,
        remedy=None
        if status is Status.PASS
        else Remedy(text="Look for overlapping transfers, long decode steps between polls, and another transport than the one measured."),
        where=facts.report,
        evidence=(facts.evidence,),
        notes=tuple(notes),
    )  # fmt: skip


RULES: tuple[Rule[LogFacts], ...] = (
    Rule("KVP401", "kv-transfers-seen", transfers_seen),
    Rule("KVP402", "engine-transfer-time", transfer_time),
    Rule("KVP403", "post-share", descriptor_bound),
    Rule("KVP404", "first-contact", first_contact),
    Rule("KVP405", "metrics-lines-whole", lines_whole),
    Rule("KVP406", "engine-against-nixl", engine_against_nixl),
    Rule("KVP407", "decode-recomputes", decode_recomputes),
    Rule("KVP408", "cache-config-differs", cache_config_differs),
    Rule("KVP409", "zeros-told", zeros_told),
    Rule("KVP411", "log-startup", startup_failed),
    Rule("KVP412", "log-handshake", handshake_failed),
    Rule("KVP413", "log-transfer", transfer_failed),
    Rule("KVP414", "log-lease", lease_expired),
    Rule("KVP415", "log-scheduler", scheduler_reported),
    Rule("KVP416", "log-transport", transport_failed),
    Rule("KVP417", "log-connector", connector_failed),
)
