"""Bytes and descriptors of a prompt over a link that was named or a cost that was fitted: the terms, each with its origin.

A term that nobody measured is None and makes the transfer a lower bound; it is never counted as 0.
"""

from __future__ import annotations

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import Origin
from kvprobe.models.cost_fit import CostFit
from kvprobe.models.descriptors import DescriptorPlan
from kvprobe.models.ttft import TaxEstimate, tax


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The way of the bytes, one direction."""

    name: str
    bytes_per_second: float | None
    """Of one rank's link, or of the one that all ranks share. None: only the fit knows."""
    source: str
    origin: Origin = Origin.ASSUMED
    includes_descriptors: bool = False
    rtt_seconds: float = 0.0
    window_bytes: int | None = None
    """The most that is in flight at once (socket buffers times streams); None: enough to fill the link."""
    relay: bool = False
    """The KV is stored and sent on in between: all bytes take two legs, one after the other."""
    shared: bool = False
    """All ranks pull through one link instead of one each."""

    @property
    def effective_bytes_per_second(self) -> float | None:
        """What the window lets through: at most one window a round trip."""
        if self.bytes_per_second is None:
            return None
        if not self.window_bytes or not self.rtt_seconds:
            return self.bytes_per_second
        return min(self.bytes_per_second, self.window_bytes / self.rtt_seconds)

    @property
    def in_flight_to_fill(self) -> float | None:
        """Bytes that have to be under way to fill the link: bandwidth times round trip."""
        return (
            self.bytes_per_second * self.rtt_seconds if self.bytes_per_second and self.rtt_seconds else None
        )

    @property
    def legs(self) -> int:
        return 2 if self.relay else 1


class FitSource(msgspec.Struct, frozen=True, kw_only=True):
    """A cost fit out of a preflight report."""

    fit: CostFit
    source: str
    transport: str | None
    memory: str | None


class PromptEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt length. Seconds; bytes of one decode rank unless named otherwise."""

    prompt_tokens: int
    bytes: int
    bytes_all_ranks: int
    descriptors: int
    descriptor_bytes: int
    wire_seconds: float | None
    """Bytes over bandwidth, all legs; None when the fit has no byte term of its own."""
    descriptor_seconds: float | None
    """None: not known. 0 only where the rate was measured with the descriptors in it."""
    fixed_seconds: float | None
    round_trip_seconds: float
    transfer_seconds: float | None
    """The sum; None when a term is not known."""
    at_least_seconds: float
    """The sum of the terms that are known."""
    extrapolated: bool
    """The fit was not measured at this size."""
    tax: TaxEstimate

    @property
    def complete(self) -> bool:
        return self.transfer_seconds is not None


class TaxInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the tax beside the transfer is computed for."""

    vllm_version: str | None = None
    kv_buffer_device: str = "cuda"


def estimate_prompt(
    plan: DescriptorPlan, link: LinkSpec, fitted: FitSource | None, inputs: TaxInputs
) -> PromptEstimate:
    """The terms of one prompt. Raises UsageError when neither a bandwidth nor a fit is given."""
    wire, each, fixed, extrapolated = _terms(plan, link, fitted)
    # A read asks and is answered: one round trip a leg before the bytes of the last piece are there.
    round_trip = link.rtt_seconds * link.legs
    known = sum(t for t in (wire, each, fixed) if t is not None) + round_trip
    complete = each is not None
    origin = Origin.MEASURED if fitted and not extrapolated else Origin.ASSUMED
    source = fitted.source if fitted else f"{link.name} ({link.source})"
    if not complete:
        source += "; without the descriptors' cost, so at least"
    return PromptEstimate(
        prompt_tokens=plan.prompt_tokens,
        bytes=plan.bytes,
        bytes_all_ranks=plan.bytes_all_ranks,
        descriptors=plan.descriptors,
        descriptor_bytes=plan.bytes // max(1, plan.descriptors),
        wire_seconds=wire,
        descriptor_seconds=each,
        fixed_seconds=fixed,
        round_trip_seconds=round_trip,
        transfer_seconds=known if complete else None,
        at_least_seconds=known,
        extrapolated=extrapolated,
        tax=tax(
            plan.prompt_tokens,
            known,
            vllm_version=inputs.vllm_version,
            bytes=plan.bytes,
            kv_buffer_device=inputs.kv_buffer_device,
            transfer_origin=origin,
            transfer_source=source,
        ),
    )


def _terms(
    plan: DescriptorPlan, link: LinkSpec, fitted: FitSource | None
) -> tuple[float | None, float | None, float | None, bool]:
    """Wire, descriptors, fixed, extrapolated."""
    if fitted is not None:
        model = fitted.fit
        bandwidth = model.bandwidth_bytes_per_second
        wire = plan.bytes / bandwidth * link.legs if bandwidth else None
        total = model.predict(plan.descriptors, plan.bytes)
        each = total - model.t0_seconds - (plan.bytes / bandwidth if bandwidth else 0.0)
        return (
            wire,
            each * link.legs,
            model.t0_seconds * link.legs,
            not model.covers(plan.descriptors, plan.bytes),
        )
    rate = link.effective_bytes_per_second
    if rate is None:
        raise UsageError(
            "An estimate needs a link.", "Give --bandwidth 400Gb/s, --link NAME or --fit REPORT.json."
        )
    size = plan.bytes_all_ranks if link.shared else plan.bytes
    return size / rate * link.legs, 0.0 if link.includes_descriptors else None, None, False


class PlannerValues(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate in the units of Dynamo's mocker: seconds = tokens x kv_bytes_per_token / bandwidth."""

    kv_bytes_per_token: int
    kv_transfer_bandwidth_gb_s: float
    """Decimal GB/s, all ranks together, at ``prompt_tokens``."""
    prompt_tokens: int
    basis: str


def for_dynamo(told: PromptEstimate) -> PlannerValues:
    """One rate that gives Dynamo's one-term model the same transfer time at this prompt length.

    https://docs.nvidia.com/dynamo/dev/components/mocker-cli-reference: the delay is tokens x bytes per token over
    ``--kv-transfer-bandwidth``; it knows no descriptors, so their cost is folded into the rate.
    """
    seconds = told.transfer_seconds if told.complete else told.at_least_seconds
    assert seconds  # plans hold at least one block and rates are positive
    basis = "the whole transfer" if told.complete else "the wire alone: an upper bound of the rate"
    return PlannerValues(
        kv_bytes_per_token=round(told.bytes_all_ranks / told.prompt_tokens),
        kv_transfer_bandwidth_gb_s=told.bytes_all_ranks / seconds / 1e9,
        prompt_tokens=told.prompt_tokens,
        basis=basis,
    )
