"""Finds the few lines of a log that matter, at memory speed and in constant memory.

All literals are searched at once over blocks of bytes with Hyperscan (3 GB/s for a hundred literals where
``grep -F -f`` does 0.25 and an alternation of ``re`` 0.015; ``scripts/bench.d/logs``); without it each literal is
searched on its own, correct and slower. A line that holds no literal never becomes a Python object of its own.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

BLOCK_BYTES = 256 * 1024
CONTEXT_BYTES = 4096
_LINE_LIMIT = 1024 * 1024
_FEW = 4096

Found = tuple[int, int]
"""End offset of a literal in the block, and its index."""


class Hit(NamedTuple):
    """A line that holds at least one literal."""

    line: int
    """1-based."""
    needles: frozenset[int]
    text: bytes
    before: bytes
    """The end of what stands before it, up to 4 KiB."""
    after: bytes
    """The start of what follows it, as far as it was read already."""


class Needles:
    """A set of literals that can be dropped from one by one (a literal that floods the log costs its flood)."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self.literals = tuple(literals)
        self._active = set(range(len(literals)))
        self._matcher = _matcher(self.literals, sorted(self._active))

    def drop(self, index: int) -> None:
        """Search without this literal from the next block on."""
        if index in self._active:
            self._active.discard(index)
            self._matcher = _matcher(self.literals, sorted(self._active))

    def find(self, block: bytes) -> list[Found]:
        """All occurrences in ``block``, by end offset."""
        return self._matcher.find(block)


class _Hyperscan:
    def __init__(self, literals: Sequence[bytes], active: Sequence[int]) -> None:
        import hyperscan

        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[re.escape(literals[i]) for i in active],
            ids=list(active),
            elements=len(active),
            flags=[0] * len(active),
        )

    def find(self, block: bytes) -> list[Found]:
        found: list[Found] = []

        def take(index: int, start: int, end: int, flags: int, context: Any) -> None:
            found.append((end, index))

        self._database.scan(block, match_event_handler=take)
        return found


class _OneByOne:
    """Where Hyperscan is missing."""

    def __init__(self, literals: Sequence[bytes], active: Sequence[int]) -> None:
        self._literals = [(i, literals[i]) for i in active]

    def find(self, block: bytes) -> list[Found]:
        found = []
        for index, literal in self._literals:
            at = block.find(literal)
            while at >= 0:
                found.append((at + len(literal), index))
                at = block.find(literal, at + 1)
        return sorted(found)


class _Single:
    """One literal alone: StringZilla is faster than Hyperscan then, and needs no call back."""

    def __init__(self, literal: bytes, index: int) -> None:
        import stringzilla

        self._find = stringzilla.find
        self._literal, self._index = literal, index

    def find(self, block: bytes) -> list[Found]:
        found = []
        at = self._find(block, self._literal)
        while at >= 0:
            end = at + len(self._literal)
            found.append((end, self._index))
            at = self._find(block, self._literal, end)
        return found


def _matcher(literals: Sequence[bytes], active: Sequence[int]) -> _Hyperscan | _OneByOne | _Single:
    if not active:
        return _OneByOne((), ())
    if len(active) == 1:
        with contextlib.suppress(ImportError):
            return _Single(literals[active[0]], active[0])
    try:
        return _Hyperscan(literals, active)
    except ImportError:
        return _OneByOne(literals, active)
    except Exception as error:  # noqa: BLE001  hyperscan.HyperscanError on a CPU without SSSE3; its class needs the import
        if type(error).__module__.split(".")[0] != "hyperscan":
            raise
        return _OneByOne(literals, active)


class Scanner:
    """Turns blocks of bytes into hits; feed it, then :meth:`finish`."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._alone = [frozenset((i,)) for i in range(len(needles.literals))]
        self._rest = b""
        self._tail = b""
        self.lines = 0
        """Newlines seen so far."""

    def feed(self, data: bytes) -> Iterator[Hit]:
        """Hits of the lines that are complete now. A line beyond 1 MiB is searched in pieces.

        Blocks are not copied: the line that began in the last one is finished on its own.
        """
        start = 0
        if self._rest:
            start = data.find(b"\n") + 1
            if not start and len(self._rest) + len(data) < _LINE_LIMIT:
                self._rest += data
                return
            start = start or len(data)
            line, self._rest = self._rest + data[:start], b""
            yield from self._block(line, 0, len(line), data[start : start + CONTEXT_BYTES])
        cut = data.rfind(b"\n", start) + 1
        if not cut and len(data) - start >= _LINE_LIMIT:
            cut = len(data)
        if cut > start:
            self._rest = data[cut:]
            yield from self._block(data, start, cut)
        else:
            self._rest = data[start:]

    def finish(self) -> Iterator[Hit]:
        """Hits of a last line without a newline."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._block(rest, 0, len(rest))

    def _block(self, block: bytes, first: int, last: int, beyond: bytes = b"") -> Iterator[Hit]:
        """Hits in ``block[first:last]``, which ends with a line; ``beyond`` follows the block."""
        found = self._needles.find(block)
        counted, number, at, count = first, self.lines, 0, len(found)
        while at < count and found[at][0] <= first:
            at += 1
        while at < count and found[at][0] <= last:
            offset, needle = found[at]
            start = block.rfind(b"\n", first, offset) + 1 or first
            end = block.find(b"\n", offset, last)
            if end < 0:
                end = last
            needles = self._alone[needle]
            at += 1
            while at < count and found[at][0] <= end:
                needles |= self._alone[found[at][1]]
                at += 1
            number += newlines(block, counted, start)
            counted = start
            before = block[max(first, start - CONTEXT_BYTES) : start]
            if len(before) < CONTEXT_BYTES and start - first < CONTEXT_BYTES:
                before = (self._tail + before)[-CONTEXT_BYTES:]
            after = block[end + 1 : end + 1 + CONTEXT_BYTES]
            if beyond:
                after = (after + beyond)[:CONTEXT_BYTES]
            yield Hit(number + 1, needles, block[start : min(end, start + _LINE_LIMIT)], before, after)
        self.lines = number + newlines(block, counted, last)
        kept = block[max(first, last - CONTEXT_BYTES) : last]
        self._tail = kept if len(kept) == CONTEXT_BYTES else (self._tail + kept)[-CONTEXT_BYTES:]


def newlines(block: bytes, start: int, end: int) -> int:
    """How many newlines ``block[start:end]`` holds."""
    if end - start < _FEW:
        return block.count(b"\n", start, end)
    return _count_many(block, start, end)


def _count_lines(block: bytes, start: int, end: int) -> int:
    """``bytes.count`` of one byte is a plain loop up to Python 3.12 (1 GB/s); ``readlines`` finds ends with memchr."""
    piece = block[start:end]
    return len(io.BytesIO(piece).readlines()) - (not piece.endswith(b"\n"))


def _counter() -> Callable[[bytes, int, int], int]:
    try:
        import stringzilla
    except ImportError:
        return _count_lines

    def count(block: bytes, start: int, end: int) -> int:
        return int(stringzilla.count(block, b"\n", start, end))

    return count


_count_many = _counter()


def scan(blocks: Iterable[bytes], needles: Needles) -> Iterator[Hit]:
    """All hits of a log that is read block by block."""
    scanner = Scanner(needles)
    for block in blocks:
        yield from scanner.feed(block)
    yield from scanner.finish()
