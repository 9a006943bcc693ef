"""One log line, whoever wrapped it: colours, containers, journald, JSON; then vLLM's own prefix."""

from __future__ import annotations

import datetime
import functools
import re
from typing import Any

import msgspec

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\[(?:0|1);3\dm(?=\()|\[0;0m")
_VLLM = re.compile(
    r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?P<at>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?\s+\[(?P<file>[^\]\s]+:\d+)\]"
)
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w ]*?) pid=(?P<pid>\d+)[^()]*\)")
_GLOG = re.compile(r"(?:^|\s)[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.\d+\s+\d+ [\w.]+:\d+\]")
_UCX = re.compile(r"\[(\d{9,10})\.\d{6}\] \[[^\]]*\]")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_COMPOSE = re.compile(r"^\s*([\w.-]+)\s+\| ")
_KUBECTL = re.compile(r"^\[pod/([\w./-]+)\] ")
_JOURNALD = re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]+) ([\w.@-]+)(?:\[\d+\])?: ")
_STERN = re.compile(r"^([a-z0-9][a-z0-9.-]+ [a-z0-9][a-z0-9-]*) (?=\(|[A-Z]+ \d\d-\d\d)")
_JSON_TEXTS = ("message", "msg", "log", "MESSAGE", "text", "body", "line", "event")
_JSON_TIMES = ("asctime", "time", "timestamp", "@timestamp", "ts")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line comes from; None where it does not say."""

    source: str | None = None
    """Container, pod or unit, as the collector names it."""
    process: str | None = None
    pid: int | None = None
    level: str | None = None
    timestamp: str | None = None
    """``MM-DD HH:MM:SS`` as vLLM prints it; with a year where the line has one."""


def plain(text: str) -> str:
    """Without ANSI sequences (also those whose escape byte a collector swallowed) and carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def unwrap(text: str) -> str:
    """The message of a JSON line, whatever stands before the brace; the text itself if it is none."""
    brace = text.find('{"')
    if brace < 0:
        return text
    found = _json(text[brace:])
    if found is None:
        return text
    message, when, process = found
    inner = unwrap(message) if message.startswith('{"') else message
    head = " ".join(x for x in (when, process) if x)
    # vLLM's own prefix, if the message has one, tells the process and time better than the JSON around it.
    return f"{text[:brace]}{inner}" if _VLLM.search(inner) or not head else f"{text[:brace]}{head} {inner}"


def _json(text: str) -> tuple[str, str, str] | None:
    try:
        data: Any = msgspec.json.decode(text.strip())
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    message = next((data[k] for k in _JSON_TEXTS if isinstance(data.get(k), str)), None)
    if message is None:
        return None
    when = next((data[k] for k in _JSON_TIMES if isinstance(data.get(k), str)), "")
    name, pid = data.get("vllm_process_name") or data.get("processName"), data.get("process")
    process = f"({name} pid={pid})" if isinstance(name, str) and isinstance(pid, int) else ""
    level = data.get("levelname")
    return message, when, f"{process} {level}".strip() if isinstance(level, str) else process


def parse_head(text: str) -> Head:
    """Source, process, level and time of a plain line (:func:`plain` and :func:`unwrap` first)."""
    vllm = _VLLM.search(text)
    # The last one is the innermost: (APIServer pid=1) (EngineCore_DP0 pid=72) ...
    processes = list(_PROCESS.finditer(text, 0, vllm.start() if vllm else min(len(text), 400)))
    process = processes[-1] if processes else None
    return Head(
        source=_source(text),
        process=process["name"] if process else None,
        pid=int(process["pid"]) if process and len(process["pid"]) < 12 else None,
        level=vllm["level"] if vllm else None,
        timestamp=vllm["at"] if vllm else _other_time(text),
    )


def _source(text: str) -> str | None:
    compose = _COMPOSE.match(text) or _KUBECTL.match(text)
    if compose:
        return compose[1]
    journald = _JOURNALD.match(text)
    if journald:
        return f"{journald[1]} {journald[2]}"
    stern = _STERN.match(text)
    return stern[1] if stern else None


def _other_time(text: str) -> str | None:
    glog = _GLOG.search(text)
    if glog:
        return f"{glog[1]}-{glog[2]} {glog[3]}"
    ucx = _UCX.search(text)
    if ucx:
        moment = datetime.datetime.fromtimestamp(int(ucx[1]), datetime.UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%SZ")
    iso = _ISO.search(text[:200])
    return f"{iso[1]} {iso[2]}" if iso else None


_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_EPOCH = datetime.date(2024, 1, 1).toordinal()


@functools.lru_cache(maxsize=1024)
def seconds_of(timestamp: str | None) -> float | None:
    """Seconds since a New Year, for differences only: vLLM prints no year."""
    match = _STAMP.match(timestamp or "")
    if not match:
        return None
    year, month, day, hour, minute, second = match.groups()
    days = _days(year, month, day)
    return None if days is None else days * 86400.0 + int(hour) * 3600 + int(minute) * 60 + int(second)


@functools.lru_cache(maxsize=1024)
def _days(year: str | None, month: str, day: str) -> int | None:
    try:
        return datetime.date(int(year or 2024), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None


def elapsed(first: str | None, last: str | None) -> float | None:
    """Seconds from one stamp to a later one; a New Year between them is allowed for. None if one is missing."""
    if first == last and first is not None:
        return 0.0
    a, b = seconds_of(first), seconds_of(last)
    if a is None or b is None:
        return None
    gap = b - a
    return gap + 366 * 86400 if gap < -180 * 86400 else gap
