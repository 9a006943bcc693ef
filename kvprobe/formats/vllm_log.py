"""vLLM's "KV Transfer metrics" line: one interval of P/D transfers as the engine itself saw them.

What the numbers are (vLLM ``kv_connector/v1/nixl/stats.py``): a sample is one transfer of **one worker rank** with one
remote rank for one request; ``MB`` is MiB; ``Throughput`` is the sum of bytes over the sum of transfer times, which
overlap, so it is roughly the aggregate bandwidth divided by the concurrency; the transfer time contains the post time
and the wait until the engine polls. Zeros of an interval without a success are not measurements.

The fields keep the printed numbers and units; the properties are base units.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec

from kvprobe.formats.log_lines import plain, unwrap
from kvprobe.formats.vllm_log_interval import MIB, Interval, MetricsLine, contradiction
from kvprobe.formats.vllm_log_others import other_connector

__all__ = [
    "MARKER",
    "MIB",
    "Interval",
    "MetricsLine",
    "contradiction",
    "metrics_text",
    "parse_metrics",
    "parse_metrics_line",
]

MARKER = b"KV Transfer metrics: "

_COUNTS = {
    "Num successful transfers": "num_successful_transfers",
    "num_successful_transfers": "num_successful_transfers",
    "Num failed transfers": "num_failed_transfers",
    "Num failed recvs": "num_failed_recvs",
    "Num KV expired reqs": "num_kv_expired_reqs",
    "Num notifs after expiry": "num_notifs_after_expiry",
}
_FIGURES = {
    "Avg xfer time (ms)": "avg_xfer_time_ms",
    "P90 xfer time (ms)": "p90_xfer_time_ms",
    "Avg post time (ms)": "avg_post_time_ms",
    "P90 post time (ms)": "p90_post_time_ms",
    "Avg MB per transfer": "avg_mib_per_transfer",
    "Throughput (MB/s)": "throughput_mib_per_s",
    "Avg number of descriptors": "avg_num_descriptors",
}
NUMBERS = (*dict.fromkeys(_COUNTS.values()), *_FIGURES.values())
_COMPLETE = ("avg_num_descriptors", "num_kv_expired_reqs", "num_notifs_after_expiry")
"""What a whole line ends with, by version."""

_FAST = re.compile(
    r"Num successful transfers=(\d{1,18}), Avg xfer time \(ms\)=(\d+(?:\.\d+)?), P90 xfer time \(ms\)=(\d+(?:\.\d+)?), "
    r"(?:Avg post time \(ms\)=(\d+(?:\.\d+)?), P90 post time \(ms\)=(\d+(?:\.\d+)?), )?"
    r"Avg MB per transfer=(\d+(?:\.\d+)?), Throughput \(MB/s\)=(\d+(?:\.\d+)?), Avg number of descriptors=(\d+\.\d|0)"
    r"(?:, Num failed transfers=(\d{1,18})(?:, Num failed recvs=(\d{1,18}))?, Num KV expired reqs=(\d{1,18})"
    r"(?:, Num notifs after expiry=(\d{1,18}))?)?\.?\s*$"
)
_NUMPY = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?$")
_CHILD = re.compile(r"[A-Za-z_]\w*$")
_TEXT_LIMIT = 65536


def parse_metrics_line(line: bytes | str) -> Interval | None:
    """The P/D interval of a log line in any wrapping; None if it has none or the line is damaged.

    A MultiConnector line gives its P/D child. Damaged: Throughput differs from Avg MB over Avg xfer time by more
    than the rounding of the three, or a number is not one.
    """
    found = parse_metrics(metrics_text(line))
    return found.intervals[0] if found.intervals and not found.problem else None


def metrics_text(line: bytes | str) -> str:
    """What follows the marker, without colours, JSON quoting and what a collector put behind it; empty if absent."""
    raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
    # A line that was cut and continued by the next one holds two markers: the last one is whole.
    at = raw.rfind(MARKER)
    if at < 0 or len(raw) > _TEXT_LIMIT * 16:
        return ""
    text = raw[at + len(MARKER) :].decode("utf-8", "replace")
    if "\x1b" in text or "\\" in text or '"' in text:
        text = plain(unwrap(raw.decode("utf-8", "replace"))).rpartition(MARKER.decode())[2]
        text = text.partition('"')[0].partition("\\n")[0]
    return text[:_TEXT_LIMIT].strip()


def parse_metrics(text: str, **place: Any) -> MetricsLine:
    """The text behind the marker (:func:`metrics_text`); ``place`` are the interval's file, line, process ..."""
    match = _FAST.match(text)
    if match:
        n, xfer, p90, post, p90_post, mib, rate, descriptors, failed, recvs, expired, late = match.groups()
        interval = Interval(
            connector="MooncakeConnector" if recvs is not None or post is None else "NixlConnector",
            num_successful_transfers=int(n),
            avg_xfer_time_ms=float(xfer),
            p90_xfer_time_ms=float(p90),
            avg_post_time_ms=None if post is None else float(post),
            p90_post_time_ms=None if p90_post is None else float(p90_post),
            avg_mib_per_transfer=float(mib),
            throughput_mib_per_s=float(rate),
            avg_num_descriptors=float(descriptors),
            num_failed_transfers=None if failed is None else int(failed),
            num_failed_recvs=None if recvs is None else int(recvs),
            num_kv_expired_reqs=None if expired is None else int(expired),
            num_notifs_after_expiry=None if late is None else int(late),
            **place,
        )
        problem = contradiction(interval)
        return MetricsLine(problem=problem) if problem else MetricsLine(intervals=(interval,))
    found = _parse_slowly(text)
    placed = tuple(msgspec.structs.replace(i, **place) for i in found.intervals)
    return msgspec.structs.replace(found, intervals=placed)


