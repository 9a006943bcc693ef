"""Reads engine logs: files, compressed files, pipes and growing files, in constant memory."""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

from kvprobe.errors import FormatError, ProbeError
from kvprobe.formats.log_scan import BLOCK_BYTES, Hit, Needles, Scanner
from kvprobe.system import System

STDIN = "-"
_POLL_SECONDS = 0.25
_TICK_BLOCKS = 64
_NUL_SHARE = 0.02
_WARM_BYTES = 8 * 1024 * 1024


class Follow:
    """How long to wait for more: ``seconds`` in all, ``silence_seconds`` without a byte. None: without end."""

    def __init__(
        self, *, grow: bool, seconds: float | None = None, silence_seconds: float | None = None
    ) -> None:
        self.grow = grow
        """Wait at the end of a file too, as ``tail -F`` does."""
        self.seconds = seconds
        self.silence_seconds = silence_seconds


class LogRead:
    """One log being read: iterate over :meth:`hits`; the counters hold whenever the reading stops."""

    def __init__(
        self, system: System, path: str, needles: Needles, follow: Follow, tell: Callable[[str], None]
    ) -> None:
        self.path = path
        self.bytes = 0
        self.lines = 0
        self.note: str | None = None
        """Why the reading ended early; None at the regular end."""
        self._system = system
        self._needles = needles
        self._follow = follow
        self._tell = tell
        self._started = self._heard = system.monotonic()

    def hits(self) -> Iterator[Hit]:
        """Lines with a literal. Raises ProbeError (absent, unreadable), FormatError (binary, damaged from the start)."""
        if type(self._system) is System:
            yield from self._scan()
            return
        key = {"path": self.path, "literals": [n.decode() for n in self._needles.literals]}
        for item in self._system.observe_many("log", key, self._recordable):
            if "line" in item:
                text = item["text"].encode()
                present = frozenset(i for i, n in enumerate(self._needles.literals) if n in text)
                yield Hit(item["line"], present, text, item["before"].encode(), item["after"].encode())
            else:
                self.lines, self.bytes, self.note = item["lines"], item["bytes"], item["note"]

    def _recordable(self) -> Iterator[dict[str, Any]]:
        for hit in self._scan():
            before, text, after = (b.decode("utf-8", "replace") for b in (hit.before, hit.text, hit.after))
            yield {"line": hit.line, "text": text, "before": before, "after": after}
        yield {"lines": self.lines, "bytes": self.bytes, "note": self.note}

    def _scan(self) -> Iterator[Hit]:
        # glibc raises its mmap and trim thresholds when a large block is freed; without it every block of the log
        # is mapped and unmapped again, which costs as much as the search (mallopt(3), M_MMAP_THRESHOLD).
        bytes(_WARM_BYTES)
        scanner = Scanner(self._needles)
        with contextlib.closing(self._plain_blocks()) as blocks:
            for block in blocks:
                yield from scanner.feed(block)
                self.lines = scanner.lines
        yield from scanner.finish()
        self.lines = scanner.lines

    def _plain_blocks(self) -> Generator[bytes, None, None]:
        blocks = self._blocks()
        first = next(blocks, b"")
        opener = _opener(first)
        stream = _Blocks(first, blocks)
        source: Iterator[bytes] = _decompressed(stream, opener, self) if opener else _chain(first, blocks)
        for number, block in enumerate(source):
            if not number and block[:4096].count(0) > _NUL_SHARE * len(block[:4096]):
                raise FormatError(
                    f"{self.path} is binary or UTF-16, not a log in ASCII or UTF-8.",
                    "Convert it first (iconv -f utf-16 -t utf-8), or give the engine's own output.",
                )
            yield block

    def _blocks(self) -> Iterator[bytes]:
        file = self._open()
        try:
            fd = file.fileno()
            mode = os.fstat(fd)
            regular = stat.S_ISREG(mode.st_mode)
            for number in range(sys.maxsize):
                if not regular and not self._ready(fd):
                    return
                block = os.read(fd, BLOCK_BYTES)
                if block:
                    self.bytes += len(block)
                    self._heard = self._system.monotonic()
                    if regular and number % _TICK_BLOCKS == 0 and mode.st_size > self.bytes:
                        self._tell(f"{self.bytes / mode.st_size:.0%}")
                    yield block
                elif regular and self._follow.grow and self.path != STDIN:
                    if not self._patience():
                        return
                    select.select([], [], [], _POLL_SECONDS)
                    file, fd = self._rotated(file)
                else:
                    return
        finally:
            if self.path != STDIN:
                file.close()

    def _open(self) -> IO[bytes]:
        if self.path == STDIN:
            return sys.stdin.buffer
        try:
            if Path(self.path).is_dir():
                raise ProbeError(f"{self.path} is a directory.", "Name the log files in it.")
            return open(self.path, "rb", buffering=0)  # noqa: PTH123, SIM115  closed by the caller
        except FileNotFoundError:
            raise ProbeError(f"{self.path} does not exist.") from None
        except OSError as error:
            raise ProbeError(f"{self.path} cannot be read: {error.strerror}.") from None

    def _rotated(self, file: IO[bytes]) -> tuple[IO[bytes], int]:
        """After a rotation the new file of that name, after a truncation its start."""
        with contextlib.suppress(OSError):
            now, mine = os.stat(self.path), os.fstat(file.fileno())  # noqa: PTH116
            if (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev):
                fresh = self._open()
                file.close()
                return fresh, fresh.fileno()
            if mine.st_size < os.lseek(file.fileno(), 0, os.SEEK_CUR):
                os.lseek(file.fileno(), 0, os.SEEK_SET)
        return file, file.fileno()

    def _ready(self, fd: int) -> bool:
        """Wait until a pipe has something to say (or has ended); False when patience is over."""
        while not select.select([fd], [], [], _POLL_SECONDS)[0]:
            if not self._patience():
                return False
        return self._patience()

    def _patience(self) -> bool:
        now = self._system.monotonic()
        silent, gone = now - self._heard, now - self._started
        if self._follow.silence_seconds is not None and silent > self._follow.silence_seconds:
            self.note = f"silent for {self._follow.silence_seconds:.0f} s"
            return False
        if self._follow.seconds is not None and gone > self._follow.seconds:
            self.note = f"followed for {self._follow.seconds:.0f} s"
            return False
        if silent > 2:
            self._tell(f"silent for {silent:.0f} s")
        return True


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


