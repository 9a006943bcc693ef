"""The ``result`` of ``kvprobe logs``."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.formats.vllm_log import Interval
from kvprobe.formats.vllm_log_others import with_rates
from kvprobe.models.log_facts import LogFacts
from kvprobe.models.log_reader import LogReader
from kvprobe.models.log_summary import EngineLog

UNITS = {
    "avg_xfer_time_ms": "ms",
    "p90_xfer_time_ms": "ms",
    "avg_post_time_ms": "ms",
    "p90_post_time_ms": "ms",
    "avg_mib_per_transfer": "MiB (the log says MB)",
    "throughput_mib_per_s": "MiB/s: sum of bytes over sum of transfer times, which overlap; not the link's rate",
    "num_successful_transfers": "transfers of one worker rank with one remote rank for one request",
}


def interval_row(i: Interval) -> dict[str, Any]:
    """The printed numbers; what that vLLM does not print is absent."""
    row = {k: v for k, v in msgspec.structs.asdict(i).items() if v is not None and v is not False}
    return {**row, "measured": i.measured}


def requests_of(engine: EngineLog, reader: LogReader) -> dict[str, Any]:
    """Transfers are a rank's: with the ranks that the log shows, about how many requests and bytes a request.

    An estimate: a rank that reads from several remote ranks makes several transfers. None where no rank is shown.
    """
    stream = reader.streams.get((engine.file, engine.source))
    ranks = len(stream.ranks) if stream else 0
    total = engine.total
    same = [e for e in reader.engines.values() if (e.file, e.source) == (engine.file, engine.source)]
    if not ranks or len(same) > 1 or not total.transfers:
        return {"ranks_seen": None, "requests_estimated": None, "bytes_per_request_estimated": None}
    return {
        "ranks_seen": ranks,
        "requests_estimated": total.transfers / ranks,
        "bytes_per_request_estimated": None if total.bytes_mean is None else total.bytes_mean * ranks,
    }


def result_of(
    reader: LogReader,
    facts: LogFacts,
    engines: list[dict[str, Any]],
    failures: list[dict[str, Any]],
    notes: list[dict[str, Any]],
    said: dict[str, Any],
) -> dict[str, Any]:
    """Everything a run on logs found out."""
    intervals = reader.intervals()
    hints = [
        {"code": "prefix_cache_hit_in_benchmark", "value": s.prefix_hit, "file": s.file, "source": s.source}
        for s in reader.streams.values()
        if s.reused_prompts
    ]
    return {
        "kv_transfer_intervals": [interval_row(i) for i in intervals],
        "intervals_in_all": reader.interval_count,
        "intervals_left_out": reader.interval_count - len(intervals),
        "totals": {**facts.total.result(), "implied_concurrency": facts.concurrency},
        "engines": engines,
        "streams": [s.result() for s in reader.streams.values()],
        "timeline": reader.timeline.result(),
        "failures": failures,
        "notes": [*notes, *hints],
        "other_connectors": {name: with_rates(values) for name, values in reader.others.items()},
        "damaged_lines": reader.damaged,
        "damaged_lines_in_all": reader.damaged_count,
        "assessment": said,
        "meaning": msgspec.to_builtins(facts.meaning),
        "against_nixl": msgspec.to_builtins(facts.comparison) if facts.comparison else None,
        "units": UNITS,
    }
