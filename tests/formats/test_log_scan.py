"""The scanner against a plain loop over lines, whatever the block borders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.formats import log_scan
from kvprobe.formats.log_scan import Needles, Scanner, newlines, scan

LITERALS = (b"needle", b"other literal", b"dle x")
LINE = st.sampled_from(
    [
        b"",
        b"plain",
        b"a needle here",
        b"needle x",
        b"other literal needle",
        b"needleneedle",
        b"\xff\x00 bytes",
    ]
)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def naive(data: bytes) -> list[tuple[int, frozenset[int], bytes]]:
    lines = data.split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        needles = frozenset(i for i, n in enumerate(LITERALS) if n in line)
        if needles:
            found.append((number, needles, line))
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(LINE, max_size=40), st.integers(1, 70), st.booleans())
def test_same_as_a_loop_over_lines(lines: list[bytes], size: int, ended: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    got = [(h.line, h.needles, h.text) for h in scan(pieces(data, size), Needles(LITERALS))]
    assert got == naive(data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_both_matchers_find_the_same(block: bytes) -> None:
    text = block + b"needle" + block + b"other literal"
    indexes = range(len(LITERALS))
    fast, slow = log_scan._Hyperscan(LITERALS, indexes), log_scan._OneByOne(LITERALS, indexes)
    assert sorted(fast.find(text)) == slow.find(text)
    assert log_scan._Single(b"needle", 7).find(text) == log_scan._OneByOne({7: b"needle"}, (7,)).find(text)


def test_works_without_the_optional_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError

    monkeypatch.setattr(log_scan, "_Hyperscan", missing)
    monkeypatch.setattr(log_scan, "_count_many", log_scan._count_lines)
    data = (b"x" * 99 + b"\n") * 500 + b"a needle\n"
    (hit,) = scan([data], Needles(LITERALS))
    assert (hit.line, hit.text) == (501, b"a needle")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 5), st.integers(0, 40))
def test_newlines_are_counted_right_by_every_way(block: bytes, start: int, cut: int) -> None:
    block = block.replace(b"a", b"\n") * 40
    end = max(start, len(block) - cut)
    want = block[start:end].count(b"\n")
    assert newlines(block, start, end) == want
    if end > start:
        assert log_scan._count_lines(block, start, end) == want
        assert log_scan._count_many(block, start, end) == want


def test_context_reaches_across_blocks() -> None:
    data = b"first line\nsecond line\na needle\nthird line\n"
    (hit,) = scan([data[:15], data[15:]], Needles(LITERALS))
    assert hit.before.endswith(b"first line\nsecond line\n")
    assert hit.after == b"third line\n"


def test_dropped_literal_is_not_found_any_more() -> None:
    needles = Needles(LITERALS)
    scanner = Scanner(needles)
    assert len(list(scanner.feed(b"needle\nneedle\n"))) == 2
    needles.drop(0)
    assert [h.needles for h in scanner.feed(b"needle\nother literal\n")] == [frozenset({1})]
    assert scanner.lines == 4


def test_endless_line_stays_bounded() -> None:
    scanner = Scanner(Needles(LITERALS))
    hits = [h for _ in range(40) for h in scanner.feed(b"x" * 100_000 + b"needle")]
    hits += scanner.finish()
    assert sum(len(h.needles) > 0 for h in hits) >= 3
    assert all(h.line == 1 and len(h.text) <= 2 << 20 for h in hits)
    assert len(scanner._rest) < 2 << 20
