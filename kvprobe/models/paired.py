"""The TTFT tax from pairs: the same prompt through P/D and colocated, one right after the other.

The tax of a prompt length is the median of the paired differences, so that whatever drifts during the run
cancels; its interval is a bootstrap of the pairs (:mod:`kvprobe.models.statistics`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.statistics import Interval, Summary, bootstrap_interval, summarize


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt both ways; seconds."""

    prompt_tokens: int
    pd_ttft: float
    colocated_ttft: float
    prefill_call: float
    handover: float
    decode_first: float
    pd_itl: tuple[float, ...] = ()
    colocated_itl: tuple[float, ...] = ()
    pd_first: bool = False
    """Which way of the pair went first; drawn at random."""
    same_output: bool | None = None
    """Greedy output equal both ways; None if one of them has none."""
    transfer_seconds: float | None = None
    """What decode's counters grew by over this pair alone; None: not asked, or not one transfer."""
    descriptors: float | None = None

    @property
    def tax(self) -> float:
        return self.pd_ttft - self.colocated_ttft


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Rung 5: what the decode engine's own counters say about the requests of one prompt length; means."""

    transfers: int
    xfer_seconds: float
    post_seconds: float | None = None
    bytes: float | None = None
    descriptors: float | None = None


class LengthResult(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt length; every statistic is of ``pairs`` samples."""

    prompt_tokens: int
    pairs: int
    tax: Summary
    tax_interval: Interval
    pd_ttft: Summary
    colocated_ttft: Summary
    prefill_call: Summary
    handover: Summary
    decode_first: Summary
    pd_itl: Summary | None
    colocated_itl: Summary | None
    transfer: Transfer | None = None
    same_output: int = 0
    compared_output: int = 0
    failed: int = 0
    taxes: tuple[float, ...] = ()
    """All samples, in the order measured."""
    xfer: Summary | None = None
    """The engine's transfer request by request; None where the counters were read once a length only."""
    beside: Summary | None = None
    """Tax less transfer, pair by pair."""
    descriptors: tuple[float, ...] = ()
    """Of each transfer, in the order measured."""

    @property
    def transfer_seconds(self) -> float | None:
        """The usual transfer: the median of the requests, else the mean that the counters give."""
        if self.xfer is not None:
            return self.xfer.median
        return None if self.transfer is None else self.transfer.xfer_seconds

    @property
    def beside_transfer_seconds(self) -> float | None:
        """Tax less the engine's transfer: hop, scheduling, polling, step."""
        if self.beside is not None:
            return self.beside.median
        return None if self.transfer is None else self.tax.median - self.transfer.xfer_seconds


def summarize_length(
    prompt_tokens: int, pairs: Sequence[Pair], *, failed: int = 0, transfer: Transfer | None = None
) -> LengthResult:
    """Statistics of one prompt length. Raises ValueError without a pair."""
    taxes = [p.tax for p in pairs]
    compared = [p.same_output for p in pairs if p.same_output is not None]
    moved = [(p.transfer_seconds, p.tax) for p in pairs if p.transfer_seconds is not None]
    return LengthResult(
        prompt_tokens=prompt_tokens,
        pairs=len(pairs),
        tax=summarize(taxes),
        tax_interval=bootstrap_interval(taxes),
        pd_ttft=summarize([p.pd_ttft for p in pairs]),
        colocated_ttft=summarize([p.colocated_ttft for p in pairs]),
        prefill_call=summarize([p.prefill_call for p in pairs]),
        handover=summarize([p.handover for p in pairs]),
        decode_first=summarize([p.decode_first for p in pairs]),
        pd_itl=_itl([p.pd_itl for p in pairs]),
        colocated_itl=_itl([p.colocated_itl for p in pairs]),
        transfer=transfer,
        same_output=sum(compared),
        compared_output=len(compared),
        failed=failed,
        taxes=tuple(taxes),
        xfer=summarize([seconds for seconds, _ in moved]) if moved else None,
        beside=summarize([tax - seconds for seconds, tax in moved]) if moved else None,
        descriptors=tuple(p.descriptors for p in pairs if p.descriptors is not None),
    )


def _itl(series: Sequence[Sequence[float]]) -> Summary | None:
    """All gaps of all requests; the first gap of a request is left out (the engine sends two tokens at once there)."""
    gaps = [gap for one in series for gap in one[1:]]
    return summarize(gaps) if gaps else None