class _Blocks(io.RawIOBase):
    """Blocks as a file, for the decompressors."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._have = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._have:
            self._have = next(self._rest, b"")
        size = min(len(buffer), len(self._have))
        buffer[:size] = self._have[:size]
        self._have = self._have[size:]
        return size


Opener = Callable[[Any], Any]


def _gzip(stream: Any) -> Any:
    import gzip

    return gzip.GzipFile(fileobj=io.BufferedReader(stream, BLOCK_BYTES))


def _xz(stream: Any) -> Any:
    import lzma

    return lzma.LZMAFile(io.BufferedReader(stream, BLOCK_BYTES))


def _bzip2(stream: Any) -> Any:
    import bz2

    return bz2.BZ2File(io.BufferedReader(stream, BLOCK_BYTES))


def _zstd(stream: Any) -> Any:
    try:
        import zstandard
    except ImportError:
        raise ProbeError(
            "Reading .zst needs the zstandard package.", "Pipe it: zstd -dc FILE | kvprobe logs -"
        ) from None
    return zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)


_MAGIC: tuple[tuple[bytes, Opener], ...] = (
    (b"\x1f\x8b", _gzip),
    (b"\xfd7zXZ\x00", _xz),
    (b"BZh", _bzip2),
    (b"\x28\xb5\x2f\xfd", _zstd),
)


def _opener(first: bytes) -> Opener | None:
    return next((opener for magic, opener in _MAGIC if first.startswith(magic)), None)


def _decompressed(stream: _Blocks, opener: Opener, read: LogRead) -> Iterator[bytes]:
    """What is readable; a damaged or cut end becomes a note, a damaged start a FormatError."""
    file = opener(stream)
    some = False
    while True:
        try:
            # read1 hands out what is there; read would lose the last piece in front of a cut.
            block = file.read1(BLOCK_BYTES)
        except ProbeError:
            raise
        except Exception as error:  # noqa: BLE001  each library has errors of its own (zlib, lzma, zstd, EOFError, OSError)
            if not some:
                raise FormatError(
                    f"{read.path} looks compressed and cannot be decompressed: {error}."
                ) from None
            read.note = f"the compressed data is cut or damaged ({error})"
            return
        if not block:
            return
        some = True
        yield block
