"""KVP201 to KVP205: what was moved, how fast, over which transport."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.ladder import Rung, largest_loss
from kvprobe.models.statistics import FEW_SAMPLES, few_note
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.ladder_facts import LadderFacts
from kvprobe.units import format_bytes, format_quantity, format_rate, format_seconds


def raw_copy(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP201: one plain copy reaches a fair share of what the link can carry."""
    rung, link = facts.rung(1), facts.rung(0)
    if rung is None:
        why = next((r.note for r in facts.rungs if r.number == 1 and r.note), "not run")
        yield Finding(
            id="KVP201", name="raw-copy", status=Status.SKIP, title=f"rung 1, raw copy {facts.subject}: {why}"
        )
        return
    speed = rung.bandwidth_bytes_per_second or 0.0
    title = f"rung 1, raw copy {facts.subject}: {format_seconds(rung.seconds or 0)} for {format_bytes(rung.bytes or 0)}, {format_rate(speed)}"
    measured = _seconds(rung)
    if link is None or not link.bandwidth_bytes_per_second:
        yield Finding(
            id="KVP201",
            name="raw-copy",
            status=Status.PASS,
            title=title,
            measured=measured,
            evidence=facts.evidence,
        )
        return
    share = speed / link.bandwidth_bytes_per_second
    limit = policy.threshold("raw_copy_fraction_of_link")
    status = limit.status(share)
    yield Finding(
        id="KVP201",
        name="raw-copy",
        status=status,
        title=f"{title} ({share:.0%} of {link.note or 'the link'})",
        measured=Quantity(value=share, unit="ratio", statistic="median", samples=len(rung.samples) or None),
        expected=Expected(
            min=limit.warn_below, unit="ratio", source=policy.cite("raw_copy_fraction_of_link")
        ),
        remedy=None
        if status is Status.PASS
        else Remedy(
            text="The driver, ACS/IOMMU or virtualisation holds the copy back; look at ACS and the topology.",
            commands=("nvidia-smi topo -m", "lspci -vvv | grep -i acsctl"),
        ),  # fmt: skip
        evidence=facts.evidence,
    )


