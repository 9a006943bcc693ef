"""What rung 2 measured: one big piece through raw UCX."""

from __future__ import annotations

import msgspec

from kvprobe.formats.ucx_proto import ProtocolRow, Transport, observed_transport
from kvprobe.models.ladder import Rung
from kvprobe.models.statistics import median


class UcxSeries(msgspec.Struct, frozen=True, kw_only=True):
    """All samples of one operation at one size."""

    operation: str
    """``READ`` (ucp_get_nbx by decode) or ``WRITE`` (ucp_put_nbx and flush by prefill)."""
    bytes: int
    seconds: tuple[float, ...]
    warm_up_seconds: tuple[float, ...] = ()
    """The first of them includes the connection."""
    verified: bool | None = None

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


class UcxFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run, bytes flowing from prefill to decode."""

    memory: str
    prefill_gpu: int | None = None
    decode_gpu: int | None = None
    series: tuple[UcxSeries, ...] = ()
    protocols: tuple[ProtocolRow, ...] = ()
    """UCX's tables of used protocols; empty if the processes did not end in order."""
    version: str | None = None
    origin: str | None = None
    """Where the library is from: ``nixl-cu12 1.5.1`` (NIXL's own copy), ``libucx-cu12 1.22.0``, ``system ...``."""
    settings: dict[str, str] = {}
    """What was set as NIXL's plugin sets it, because the environment did not."""
    absent: str | None = None
    install: str | None = None
    failure: str | None = None
    failure_remedy: str = ""

    def find(self, operation: str, size_bytes: int) -> UcxSeries | None:
        """The series of an operation at a size; None if it was not measured or its bytes were wrong."""
        return next(
            (
                s
                for s in self.series
                if (s.operation, s.bytes) == (operation, size_bytes) and s.seconds and s.verified
            ),
            None,
        )

    def transport(self, operation: str) -> Transport | None:
        """The transport as UCX's tables tell it."""
        return observed_transport(self.protocols, operation)

    def same_ucx_as(self, nixl_ucx_version: str | None) -> bool:
        """Whether a difference between this rung and NIXL's can be NIXL's doing: the same version of UCX."""
        return self.version is not None and self.version == nixl_ucx_version


def raw_ucx_rung(
    facts: UcxFacts | None, size_bytes: int, operation: str = "READ", nixl_ucx_version: str | None = None
) -> Rung:
    """Rung 2 of the ladder for one size; skipped or unknown with the reason."""
    if facts is None:
        return Rung(number=2, status="skipped", note="not asked for")
    if facts.absent:
        return Rung(number=2, status="skipped", note=f"{facts.absent} is not installed: {facts.install}")
    series = facts.find(operation, size_bytes)
    if series is None:
        return Rung(number=2, status="unknown", note=facts.failure or "not measured")
    seen = facts.transport(operation)
    note = f"UCX {facts.version} of {facts.origin}"
    if nixl_ucx_version and not facts.same_ucx_as(nixl_ucx_version):
        note += f"; NIXL uses UCX {nixl_ucx_version}, so no loss between rungs 2 and 3 is claimed"
    return Rung(
        number=2,
        status="measured",
        bytes=series.bytes,
        seconds=series.median_seconds,
        statistic="median",
        samples=series.seconds,
        transport=seen.label if seen else None,
        note=note,
        comparable=not nixl_ucx_version or facts.same_ucx_as(nixl_ucx_version),
    )
