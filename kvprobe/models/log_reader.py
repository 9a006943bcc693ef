"""Turns the hits of a scan into intervals, sums, a timeline and failures; one pass, constant memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from kvprobe.formats.log_lines import Head, parse_head, plain, unwrap
from kvprobe.formats.log_scan import Hit
from kvprobe.formats.log_signatures import Signature
from kvprobe.formats.vllm_log import MARKER, Interval, metrics_text, parse_metrics
from kvprobe.formats.vllm_log_others import add
from kvprobe.models.log_doctor import Doctor
from kvprobe.models.log_streams import LITERALS, STATS_LIMIT, Stream
from kvprobe.models.log_summary import Aggregate, EngineLog
from kvprobe.models.log_timeline import Timeline

_STATS = b"Avg prompt throughput: "
_ENGINE = re.compile(rb"Engine (\d{1,4}): $")
_STAMP = re.compile(rb"\d\d-\d\d \d\d:\d\d:\d\d")
_LOOK_BACK = 8
_DAMAGED_LIMIT = 50
_STREAM_LIMIT = 512
_SLOW_BYTES_PER_SECOND = 3e9
"""Below this a transfer is not CUDA IPC or RDMA; emulation over TCP was measured at 0.36 to 0.43 GB/s."""


class LogReader:
    """Feed :meth:`take` with hits whose needles index :attr:`literals`."""

    def __init__(self, signatures: Sequence[Signature] = (), *, keep_intervals: int = 4000) -> None:
        self.doctor = Doctor(signatures)
        self.with_doctor = bool(signatures)
        self.literals: tuple[bytes, ...] = (
            (MARKER, *LITERALS, *self.doctor.literals) if signatures else (MARKER,)
        )
        self.timeline = Timeline()
        self.engines: dict[tuple[str, str | None, int | None, str], EngineLog] = {}
        self.streams: dict[tuple[str, str | None], Stream] = {}
        self.others: dict[str, dict[str, float | int]] = {}
        self.damaged: list[dict[str, Any]] = []
        self.damaged_count = 0
        self.interval_count = 0
        self.silent_zeros = 0
        """Intervals of zeros without counters: vLLM 0.15 to 0.30 prints them only when something failed or expired."""
        self._head_of: dict[bytes, Head] = {}
        self._keep = max(2, keep_intervals)
        self._first: list[Interval] = []
        self._last: deque[Interval] = deque(maxlen=self._keep - self._keep // 2)

    @property
    def stats_needle(self) -> int | None:
        """The literal that may be dropped once :meth:`take` returned True for a file."""
        return 1 if self.with_doctor else None

    def take(self, file: str, hit: Hit) -> bool:
        """Judge one line. True: enough throughput lines were seen in this file."""
        if 0 in hit.needles:
            self._metrics(file, hit)
        rest = [n for n in hit.needles if n]
        if not rest:
            return False
        text = plain(unwrap(hit.text.decode("utf-8", "replace")))
        head = parse_head(text)
        stream = self._stream(file, head.source)
        if any(n <= len(LITERALS) for n in rest):
            stream.take(text)
        found = [n - 1 - len(LITERALS) for n in rest if n > len(LITERALS)]
        if found:
            self.doctor.take(file, hit.line, found, text, head, hit.before, hit.after)
        return stream.stats >= STATS_LIMIT

    def _stream(self, file: str, source: str | None) -> Stream:
        key = (file, source)
        if key not in self.streams and len(self.streams) >= _STREAM_LIMIT:
            key = (file, None)
        return self.streams.setdefault(key, Stream(*key))

    def _metrics(self, file: str, hit: Hit) -> None:
        text = metrics_text(hit.text)
        head, stamp = self._head(hit.text)
        stream = self._stream(file, head.source)
        engine = self._engine(head, hit.before)
        line = parse_metrics(
            text,
            file=file,
            line=hit.line,
            timestamp=stamp,
            process=head.process,
            source=head.source,
            engine=engine,
        )
        if line.problem:
            self.damaged_count += 1
            if len(self.damaged) < _DAMAGED_LIMIT:
                self.damaged.append(
                    {"file": file, "line": hit.line, "reason": line.problem, "text": text[:200]}
                )
        for connector, values in line.others.items():
            stream.other_connector = True
            if connector in self.others or len(self.others) < 64:
                add(self.others.setdefault(connector, {}), values)
        for interval in line.intervals:
            stream.transfers += interval.num_successful_transfers
            stream.failures += interval.failures
            if not interval.num_successful_transfers and interval.num_failed_transfers is None:
                self.silent_zeros += 1
            self._keep_one(interval)
            self.timeline.add(interval)
            key = (file, stream.source, engine, interval.connector)
            if key not in self.engines:
                self.engines[key] = EngineLog(key, head.process)
            self.engines[key].add(interval)

    def _head(self, raw: bytes) -> tuple[Head, str | None]:
        """Prefix and time; what stands before the time repeats from line to line."""
        stamp = _STAMP.search(raw)
        if stamp is None or raw.find(b'{"') >= 0:
            head = parse_head(plain(unwrap(raw.decode("utf-8", "replace"))))
            return head, head.timestamp
        key = raw[: stamp.start()]
        head_ = self._head_of.get(key)
        if head_ is None:
            if len(self._head_of) > 1024:
                self._head_of.clear()
            head_ = self._head_of[key] = parse_head(plain(raw.decode("utf-8", "replace")))
            if head_.timestamp != stamp[0].decode():
                # The first thing that looks like vLLM's time belongs to a collector.
                del self._head_of[key]
                return head_, head_.timestamp
        return head_, stamp[0].decode()

    @staticmethod
    def _engine(head: Head, before: bytes) -> int | None:
        """Index of the ``Engine NNN:`` line that the same process printed in front of it; None for aggregated ones."""
        end = len(before)
        for _ in range(_LOOK_BACK):
            at = before.rfind(_STATS, 0, end)
            if at < 0:
                return None
            start = before.rfind(b"\n", 0, at) + 1
            whole = before[start:at]
            same = head.pid is None or b"pid=%d" % head.pid in whole
            if same and (head.source is None or head.source.split()[-1].encode() in whole):
                match = _ENGINE.search(whole)
                return int(match[1]) if match else None
            end = start
        return None

    def _keep_one(self, interval: Interval) -> None:
        self.interval_count += 1
        if len(self._first) < self._keep // 2:
            self._first.append(interval)
        else:
            self._last.append(interval)

    def intervals(self) -> list[Interval]:
        """The first and the newest ones; :attr:`interval_count` tells how many there were."""
        return [*self._first, *self._last]

    def total(self) -> Aggregate:
        every = Aggregate()
        for engine in self.engines.values():
            every.merge(engine.total)
        return every

    def warm(self) -> Aggregate:
        every = Aggregate()
        for engine in self.engines.values():
            every.merge(engine.warm)
        return every

    def conclude(self) -> None:
        """What only the whole input tells: counters, lanes, decode that prefills, answers after failures."""
        if not self.with_doctor:
            return
        declined = self.doctor.files_of("turn2_read_expired")
        for engine in self.engines.values():
            counts = engine.total.counts
            failed = (counts["num_failed_transfers"] or 0) + (counts["num_failed_recvs"] or 0)
            self.doctor.conclude("transfers_failed_counter", failed, engine.file)
            # Where the messages themselves are in the log they are the better count; a declined turn 2 is no lease lost.
            for code, name in (
                ("kv_lease_expired", "num_kv_expired_reqs"),
                ("late_read_possible_corruption", "num_notifs_after_expiry"),
            ):
                told = self.doctor.files_of(code)
                if engine.file not in told and not (code == "kv_lease_expired" and engine.file in declined):
                    self.doctor.conclude(code, counts[name] or 0, engine.file)
        for stream in self.streams.values():
            if stream.prefills_itself:
                rate = stream.prompt / stream.stats
                self.doctor.conclude(
                    "no_kv_transfer_seen", stream.stats, stream.file, prompt_tokens_per_second=rate
                )
        self._lanes()
        self.doctor.conclude_answers()

    def _lanes(self) -> None:
        streams = [s for s in self.streams.values() if s.lanes]
        if not streams or any(s.fast_lane for s in streams):
            return
        rate = self.warm().rate
        fallback = "cuda_ipc_unavailable_tcp_fallback" in self.doctor.seen
        slow = rate is not None and rate < _SLOW_BYTES_PER_SECOND
        if slow or fallback or (rate is None and any(s.am_cuda for s in streams)):
            one = next((s for s in streams if s.am_cuda), streams[0])
            self.doctor.conclude("rma_over_tcp", len(streams), one.file, lane=one.lanes)