def contiguous(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP202: NIXL with blocks in order comes close to the raw copy."""
    rung, copy = facts.rung(3), facts.rung(1)
    if rung is None:
        return
    speed = rung.bandwidth_bytes_per_second or 0.0
    title = f"rung 3, NIXL {facts.operation}, blocks in order: {format_seconds(rung.seconds or 0)} for {format_bytes(rung.bytes or 0)}, {format_rate(speed)}"
    if copy is None or not copy.bandwidth_bytes_per_second:
        yield Finding(
            id="KVP202",
            name="nixl-contiguous",
            status=Status.PASS,
            title=title,
            measured=_seconds(rung),
            evidence=facts.evidence,
        )
        return
    share = speed / copy.bandwidth_bytes_per_second
    limit = policy.threshold("contiguous_fraction_of_raw_copy")
    status = limit.status(share)
    spread = rung.spread
    low_high = ""
    if spread and copy.seconds:
        low_high = f", quartiles {_share(copy.seconds / spread[1])} to {_share(copy.seconds / spread[0])}"
    yield Finding(
        id="KVP202",
        name="nixl-contiguous",
        status=status,
        title=f"{title} ({_share(share)} of the raw copy)",
        measured=Quantity(
            value=share,
            unit="ratio",
            statistic="median",
            samples=len(rung.samples),
            note=f"of the raw copy{low_high}",
        ),
        expected=Expected(
            min=limit.warn_below, unit="ratio", source=policy.cite("contiguous_fraction_of_raw_copy")
        ),
        remedy=None
        if status is Status.PASS
        else Remedy(
            text="NIXL loses against a plain copy before descriptors matter: look at the transport (KVP204), UCX_TLS and NIXL's threads.",
            commands=("kvprobe transfer --model MODEL --diagnose",),
        ),  # fmt: skip
        evidence=facts.evidence,
    )


def shuffled(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP203: the judged transfer, blocks shuffled as an aged vLLM stores them, stays under the policy's limit."""
    series, tokens = facts.judged, facts.judged_tokens
    if series is None or series.median_seconds is None:
        failure = facts.transfer.failure if facts.transfer else None
        why = facts.reduced or failure or "it was not measured"
        remedy = "Why it ended early stands in KVP205." if failure else "Give it more time with --budget."
        yield Finding(
            id="KVP203",
            name="nixl-shuffled",
            status=Status.UNKNOWN,
            title=f"rung 4, NIXL {facts.operation} of {tokens:,} tokens as vLLM stores them {facts.subject}: {why}",
            remedy=Remedy(text=facts.reduced_remedy or remedy),
            evidence=facts.evidence,
        )
        return
    seconds = series.median_seconds
    limit = policy.threshold("transfer_8k_seconds")
    status = limit.status(seconds)
    transport = facts.observed
    over = f" over {transport.label}" if transport else " over an unknown transport"
    each = seconds / series.sent_descriptors
    notes = [
        f"{series.sent_descriptors:,} descriptors of {format_bytes(series.bytes / series.descriptors)}, {format_seconds(each)} each, {format_rate(series.bytes / seconds)}"
    ]
    loss = largest_loss([r for r in facts.rungs if r.number <= 4])
    if loss is not None and status is not Status.PASS:
        notes.append(
            f"largest loss of the ladder: rung {loss.rung} over rung {loss.below}, {format_seconds(loss.seconds)} ({loss.means})"
        )
    yield Finding(
        id="KVP203",
        name="nixl-shuffled",
        status=status,
        title=f"rung 4, NIXL {facts.operation} of {tokens:,} tokens as vLLM stores them {facts.subject}: {format_seconds(seconds)}{over}",
        measured=Quantity(
            value=seconds,
            unit="s",
            statistic="median",
            samples=len(series.seconds),
            note=few_note(len(series.seconds)),
        ),
        expected=Expected(
            max=limit.fail_above if status is Status.FAIL else limit.warn_above,
            unit="s",
            source=policy.cite("transfer_8k_seconds"),
        ),
        remedy=_remedy(transport, status),
        evidence=facts.evidence,
        notes=tuple(notes),
    )


def _remedy(transport: Transport | None, status: Status) -> Remedy | None:
    if status is Status.PASS:
        return None
    if transport is not None and transport.emulated:
        text = "UCX found no zero-copy path and emulates RMA; mend the cause (KVP204) before anything else, or let kvprobe look for a way round."
    else:
        text = "The descriptors cost the time, not the link: larger --block-size, or a layout with fewer descriptors."
    return Remedy(text=text, commands=("kvprobe tune --model MODEL",))


def transport(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP204: the transport observed is a zero-copy one, as the topology promises."""
    if facts.transfer is None or not facts.transfer.series:
        return
    seen = facts.observed
    if seen is None:
        yield Finding(
            id="KVP204",
            name="transport",
            status=Status.UNKNOWN if facts.memory == "vram" else Status.WARN,
            title=f"transport of {facts.operation} not observed: the workers printed no UCX protocol table",
            remedy=Remedy(
                text="UCX prints it when its workers end in order; unset UCX_PROTO_INFO and UCX_LOG_FILE, and look at the failure above."
            ),
            evidence=facts.evidence,
        )
        return
    title = f"transport of {facts.operation}: {seen.label} ({seen.share:.0%} of the messages)"
    if not seen.emulated:
        yield Finding(id="KVP204", name="transport", status=Status.PASS, title=title, evidence=facts.evidence)
        return
    broken = facts.promised_p2p is True
    causes = "UCX_TLS without cma; another user, or processes that may not trace each other (process_vm_readv refused)"
    if facts.memory == "vram":
        causes = (
            "UCX_TLS without cuda_ipc; PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF with expandable_segments:True; containers with "
            "separate PID namespaces; READ without NVLink (UCX_CUDA_IPC_ENABLE_GET_ZCOPY); both agents in one process"
        )
    yield Finding(
        id="KVP204",
        name="transport",
        status=Status.FAIL if broken else Status.WARN,
        title=f"{title}{', although P2P is OK' if broken else ''}: UCX silently emulates RMA",
        measured=Quantity(value=seen.label),
        expected=Expected(
            value="zero-copy over cuda_ipc" if facts.memory == "vram" else "zero-copy",
            source="P2P status of the pair (NVML)" if broken else "a host with a zero-copy path",
        ),
        remedy=Remedy(text="Experiments of this run name the cause or a way round: KVP211, KVP212.")
        if facts.diagnosed
        else Remedy(
            text="Find what keeps the fast path away; kvprobe runs the short list of suspects by experiment.",
            commands=(
                "kvprobe transfer --model MODEL --diagnose",
                "env | grep -E 'UCX_|PYTORCH_.*ALLOC_CONF'",
            ),
        ),
        notes=(f"known ways into it: {causes}",),
        evidence=facts.evidence,
    )


def complete(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP205: the measurement ran to its end, and every byte arrived."""
    run = facts.transfer
    if run is None:
        return
    if run.failure:
        status = Status.FAIL if "wrong words" in run.failure else Status.UNKNOWN
        log = (
            ""
            if run.failure.endswith("was interrupted.")
            else " with -v and look at the worker's log in the evidence"
        )
        remedy = run.failure_remedy or f"Run again{log}."
        yield Finding(
            id="KVP205",
            name="transfer-complete",
            status=status,
            title=f"the transfer measurement {facts.subject} ended early: {run.failure}",
            remedy=Remedy(text=remedy),
            notes=(f"series measured before: {len(run.series)}",) if run.series else (),
            evidence=facts.evidence,
        )
        return
    verified = sum(s.verified for s in run.series)
    status = Status.PASS if verified == len(run.series) else Status.UNKNOWN
    yield Finding(
        id="KVP205",
        name="transfer-complete",
        status=status,
        title=f"bytes verified in {verified} of {len(run.series)} series",
        evidence=facts.evidence,
        notes=tuple(f"left out: {step} (time budget)" for step in run.skipped),
    )


def _share(value: float) -> str:
    return format_quantity(value, "ratio")


def _seconds(rung: Rung) -> Quantity:
    count = len(rung.samples)
    return Quantity(
        value=rung.seconds,
        unit="s",
        statistic=rung.statistic,
        samples=count or None,
        note=few_note(count) if 0 < count < FEW_SAMPLES else None,
    )


RULES: tuple[Rule[LadderFacts], ...] = (
    Rule("KVP201", "raw-copy", raw_copy),
    Rule("KVP202", "nixl-contiguous", contiguous),
    Rule("KVP203", "nixl-shuffled", shuffled),
    Rule("KVP204", "transport", transport),
    Rule("KVP205", "transfer-complete", complete),
)