def _parse_slowly(text: str) -> MetricsLine:
    parts = split_top_level(text)
    if parts is None:
        return MetricsLine(problem="unbalanced brackets or quotes")
    flat: dict[str, str] = {}
    intervals: list[Interval] = []
    others: dict[str, dict[str, float | int]] = {}
    for part in parts:
        name, equals, value = part.partition("=") if part.endswith("}") else part.rpartition("=")
        if not equals:
            # The tail of a cut line has a key and no value.
            flat.setdefault(part, "")
        elif value.startswith("{") and _CHILD.match(name):
            try:
                child = _child(value)
            except ValueError as error:
                return MetricsLine(problem=f"{name}: {error}")
            found = _connector(child, name, cut=False)
            if found.problem:
                return found
            intervals += found.intervals
            others.update(found.others)
        else:
            flat[name] = value
    if flat:
        # Pasted reports end in a full stop; a line cut behind a decimal point does not.
        found = _connector(flat, None, cut=not re.search(r"\.\d+\.$", text))
        if found.problem:
            return found
        intervals += found.intervals
        others.update(found.others)
    if not intervals and not others:
        return MetricsLine(problem="no number that a connector prints")
    return MetricsLine(intervals=tuple(intervals), others=others)


def split_top_level(text: str) -> list[str] | None:
    """Split at ``", "`` outside of brackets and quotes; None if they do not balance."""
    parts, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and depth:
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif char == "," and not depth and text[at + 1 : at + 2] == " ":
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return None if depth or quote else [p for p in parts if p]


def _child(value: str) -> dict[str, str]:
    """The nested dict of a MultiConnector line as texts. Raises ValueError."""
    if value.count("{") > 8:
        raise ValueError("nested too deeply")
    try:
        data: Any = ast.literal_eval(_NUMPY.sub(r"\1", value))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError("not a dict that Python prints") from None
    if not isinstance(data, dict):
        raise ValueError("not a dict")
    return {
        str(k): repr(v) for k, v in data.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }


def _connector(pairs: dict[str, str], name: str | None, *, cut: bool) -> MetricsLine:
    if not any(key in _COUNTS or key in _FIGURES for key in pairs):
        other = other_connector(pairs, name)
        return (
            MetricsLine(others=other) if other else MetricsLine(problem="no number that a connector prints")
        )
    values: dict[str, Any] = {}
    known = [key for key in pairs if key in _COUNTS or key in _FIGURES]
    for key in known:
        text = _NUMPY.sub(r"\1", pairs[key])
        whole = not (cut and key == list(pairs)[-1]) or _is_whole(key, text)
        text = text.rstrip(".") if key == known[-1] and not cut else text
        if not whole:
            continue
        if not _NUMBER.match(text):
            return MetricsLine(problem=f"{key}={pairs[key][:40]} is not a number")
        if key in _COUNTS:
            if not text.isdigit() or len(text) > 18:
                return MetricsLine(problem=f"{key}={text[:40]} is not a count")
            values[_COUNTS[key]] = int(text)
        else:
            values[_FIGURES[key]] = float(text)
    if "num_successful_transfers" not in values:
        return MetricsLine(problem="the number of transfers is missing")
    mooncake = "num_failed_recvs" in values or (
        "avg_num_descriptors" in values and "avg_post_time_ms" not in values
    )
    whole_line = list(values)[-1] in _COMPLETE or "num_successful_transfers" in pairs
    interval = Interval(
        connector=name or ("MooncakeConnector" if mooncake else "NixlConnector"),
        partial=not whole_line,
        **values,
    )
    problem = contradiction(interval)
    return MetricsLine(problem=problem) if problem else MetricsLine(intervals=(interval,))


def _is_whole(key: str, text: str) -> bool:
    """Whether the last number of a possibly cut line is complete: its full decimals, or the end of a known format."""
    if not text:
        return False
    if key in _COUNTS:
        return (
            key in ("Num KV expired reqs", "Num notifs after expiry", "num_successful_transfers")
            and text.isdigit()
        )
    if key == "Avg number of descriptors":
        return bool(re.fullmatch(r"\d+\.\d+|0", text))
    return bool(re.fullmatch(r"\d+\.\d{3}", text))
