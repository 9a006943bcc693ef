"""What a decode log says about a benchmark: did KV move, how long did it take, or did decode prefill again?"""

from __future__ import annotations

import re

import msgspec

from kvprobe.formats.vllm_log import parse_metrics_line

# vllm/v1/metrics/loggers.py, LoggingStatLogger
_ENGINE = re.compile(r"Avg prompt throughput: ([0-9.]+) tokens/s")


class DecodeLog(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the log that ran beside the P/D benchmark."""

    source: str
    intervals: int
    """"KV Transfer metrics" lines that could be read."""
    transfers: int
    failed: int
    transfer_seconds: float | None
    """Mean of the transfers' own times, weighted by their number; None without one."""
    engine_lines: int
    """The engine's periodic throughput lines: proof that it would have reported transfers."""
    prompt_tokens_per_second: float
    """Highest prompt throughput that the engine printed; 0 if it printed none."""

    @property
    def active(self) -> bool | None:
        """Whether KV was transferred; None when the log cannot tell."""
        if self.transfers:
            return True
        return False if self.prompt_tokens_per_second > 0 or self.failed else None


def read_decode_log(text: str, source: str) -> DecodeLog:
    """Sum up one log."""
    intervals = transfers = failed = engine_lines = 0
    seconds = highest = 0.0
    for line in text.splitlines():
        interval = parse_metrics_line(line)
        if interval is not None:
            intervals += 1
            failed += interval.failures
            if interval.measured:
                transfers += interval.num_successful_transfers
                seconds += interval.xfer_seconds_total or 0.0
        elif match := _ENGINE.search(line):
            engine_lines += 1
            highest = max(highest, _number(match[1]))
    return DecodeLog(
        source=source,
        intervals=intervals,
        transfers=transfers,
        failed=failed,
        transfer_seconds=seconds / transfers if transfers else None,
        engine_lines=engine_lines,
        prompt_tokens_per_second=highest,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "1.2.3" of a damaged line
        return 0.0


def merge(logs: list[DecodeLog]) -> DecodeLog | None:
    """Several decode instances as one; None for none."""
    if not logs:
        return None
    transfers = sum(log.transfers for log in logs)
    seconds = sum((log.transfer_seconds or 0.0) * log.transfers for log in logs)
    return DecodeLog(
        source=", ".join(log.source for log in logs),
        intervals=sum(log.intervals for log in logs),
        transfers=transfers,
        failed=sum(log.failed for log in logs),
        transfer_seconds=seconds / transfers if transfers else None,
        engine_lines=sum(log.engine_lines for log in logs),
        prompt_tokens_per_second=max(log.prompt_tokens_per_second for log in logs),
    )


class TaxShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the measured TTFT difference the transfer in the log explains."""

    tax_seconds: float
    transfer_seconds: float
    transfers: int

    @property
    def share(self) -> float:
        return self.transfer_seconds / self.tax_seconds


def tax_share(tax_ms: float | None, log: DecodeLog | None) -> TaxShare | None:
    """None without a longer TTFT or without a transfer in the log."""
    if not tax_ms or tax_ms <= 0 or log is None or log.transfer_seconds is None:
        return None
    return TaxShare(tax_seconds=tax_ms / 1e3, transfer_seconds=log.transfer_seconds, transfers=log.transfers)
