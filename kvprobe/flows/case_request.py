"""The options with which a user states the case, shared by the commands that give advice (cli/case_options)."""

from __future__ import annotations

import msgspec

from kvprobe.models.advice import Case


class CaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; None: not told."""

    ttft_slo: float | None = None
    base_ttft: float | None = None
    itl_slo: float | None = None
    itl_p99: float | None = None
    rate: float | None = None
    turns: int | None = None
    traffic: str | None = None
    max_num_batched_tokens: int | None = None

    @property
    def case(self) -> Case:
        """The stated case that the advice is for."""
        return Case(
            ttft_slo_seconds=self.ttft_slo,
            itl_slo_seconds=self.itl_slo,
            itl_p99_seconds=self.itl_p99,
            base_ttft_seconds=self.base_ttft,
            requests_per_second=self.rate,
            turns=self.turns,
            traffic=self.traffic,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
