"""The ladder: the same bytes on each rung, and what is lost between neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.statistics import percentile

NAMES = {
    0: "link",
    1: "raw copy",
    2: "UCX",
    3: "NIXL contiguous",
    4: "NIXL as vLLM stores it",
    5: "engine",
    6: "user (TTFT tax)",
}
LOSS_MEANS = {
    1: "driver, ACS/IOMMU or virtualisation",
    2: "UCX build or UCX_TLS",
    3: "NIXL backend, threads, memory type or transport",
    4: "descriptor cost: block size, layout, transport",
    5: "contention, polling, TP pooling in the engine",
    6: "handshake, proxy, scheduling, polling",
}


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One way to move ``bytes``; ``seconds`` is a median of ``samples`` (or computed from a rate)."""

    number: int
    status: str
    """``measured``, ``computed`` (from a nominal rate), ``skipped`` or ``unknown``."""
    bytes: int | None = None
    seconds: float | None = None
    statistic: str | None = None
    samples: tuple[float, ...] = ()
    transport: str | None = None
    note: str | None = None
    """Why it was skipped, or what a computed value rests on."""

    comparable: bool = True
    """False: shown, but no loss to or from it is claimed (rung 2 with another UCX than NIXL's)."""

    @property
    def name(self) -> str:
        return NAMES[self.number]

    @property
    def bandwidth_bytes_per_second(self) -> float | None:
        return self.bytes / self.seconds if self.bytes and self.seconds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Quartiles of the samples, seconds."""
        if len(self.samples) < 2:
            return None
        return percentile(self.samples, 25), percentile(self.samples, 75)


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What one rung costs on top of the next lower one that was measured."""

    rung: int
    below: int
    seconds: float
    ratio: float
    """Seconds of the rung over seconds of the one below."""

    @property
    def means(self) -> str:
        return LOSS_MEANS[self.rung]


def losses(rungs: Sequence[Rung]) -> tuple[Loss, ...]:
    """Losses between neighbours that have seconds for the same bytes, lowest rung first."""
    known = [r for r in sorted(rungs, key=lambda r: r.number) if r.seconds and r.comparable]
    found = []
    for below, above in zip(known, known[1:], strict=False):
        assert below.seconds is not None and above.seconds is not None
        if above.number <= 4 and below.bytes != above.bytes:
            continue
        found.append(
            Loss(
                rung=above.number,
                below=below.number,
                seconds=above.seconds - below.seconds,
                ratio=above.seconds / below.seconds,
            )
        )
    return tuple(found)


def largest_loss(rungs: Sequence[Rung]) -> Loss | None:
    """The loss with the most seconds; None when fewer than two rungs were measured, or nothing is lost."""
    return max((x for x in losses(rungs) if x.seconds > 0), key=lambda loss: loss.seconds, default=None)


def describe(rungs: Sequence[Rung]) -> list[dict[str, object]]:
    """The rungs as the report's ``result.ladder``."""
    by_rung = {loss.rung: loss for loss in losses(rungs)}
    top = largest_loss(rungs)
    rows: list[dict[str, object]] = []
    for rung in sorted(rungs, key=lambda r: r.number):
        loss = by_rung.get(rung.number)
        spread = rung.spread
        rows.append(
            {
                "rung": rung.number,
                "name": rung.name,
                "status": rung.status,
                "bytes": rung.bytes,
                "seconds": rung.seconds,
                "statistic": rung.statistic,
                "samples": list(rung.samples),
                "quartiles_seconds": list(spread) if spread else None,
                "bandwidth_bytes_per_second": rung.bandwidth_bytes_per_second,
                "transport": rung.transport,
                "note": rung.note,
                "loss_seconds": loss.seconds if loss else None,
                "loss_ratio": loss.ratio if loss else None,
                "loss_below_rung": loss.below if loss else None,
                "loss_means": loss.means if loss else None,
                "largest_loss": top is not None and top.rung == rung.number,
            }
        )
    return rows
