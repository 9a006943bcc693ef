"""KVP240 to KVP243: tensor-parallel ranks that pull at the same moment."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.models.ranks import RanksRun
from kvprobe.models.statistics import few_note, median
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.units import format_bytes, format_rate, format_seconds


class RanksFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, and what came of it."""

    decode_tp: int
    prefill_tp: int
    run: RanksRun | None = None
    not_fitting: str | None = None
    """Why it could not be measured on this machine; None: it was tried."""
    not_fitting_remedy: str = ""
    few_cores: str | None = None
    """Fewer cores than processes: then the ranks compete for them."""
    evidence: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return f"TP {self.prefill_tp} -> TP {self.decode_tp}"


def fits(facts: RanksFacts, policy: Policy) -> Iterable[Finding]:
    """KVP240: this machine has a GPU (or memory) for each rank of both sides, so that they can be measured as they run."""
    if facts.not_fitting is not None:
        yield Finding(
            id="KVP240",
            name="ranks-fit",
            status=Status.UNKNOWN,
            title=f"{facts.subject} was not measured: {facts.not_fitting}",
            remedy=Remedy(text=facts.not_fitting_remedy) if facts.not_fitting_remedy else None,
            evidence=facts.evidence,
            code="ranks_do_not_fit",
        )


def complete(facts: RanksFacts, policy: Policy) -> Iterable[Finding]:
    """KVP241: every rank pulled its share to the end, and every byte arrived where it belongs."""
    run = facts.run
    if run is None:
        return
    verified = sum(r.verified for r in run.ranks)
    if run.failure or not run.whole_seconds or verified < len(run.ranks):
        corrupt = run.failure is not None and "wrong words" in run.failure
        yield Finding(
            id="KVP241",
            name="ranks-complete",
            status=Status.FAIL if corrupt else Status.UNKNOWN,
            title=f"{facts.subject} ended early: {run.failure or 'not every rank was measured and verified'}",
            remedy=Remedy(text=run.failure_remedy or "Give it more --budget, or run again with -v."),
            notes=(f"{verified} of {len(run.ranks)} ranks verified",),
            evidence=facts.evidence,
        )
        return
    yield Finding(
        id="KVP241",
        name="ranks-complete",
        status=Status.PASS,
        title=f"{facts.subject}: bytes verified on all {len(run.ranks)} decode ranks, each against the prefill ranks it reads from",
        evidence=facts.evidence,
    )


def together(facts: RanksFacts, policy: Policy) -> Iterable[Finding]:
    """KVP242: all ranks pulling at once take hardly longer than one of them alone."""
    run = facts.run
    if run is None or not run.whole_seconds or run.slowdown is None:
        return
    limit = policy.threshold("rank_slowdown")
    slow = limit.status(run.slowdown) is not Status.PASS and facts.few_cores is None
    seconds, samples = median(run.whole_seconds), len(run.whole_seconds)
    yield Finding(
        id="KVP242",
        name="ranks-together",
        status=Status.WARN if slow else Status.PASS,
        title=(
            f"{facts.subject}, {len(run.ranks)} ranks at once: {format_seconds(seconds)} until the last has its {format_bytes(run.ranks[0].bytes)}, "
            f"{format_rate(run.bytes / seconds)} together; {run.slowdown:.2f} times one alone"
        ),
        measured=Quantity(value=run.slowdown, unit="times", statistic="ratio of medians", samples=samples, note=few_note(samples)),
        expected=None if facts.few_cores else Expected(max=limit.warn_above, unit="times", source=policy.cite("rank_slowdown")),
        remedy=Remedy(
            text="The ranks share a path (one switch, one NIC, one copy engine, or the host's memory). Give each rank pair a link of its own, or expect this figure in the tax.",
            commands=("kvprobe topo",),
        ) if slow else None,
        notes=tuple(
            f"rank {r.rank} ({r.place}): {_ms(r.together_seconds)} with all, {_ms(r.alone_seconds)} alone, {format_rate(r.bytes / median(r.together_seconds))}, posted up to {format_seconds(max(r.late_seconds))} late"
            for r in run.ranks if r.together_seconds
        ) + ((facts.few_cores,) if facts.few_cores else ()),
        evidence=facts.evidence,
    )  # fmt: skip


def slowest(facts: RanksFacts, policy: Policy) -> Iterable[Finding]:
    """KVP243: no rank is far slower than the others; the request waits for the slowest."""
    run = facts.run
    worst = run.slowest if run else None
    if run is None or worst is None or run.imbalance is None:
        return
    limit = policy.threshold("rank_imbalance")
    far = limit.status(run.imbalance) is not Status.PASS and facts.few_cores is None
    own = worst.slowdown
    cause = (
        "it is as slow alone: its own link"
        if own is not None and own < (limit.warn_above or 1.5)
        else "alone it is fast: it shares a path"
    )
    yield Finding(
        id="KVP243",
        name="slowest-rank",
        status=Status.WARN if far else Status.PASS,
        title=f"slowest of {len(run.ranks)} ranks: rank {worst.rank} ({worst.place}), {_ms(worst.together_seconds)}, {run.imbalance:.2f} times the median rank",
        measured=Quantity(value=run.imbalance, unit="times", statistic="ratio of medians", samples=len(worst.together_seconds)),
        expected=None if facts.few_cores else Expected(max=limit.warn_above, unit="times", source=policy.cite("rank_imbalance")),
        remedy=Remedy(text=f"Look at that pair ({cause}); another assignment of GPUs to ranks may avoid it.", commands=("kvprobe topo",)) if far else None,
        notes=(facts.few_cores,) if facts.few_cores else (),
        where=worst.place if far else None,
        evidence=facts.evidence,
    )  # fmt: skip


def _ms(samples: tuple[float, ...]) -> str:
    return f"{format_seconds(median(samples))} (median of {len(samples)})" if samples else "not measured"


RULES: tuple[Rule[RanksFacts], ...] = (
    Rule("KVP240", "ranks-fit", fits),
    Rule("KVP241", "ranks-complete", complete),
    Rule("KVP242", "ranks-together", together),
    Rule("KVP243", "slowest-rank", slowest),
)
