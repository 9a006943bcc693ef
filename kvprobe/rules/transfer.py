"""KVP2xx: what was moved, how fast, over which transport."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.ladder import Rung, largest_loss
from kvprobe.models.statistics import FEW_SAMPLES, few_note, median
from kvprobe.models.transfer import Series, TransferFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes, format_rate, format_seconds

EVIDENCE = ("transfer",)


class LadderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight knows of one ordered pair."""

    subject: str
    """``GPU 0 -> GPU 1`` or ``host memory``."""
    memory: str
    judged_tokens: int
    """The prompt length that the policy judges."""
    operation: str = "READ"
    """READ for a pull connector, WRITE for a push one."""
    rungs: tuple[Rung, ...] = ()
    transfer: TransferFacts | None = None
    promised_p2p: bool | None = None
    """The topology says OK for the deciding direction; None: not known, or host memory."""
    busy: tuple[str, ...] = ()
    """Why the GPUs are not idle; empty: idle."""
    reduced: str | None = None
    """Why less was measured than asked for (memory, budget)."""

    @property
    def judged(self) -> Series | None:
        return self.transfer.find(self.operation, "shuffled", self.judged_tokens) if self.transfer else None

    @property
    def observed(self) -> Transport | None:
        return self.transfer.transport(self.operation) if self.transfer else None

    def rung(self, number: int) -> Rung | None:
        return next((r for r in self.rungs if r.number == number and r.seconds), None)


def raw_copy(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP201: one plain copy reaches a fair share of what the link can carry."""
    rung, link = facts.rung(1), facts.rung(0)
    if rung is None:
        why = next((r.note for r in facts.rungs if r.number == 1 and r.note), "not run")
        yield Finding(id="KVP201", name="raw-copy", status=Status.SKIP, title=f"rung 1, raw copy {facts.subject}: {why}")
        return
    speed = rung.bandwidth_bytes_per_second or 0.0
    title = f"rung 1, raw copy {facts.subject}: {format_seconds(rung.seconds or 0)} for {format_bytes(rung.bytes or 0)}, {format_rate(speed)}"
    measured = _seconds(rung)
    if link is None or not link.bandwidth_bytes_per_second:
        yield Finding(id="KVP201", name="raw-copy", status=Status.PASS, title=title, measured=measured, evidence=("raw-copy",))
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
        expected=Expected(min=limit.warn_below, unit="ratio", source=policy.cite("raw_copy_fraction_of_link")),
        remedy=None if status is Status.PASS else Remedy(text="The driver, ACS/IOMMU or virtualisation holds the copy back; look at ACS and the topology.", commands=("nvidia-smi topo -m", "lspci -vvv | grep -i acsctl")),  # fmt: skip
        evidence=("raw-copy", "gpus"),
    )


def contiguous(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP202: NIXL with blocks in order comes close to the raw copy."""
    rung, copy = facts.rung(3), facts.rung(1)
    if rung is None:
        return
    speed = rung.bandwidth_bytes_per_second or 0.0
    title = f"rung 3, NIXL {facts.operation}, blocks in order: {format_seconds(rung.seconds or 0)} for {format_bytes(rung.bytes or 0)}, {format_rate(speed)}"
    if copy is None or not copy.bandwidth_bytes_per_second:
        yield Finding(id="KVP202", name="nixl-contiguous", status=Status.PASS, title=title, measured=_seconds(rung), evidence=EVIDENCE)
        return
    share = speed / copy.bandwidth_bytes_per_second
    limit = policy.threshold("contiguous_fraction_of_raw_copy")
    status = limit.status(share)
    spread = rung.spread
    low_high = ""
    if spread and copy.seconds:
        low_high = f", quartiles {copy.seconds / spread[1]:.0%} to {copy.seconds / spread[0]:.0%}"
    yield Finding(
        id="KVP202",
        name="nixl-contiguous",
        status=status,
        title=f"{title} ({share:.0%} of the raw copy)",
        measured=Quantity(value=share, unit="ratio", statistic="median", samples=len(rung.samples), note=f"of the raw copy{low_high}"),
        expected=Expected(min=limit.warn_below, unit="ratio", source=policy.cite("contiguous_fraction_of_raw_copy")),
        remedy=None if status is Status.PASS else Remedy(text="NIXL loses against a plain copy before descriptors matter: look at the transport (KVP204), UCX_TLS and NIXL's threads.", commands=("kvprobe transfer --diagnose",)),  # fmt: skip
        evidence=EVIDENCE,
    )


def shuffled(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP203: the judged transfer, blocks shuffled as an aged vLLM stores them, stays under the policy's limit."""
    series, tokens = facts.judged, facts.judged_tokens
    if series is None or series.median_seconds is None:
        why = facts.reduced or (facts.transfer.failure if facts.transfer else None) or "it was not measured"
        yield Finding(
            id="KVP203",
            name="nixl-shuffled",
            status=Status.UNKNOWN,
            title=f"rung 4, NIXL {facts.operation} of {tokens:,} tokens as vLLM stores them {facts.subject}: {why}",
            evidence=EVIDENCE if facts.transfer else (),
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
        notes.append(f"largest loss of the ladder: rung {loss.rung} over rung {loss.below}, {format_seconds(loss.seconds)} ({loss.means})")
    yield Finding(
        id="KVP203",
        name="nixl-shuffled",
        status=status,
        title=f"rung 4, NIXL {facts.operation} of {tokens:,} tokens as vLLM stores them {facts.subject}: {format_seconds(seconds)}{over}",
        measured=Quantity(value=seconds, unit="s", statistic="median", samples=len(series.seconds), note=few_note(len(series.seconds))),
        expected=Expected(max=limit.fail_above if status is Status.FAIL else limit.warn_above, unit="s", source=policy.cite("transfer_8k_seconds")),
        remedy=_remedy(transport, status),
        evidence=EVIDENCE,
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
            remedy=Remedy(text="UCX prints it when its workers end in order; unset UCX_PROTO_INFO and UCX_LOG_FILE, and look at the failure above."),
            evidence=EVIDENCE,
        )
        return
    title = f"transport of {facts.operation}: {seen.label} ({seen.share:.0%} of the messages)"
    if not seen.emulated:
        yield Finding(id="KVP204", name="transport", status=Status.PASS, title=title, evidence=EVIDENCE)
        return
    broken = facts.promised_p2p is True
    causes = (
        "known ways into it: UCX_TLS without cuda_ipc; PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF with expandable_segments:True; "
        "containers with separate PID namespaces; READ without NVLink (UCX_CUDA_IPC_ENABLE_GET_ZCOPY); both agents in one process"
    )
    yield Finding(
        id="KVP204",
        name="transport",
        status=Status.FAIL if broken else Status.WARN,
        title=f"{title}{', although P2P is OK' if broken else ''}: UCX silently emulates RMA",
        measured=Quantity(value=seen.label),
        expected=Expected(value="zero-copy over cuda_ipc" if facts.memory == "vram" else "zero-copy", source="P2P status of the pair (NVML)" if broken else "a host with a zero-copy path"),
        remedy=Remedy(
            text="Find what keeps cuda_ipc away; kvprobe runs the short list of suspects by experiment.",
            commands=("kvprobe transfer --diagnose", "env | grep -E 'UCX_|PYTORCH_.*ALLOC_CONF'"),
        ),
        notes=(causes,),
        evidence=EVIDENCE,
    )


def complete(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP205: the measurement ran to its end, and every byte arrived."""
    run = facts.transfer
    if run is None:
        return
    if run.failure:
        status = Status.FAIL if "wrong words" in run.failure else Status.UNKNOWN
        remedy = run.failure_remedy or "Run again with -v and look at the worker's log in the evidence."
        yield Finding(
            id="KVP205",
            name="transfer-complete",
            status=status,
            title=f"the transfer measurement {facts.subject} ended early: {run.failure}",
            remedy=Remedy(text=remedy),
            notes=(f"{len(run.series)} series were measured before",) if run.series else (),
            evidence=EVIDENCE,
        )
        return
    verified = sum(s.verified for s in run.series)
    status = Status.PASS if verified == len(run.series) else Status.UNKNOWN
    yield Finding(
        id="KVP205",
        name="transfer-complete",
        status=status,
        title=f"bytes verified in {verified} of {len(run.series)} series",
        evidence=EVIDENCE,
        notes=tuple(f"left out: {step} (time budget)" for step in run.skipped),
    )


def idle(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP206: the GPUs were idle, so the figures are the link's and not another job's."""
    if facts.busy:
        yield Finding(
            id="KVP206",
            name="gpu-idle",
            status=Status.UNKNOWN,
            title=f"the GPUs are busy: {'; '.join(facts.busy)}",
            remedy=Remedy(text="Measure on idle GPUs; a busy one makes every figure a lower bound.", commands=("nvidia-smi",)),
            evidence=("gpus",),
        )


def direction(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP207: READ (pull) is not far slower than WRITE (push) on the same pair."""
    if facts.transfer is None:
        return
    read, write = (facts.transfer.find(op, "shuffled", facts.judged_tokens) for op in ("READ", "WRITE"))
    if not read or not write or not read.median_seconds or not write.median_seconds:
        return
    ratio = read.median_seconds / write.median_seconds
    slow = ratio > policy.threshold("read_over_write").warn_above if policy.threshold("read_over_write").warn_above else False
    yield Finding(
        id="KVP207",
        name="read-against-write",
        status=Status.WARN if slow else Status.PASS,
        title=f"READ takes {ratio:.2g} times WRITE ({format_seconds(read.median_seconds)} against {format_seconds(write.median_seconds)})",
        measured=Quantity(value=ratio, unit="times", statistic="ratio of medians", samples=min(len(read.seconds), len(write.seconds))),
        expected=Expected(max=policy.threshold("read_over_write").warn_above, unit="times", source=policy.cite("read_over_write")),
        remedy=Remedy(
            text="Without NVLink UCX switches READ over cuda_ipc off (vllm#52607): allow it, or use the push connector.",
            commands=("export UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on", '--kv-transfer-config \'{"kv_connector":"NixlPushConnector", ...}\''),
        ) if slow else None,  # fmt: skip
        evidence=EVIDENCE,
    )


def fit_quality(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP208: the cost fit explains its own points."""
    fitted = facts.transfer.fit(facts.operation) if facts.transfer else None
    if fitted is None or len(fitted.points) < 3:
        return
    limit = policy.threshold("fit_worst_residual")
    status = limit.status(fitted.worst_residual)
    yield Finding(
        id="KVP208",
        name="fit-residual",
        status=status,
        title=f"cost fit over {len(fitted.points)} points: worst residual {fitted.worst_residual:.0%}",
        measured=Quantity(value=fitted.worst_residual, unit="ratio", statistic="max", samples=len(fitted.points)),
        expected=Expected(max=limit.warn_above, unit="ratio", source=policy.cite("fit_worst_residual")),
        remedy=None if status is Status.PASS else Remedy(text="Trust the measured prompt lengths; between and beyond them the prediction is coarse."),
        evidence=EVIDENCE,
    )


def overhead(facts: LadderFacts, policy: Policy) -> Iterable[Finding]:
    """KVP209: kvprobe's own Python takes a negligible part of the judged time."""
    series = facts.judged
    if series is None or not series.overhead_seconds or not series.median_seconds:
        return
    share = median(series.overhead_seconds) / series.median_seconds
    limit = policy.threshold("probe_overhead_fraction")
    yield Finding(
        id="KVP209",
        name="probe-overhead",
        status=limit.status(share),
        title=f"kvprobe's own share of a transfer: {share:.2%} (building and releasing the request, outside the timed span)",
        measured=Quantity(value=share, unit="ratio", statistic="median", samples=len(series.overhead_seconds)),
        expected=Expected(max=limit.warn_above, unit="ratio", source=policy.cite("probe_overhead_fraction")),
        evidence=EVIDENCE,
    )


def _seconds(rung: Rung) -> Quantity:
    count = len(rung.samples)
    return Quantity(value=rung.seconds, unit="s", statistic=rung.statistic, samples=count or None, note=few_note(count) if 0 < count < FEW_SAMPLES else None)


RULES: tuple[Rule[LadderFacts], ...] = (
    Rule("KVP201", "raw-copy", raw_copy),
    Rule("KVP202", "nixl-contiguous", contiguous),
    Rule("KVP203", "nixl-shuffled", shuffled),
    Rule("KVP204", "transport", transport),
    Rule("KVP205", "transfer-complete", complete),
    Rule("KVP206", "gpu-idle", idle),
    Rule("KVP207", "read-against-write", direction),
    Rule("KVP208", "fit-residual", fit_quality),
    Rule("KVP209", "probe-overhead", overhead),
)
